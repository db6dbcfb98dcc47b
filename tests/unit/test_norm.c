/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm.h"
#include "tests/unit/gradient.h"

static void test_values(void **state) {
        float x[1000];

        gradient_fill(x, 1000, 1);
        for (size_t count = 0; count <= 1000; count += 37) {
                double wanted = 0;
                for (size_t i = 0; i < count; i++)
                        wanted += (double) x[i] * (double) x[i];
                gradient_close(norm_squared_f32(x, count), wanted, 1e-14, "norm", count);
        }
        x[500] = 3e38f; /* its square is beyond float */
        assert_true(isfinite(norm_squared_f32(x, 1000)));
        x[3] = INFINITY;
        assert_true(isinf(norm_squared_f32(x, 1000)));
        x[4] = NAN;
        assert_true(isnan(norm_squared_f32(x, 1000)));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
