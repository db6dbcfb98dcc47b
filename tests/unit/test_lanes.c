/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/lanes.h"
#include "tests/unit/gradient.h"

/* The order as lanes.h states it, one addition after the other. */
static float in_stated_order(const float *x, size_t count) {
        volatile float lane[LANES] = {0};

        for (size_t i = 0; i < count; i++)
                lane[i % LANES] = lane[i % LANES] + x[i];
        for (size_t width = LANES / 2; width > 0; width /= 2)
                for (size_t l = 0; l < width; l++)
                        lane[l] = lane[l] + lane[l + width];
        return lane[0];
}

static void test_order_is_the_stated_one(void **state) {
        float x[1000], ones[1000];

        gradient_fill(x, 1000, 1);
        for (size_t i = 0; i < 1000; i++)
                ones[i] = 1.0f;
        for (size_t count = 0; count <= 1000; count++) {
                float sum = lanes_sum_f32(x, count), dot = lanes_dot_f32(x, ones, count);
                float wanted = in_stated_order(x, count);
                assert_memory_equal(&sum, &wanted, sizeof(sum));
                assert_memory_equal(&dot, &wanted, sizeof(dot));
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_order_is_the_stated_one),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
