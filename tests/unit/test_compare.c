/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare.h"

#include "tests/test.h"
#include <math.h>

static struct comparison compare(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype,
                                 uint64_t count) {
        struct comparison c = {0};
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_int_equal(compare_elements(a, a_dtype, b, b_dtype, count, &c, &e), 0);
        assert_int_equal(c.elements, count);
        return c;
}

static void test_bits_decide(void **state) {
        const float a[] = {0, 1, NAN, INFINITY, 2}, b[] = {-0.0f, 1, NAN, INFINITY, 2.5f};
        struct comparison c = compare(a, CAIRN_F32, b, CAIRN_F32, 5);
        assert_int_equal(c.different, 2); /* -0 has other bits than 0, but the same value */
        assert_true(c.largest == 0.5);
        assert_int_equal(compare(a, CAIRN_F32, a, CAIRN_F32, 5).different, 0);
}

static void test_nan_and_infinity(void **state) {
        const double a[] = {NAN, 1}, b[] = {1, 1}, c[] = {INFINITY, 1};
        assert_true(isinf(compare(a, CAIRN_F64, b, CAIRN_F64, 2).largest));
        assert_true(isinf(compare(a, CAIRN_F64, c, CAIRN_F64, 2).largest));
        assert_int_equal(compare(c, CAIRN_F64, b, CAIRN_F64, 2).different, 1);
}

static void test_values_decide_between_dtypes(void **state) {
        const float a[] = {1, -0.0f, 3.14159f};
        const uint16_t b[] = {0x3f80, 0x0000, 0x4049}; /* bf16: 1, 0, 3.140625 */
        const int64_t integers[] = {1, 0, 4};
        struct comparison c = compare(a, CAIRN_F32, b, CAIRN_BF16, 3);
        assert_int_equal(c.different, 1);
        assert_true(c.largest > 0.0009 && c.largest < 0.001);
        assert_int_equal(compare(a, CAIRN_F32, integers, CAIRN_I64, 3).different, 1);
}

static void test_complex(void **state) {
        const float a[] = {1, 2, 3, 4}, b[] = {1, 2, 3, 7};
        struct comparison c = compare(a, CAIRN_C64, b, CAIRN_C64, 2);
        assert_int_equal(c.different, 1);
        assert_true(c.largest == 3);
        assert_false(compare_possible(CAIRN_C64, CAIRN_F32));
        assert_true(compare_possible(CAIRN_C64, CAIRN_C128));
        assert_true(compare_possible(CAIRN_BOOL, CAIRN_F8E4M3));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bits_decide),
                cmocka_unit_test(test_nan_and_infinity),
                cmocka_unit_test(test_values_decide_between_dtypes),
                cmocka_unit_test(test_complex),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
