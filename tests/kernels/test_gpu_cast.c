/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"
#include "tests/kernels/gpu_test.h"
#include <stdlib.h>
#include <string.h>

static const uint32_t dtypes[] = {
        [GPU_F32] = CAIRN_F32, [GPU_BF16] = CAIRN_BF16, [GPU_F16] = CAIRN_F16};

static void check_cast(enum gpu_type to, enum gpu_type from, const void *source, size_t count) {
        size_t to_bytes = count * dtype_info(dtypes[to])->bytes;
        size_t from_bytes = count * dtype_info(dtypes[from])->bytes;
        struct conversion_result wanted_losses = {0};
        struct gpu_cast_report zero = {0}, losses;
        void *wanted = malloc(to_bytes + 1), *got = malloc(to_bytes + 1);
        void *input = gpu_test_copy(source, from_bytes), *output = gpu_test_new(to_bytes);
        struct gpu_cast_report *report = gpu_test_copy(&zero, sizeof zero);

        assert_int_equal(dtype_convert(wanted, dtypes[to], source, dtypes[from], count,
                                       &wanted_losses, NULL),
                         0);
        gpu_test_ok(gpu_cast(gpu_test_stream(), output, to, input, from, count, report));
        gpu_test_fetch(got, output, to_bytes);
        gpu_test_same_bytes(got, wanted, to_bytes, "cast");
        gpu_test_fetch(&losses, report, sizeof losses);
        assert_int_equal(losses.overflows, wanted_losses.overflow_count);
        assert_int_equal(losses.underflows, wanted_losses.underflow_count);
        assert_int_equal(losses.inexact, wanted_losses.inexact_count);
        assert_true(losses.largest_error == wanted_losses.error_abs_max);
        gpu_test_free(input);
        gpu_test_free(output);
        gpu_test_free(report);
        free(wanted);
        free(got);
}

static void test_all_pairs(void **state) {
        float x[9999];
        for (const size_t *count = gpu_test_counts(); *count != SIZE_MAX; count++) {
                gpu_test_fill(x, *count, (uint32_t) *count, true);
                for (int to = 0; to < 3; to++)
                        for (int from = 0; from < 3; from++)
                                if (*count < 300 || to != from)
                                        check_cast((enum gpu_type) to, (enum gpu_type) from, x,
                                                   *count);
        }
}

/* Each code of both narrow types. */
static void test_all_codes(void **state) {
        static uint16_t codes[1 << 16];
        for (uint32_t i = 0; i < 1 << 16; i++)
                codes[i] = (uint16_t) i;
        check_cast(GPU_F32, GPU_BF16, codes, 1 << 16);
        check_cast(GPU_F32, GPU_F16, codes, 1 << 16);
        check_cast(GPU_F16, GPU_BF16, codes, 1 << 16);
        check_cast(GPU_BF16, GPU_F16, codes, 1 << 16);
}

/* More elements than threads, without a report. */
static void test_large(void **state) {
        enum { COUNT = 1100003 };
        float *x = malloc(COUNT * sizeof *x);
        uint16_t *wanted = malloc(COUNT * sizeof *wanted), *got = malloc(COUNT * sizeof *got);
        gpu_test_fill(x, COUNT, 7, true);
        void *input = gpu_test_copy(x, COUNT * sizeof *x);
        void *output = gpu_test_new(COUNT * sizeof *got);
        assert_int_equal(dtype_convert(wanted, CAIRN_F16, x, CAIRN_F32, COUNT, NULL, NULL), 0);
        gpu_test_ok(gpu_cast(gpu_test_stream(), output, GPU_F16, input, GPU_F32, COUNT, NULL));
        gpu_test_fetch(got, output, COUNT * sizeof *got);
        gpu_test_same_bytes(got, wanted, COUNT * sizeof *got, "cast");
        gpu_test_free(input);
        gpu_test_free(output);
        free(x);
        free(wanted);
        free(got);
}

static void test_refused(void **state) {
        assert_int_not_equal(
                gpu_cast(gpu_test_stream(), NULL, (enum gpu_type) 3, NULL, GPU_F32, 1, NULL), 0);
        gpu_test_ok(gpu_cast(gpu_test_stream(), NULL, GPU_F32, NULL, GPU_F32, 0, NULL));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_all_pairs),
                cmocka_unit_test(test_all_codes),
                cmocka_unit_test(test_large),
                cmocka_unit_test(test_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
