/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm.h"
#include "tests/kernels/gpu_test.h"
#include <math.h>

enum { LARGE = 300007 };

static void check_same(double got, double wanted, const char *what, size_t index) {
        bool same = got == wanted && signbit(got) == signbit(wanted);
        if (!same && !(isnan(got) && isnan(wanted)))
                fail_msg("%s %zu: %a, %a is right", what, index, got, wanted);
}

static void check_norm(const float *x, size_t chunk, size_t count) {
        size_t chunks = (count + chunk - 1) / chunk;
        double *got = malloc((chunks + 1) * sizeof *got);
        float *input = gpu_test_copy(x, count * sizeof *x);
        double *sums = gpu_test_new(chunks * sizeof *sums);
        gpu_test_ok(gpu_norm_squared(gpu_test_stream(), sums, input, chunk, count));
        gpu_test_fetch(got, sums, chunks * sizeof *got);
        for (size_t i = 0; i < chunks; i++) {
                size_t left = count - i * chunk;
                check_same(got[i], norm_squared_f32(x + i * chunk, left < chunk ? left : chunk),
                           "norm", i);
        }
        gpu_test_free(input);
        gpu_test_free(sums);
        free(got);
}

static void test_norm(void **state) {
        float x[9999];
        for (const size_t *count = gpu_test_counts(); *count != SIZE_MAX; count++)
                for (int special = 0; special < 2; special++) {
                        gpu_test_fill(x, *count, (uint32_t) *count, special);
                        check_norm(x, 64, *count);
                        check_norm(x, 37, *count);
                        check_norm(x, (size_t) 1 << 40, *count);
                }
        assert_int_not_equal(gpu_norm_squared(gpu_test_stream(), NULL, NULL, 0, 1), 0);
}

static void test_large_norm(void **state) {
        float *x = malloc(LARGE * sizeof *x);
        gpu_test_fill(x, LARGE, 9, false);
        check_norm(x, 4096, LARGE);
        check_norm(x, 1, LARGE / 16);
        free(x);
}

static void test_sum(void **state) {
        float x[9999];
        double got;
        for (const size_t *count = gpu_test_counts(); *count != SIZE_MAX; count++)
                for (int special = 0; special < 2; special++) {
                        gpu_test_fill(x, *count, (uint32_t) *count, special);
                        float *input = gpu_test_copy(x, *count * sizeof *x);
                        double *sum = gpu_test_new(sizeof *sum);
                        gpu_test_ok(gpu_sum(gpu_test_stream(), sum, input, *count));
                        gpu_test_fetch(&got, sum, sizeof got);
                        check_same(got, sum_f32(x, *count), "sum of", *count);
                        gpu_test_free(input);
                        gpu_test_free(sum);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_norm),
                cmocka_unit_test(test_large_norm),
                cmocka_unit_test(test_sum),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
