/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"
#include "kernels/nonfinite.h"
#include "tests/kernels/gpu_test.h"

static void check(const void *x, enum gpu_type type, size_t count, uint64_t wanted) {
        uint64_t before = 5, got;
        void *input = gpu_test_copy(x, count * (type == GPU_F32 ? 4 : 2));
        uint64_t *sum = gpu_test_copy(&before, sizeof before);
        gpu_test_ok(gpu_nonfinite(gpu_test_stream(), sum, input, type, count));
        gpu_test_fetch(&got, sum, sizeof got);
        assert_int_equal(got, before + wanted);
        gpu_test_free(input);
        gpu_test_free(sum);
}

static void test_counts(void **state) {
        float x[9999];
        for (const size_t *count = gpu_test_counts(); *count != SIZE_MAX; count++) {
                gpu_test_fill(x, *count, (uint32_t) *count, true);
                check(x, GPU_F32, *count, nonfinite_count_f32(x, *count));
                check(x, GPU_BF16, *count, nonfinite_count_bf16((const uint16_t *) x, *count));
                check(x, GPU_F16, *count, dtype_non_finite_count(x, CAIRN_F16, *count));
        }
}

static void test_every_code(void **state) {
        static uint16_t codes[1 << 16];
        for (uint32_t i = 0; i < 1 << 16; i++)
                codes[i] = (uint16_t) i;
        check(codes, GPU_BF16, 1 << 16, 2 * 128);
        check(codes, GPU_F16, 1 << 16, 2 * 1024);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_counts),
                cmocka_unit_test(test_every_code),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
