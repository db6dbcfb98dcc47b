/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/exp.h"
#include "tests/test.h"
#include <math.h>

static void test_accuracy(void **state) {
        double worst = 0;

        for (int i = -87300; i < 88300; i++) {
                float f = (float) (i * 0.001 + 0.0001);
                double wanted = exp((double) f);
                double ulp = fabs((double) exp_f32(f) - wanted) / (wanted * 0x1p-23);
                worst = fmax(worst, ulp);
        }
        assert_true(worst < 2.0);
        assert_true(exp_f32(0.0f) == 1.0f);
}

static void test_limits(void **state) {
        assert_true(exp_f32(-INFINITY) > 0.0f && exp_f32(-INFINITY) < 1.3e-38f);
        assert_true(exp_f32(-1000.0f) == exp_f32(-87.33f));
        assert_true(isfinite(exp_f32(INFINITY)) && exp_f32(INFINITY) > 2e38f);
        assert_true(isnan(exp_f32(NAN)));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_accuracy),
                cmocka_unit_test(test_limits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
