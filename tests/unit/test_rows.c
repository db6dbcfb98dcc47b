/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rows.h"
#include "tests/unit/gradient.h"

enum { ROWS = 3, C = 2 };

static void test_values(void **state) {
        static const float bias[C] = {1.0f, 2.0f}, one[ROWS * C] = {1, 2, 3, 4, 5, 6};
        float out[ROWS * C], dbias[C] = {10.0f, 20.0f}, running[C] = {0.0f, 2.0f};

        rows_fill(out, bias, ROWS, C);
        for (size_t i = 0; i < ROWS * C; i++)
                assert_true(out[i] == bias[i % C]);
        rows_add(out, out, one, ROWS * C);
        assert_true(out[0] == 2.0f && out[5] == 8.0f);
        rows_add_bias_gradient(dbias, one, ROWS, C);
        assert_true(dbias[0] == 19.0f && dbias[1] == 32.0f);

        memcpy(out, one, sizeof(out));
        rows_center_running(running, out, 0.5f, ROWS, C); /* means are 3 and 4 */
        assert_true(running[0] == 1.5f && running[1] == 3.0f);
        assert_true(out[0] == -0.5f && out[1] == -1.0f && out[5] == 3.0f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
