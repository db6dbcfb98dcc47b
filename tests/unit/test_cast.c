/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"
#include "kernels/cast.h"
#include "tests/test.h"
#include <math.h>

static uint16_t bf16(uint32_t bits) {
        float f;
        memcpy(&f, &bits, sizeof(f));
        return cast_bf16_of_f32(f);
}

static void test_rounding(void **state) {
        assert_int_equal(bf16(0x3f800000), 0x3f80);
        assert_int_equal(bf16(0x3f808000), 0x3f80); /* a tie goes to the even one below */
        assert_int_equal(bf16(0x3f818000), 0x3f82); /* and to the even one above */
        assert_int_equal(bf16(0x3f808001), 0x3f81);
        assert_int_equal(bf16(0x3f807fff), 0x3f80);
        assert_int_equal(bf16(0x7f7fffff), 0x7f80); /* the largest float rounds to infinity */
        assert_int_equal(bf16(0xff800000), 0xff80);
        assert_int_equal(bf16(0x80000000), 0x8000);
        assert_int_equal(bf16(0x00000001), 0x0000);
        assert_int_equal(bf16(0x7f800001), 0x7fc0); /* a NaN whose payload is cut off stays one */
        assert_int_equal(bf16(0xffffffff), 0xffff);
}

static void test_every_bf16_comes_back(void **state) {
        for (uint32_t i = 0; i < 65536; i++) {
                uint16_t source = (uint16_t) i, back;
                float wide;
                cast_bf16_to_f32(&wide, &source, 1);
                cast_f32_to_bf16(&back, &wide, 1);
                assert_int_equal(back, isnan(wide) ? source | 0x40 : source);
        }
}

static void test_same_as_the_table(void **state) {
        enum { N = 1 << 16 };
        static float source[N];
        static uint16_t ours[N], theirs[N];
        struct conversion_result result;

        for (uint32_t i = 0; i < N; i++) {
                uint32_t bits = i * 65537u + (i << 11 ^ i >> 3);
                memcpy(&source[i], &bits, sizeof(bits));
        }
        cast_f32_to_bf16(ours, source, N);
        assert_int_equal(dtype_convert(theirs, CAIRN_BF16, source, CAIRN_F32, N, &result, NULL), 0);
        for (uint32_t i = 0; i < N; i++)
                if (!isnan(source[i]))
                        assert_int_equal(ours[i], theirs[i]);
}

static void test_every_f16_comes_back(void **state) {
        for (uint32_t i = 0; i < 65536; i++) {
                uint16_t source = (uint16_t) i, back;
                float wide;
                cast_f16_to_f32(&wide, &source, 1);
                cast_f32_to_f16(&back, &wide, 1);
                assert_int_equal(back, isnan(wide) ? source | 0x200 : source);
        }
}

/* Around every value that f16 has, where rounding goes one way or the other, and all over F32. */
static void test_f16_is_the_tables(void **state) {
        enum { N = 1 << 19 };
        float *source = malloc(N * sizeof(*source));
        uint16_t *ours = malloc(N * sizeof(*ours)), *theirs = malloc(N * sizeof(*theirs));
        struct conversion_result result;

        for (uint32_t i = 0; i < N; i++) {
                uint32_t bits = i * 8209u + (i << 11 ^ i >> 3);
                if (i % 2) {
                        uint16_t value = (uint16_t) (i >> 3);
                        float f = cast_f32_of_f16(value);
                        memcpy(&bits, &f, sizeof(bits));
                        bits += (i & 2 ? 0x1000u : 0x800u) + (i >> 2 & 1u) - (i >> 1 & 1u);
                }
                memcpy(&source[i], &bits, sizeof(bits));
        }
        cast_f32_to_f16(ours, source, N);
        assert_int_equal(dtype_convert(theirs, CAIRN_F16, source, CAIRN_F32, N, &result, NULL), 0);
        for (uint32_t i = 0; i < N; i++)
                if (ours[i] != theirs[i])
                        fail_msg("%a: %04x, the table says %04x", (double) source[i], ours[i],
                                 theirs[i]);
        free(source);
        free(ours);
        free(theirs);
}

/* NaN with them: sign and upper bits stay, and it becomes quiet. */
static void test_every_code_widens_as_in_the_table(void **state) {
        for (uint32_t i = 0; i < 65536; i++) {
                uint16_t code = (uint16_t) i;
                float wanted, bf16 = cast_f32_of_bf16(code), f16 = cast_f32_of_f16(code);
                assert_int_equal(dtype_convert(&wanted, CAIRN_F32, &code, CAIRN_F16, 1, NULL, NULL),
                                 0);
                assert_memory_equal(&f16, &wanted, sizeof wanted);
                assert_int_equal(
                        dtype_convert(&wanted, CAIRN_F32, &code, CAIRN_BF16, 1, NULL, NULL), 0);
                assert_memory_equal(&bf16, &wanted, sizeof wanted);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_rounding),
                cmocka_unit_test(test_every_bf16_comes_back),
                cmocka_unit_test(test_same_as_the_table),
                cmocka_unit_test(test_every_f16_comes_back),
                cmocka_unit_test(test_f16_is_the_tables),
                cmocka_unit_test(test_every_code_widens_as_in_the_table),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
