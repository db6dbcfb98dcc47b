/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/nonfinite.h"
#include "tests/test.h"
#include <float.h>
#include <math.h>

static void test_counts(void **state) {
        enum { N = (1 << 20) + 77 };
        float *x = calloc(N, sizeof(*x));
        static const uint16_t bf16[] = {0x7f80, 0xff80, 0x7fc0, 0x7f7f, 0, 0x8000, 0xffff};

        assert_true(nonfinite_count_f32(x, N) == 0);
        x[0] = FLT_MAX;
        x[1] = -FLT_MIN;
        assert_true(nonfinite_count_f32(x, N) == 0);
        x[2] = INFINITY;
        x[1 << 20] = -INFINITY;
        x[N - 1] = NAN;
        assert_true(nonfinite_count_f32(x, N) == 3);
        assert_true(nonfinite_count_f32(x, N - 1) == 2);
        assert_true(nonfinite_count_f32(x, 0) == 0);
        for (size_t i = 0; i < N; i++)
                x[i] = NAN;
        assert_true(nonfinite_count_f32(x, N) == N);
        assert_true(nonfinite_count_bf16(bf16, 7) == 4);
        free(x);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_counts),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
