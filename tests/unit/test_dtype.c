/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"
#include "tests/test.h"

#include <math.h>

/* ---- an independent reference: the definition of each format, and the nearest of all its values
 * ---- */

struct reference {
        uint32_t dtype;
        int exponent_bits, mantissa_bits;
        bool has_infinity;
};
static const struct reference references[] = {
        {CAIRN_F16, 5, 10, true},
        {CAIRN_BF16, 8, 7, true},
        {CAIRN_F8E4M3, 4, 3, false},
        {CAIRN_F8E5M2, 5, 2, true},
};
#define REFERENCE_COUNT (sizeof references / sizeof references[0])

static uint32_t code_count(const struct reference *r) {
        return 1u << (1 + r->exponent_bits + r->mantissa_bits);
}

static long double value_of(const struct reference *r, uint32_t code) {
        uint32_t mantissa = code & ((1u << r->mantissa_bits) - 1);
        uint32_t exponent = code >> r->mantissa_bits & ((1u << r->exponent_bits) - 1);
        int bias = (1 << (r->exponent_bits - 1)) - 1;
        long double sign = code >> (r->exponent_bits + r->mantissa_bits) ? -1 : 1;
        bool ones = exponent == (1u << r->exponent_bits) - 1;

        if (ones && r->has_infinity)
                return mantissa ? NAN : sign * INFINITY;
        if (ones && mantissa == (1u << r->mantissa_bits) - 1)
                return NAN;
        long double fraction = ldexpl(mantissa, -r->mantissa_bits) + (exponent ? 1 : 0);
        return sign * ldexpl(fraction, (exponent ? (int) exponent : 1) - bias);
}

static uint32_t read_code(uint32_t dtype, const void *p) {
        uint16_t half;
        uint8_t byte;

        memcpy(&byte, p, 1);
        if (dtype_info(dtype)->bytes == 1)
                return byte;
        memcpy(&half, p, 2);
        return half;
}

static uint32_t convert_from_double(uint32_t dtype, double v, struct conversion_result *ret) {
        uint8_t code[2] = {0};
        assert_int_equal(dtype_convert(code, dtype, &v, CAIRN_F64, 1, ret, NULL), 0);
        return read_code(dtype, code);
}

static double convert_to_double(uint32_t dtype, uint32_t code) {
        uint16_t half = (uint16_t) code;
        uint8_t byte = (uint8_t) code;
        double v = 0;
        const void *source = dtype_info(dtype)->bytes == 1 ? (const void *) &byte : &half;
        assert_int_equal(dtype_convert(&v, CAIRN_F64, source, dtype, 1, NULL, NULL), 0);
        return v;
}

static void test_every_code_decodes_exactly_and_comes_back(void **state) {
        for (size_t k = 0; k < REFERENCE_COUNT; k++) {
                const struct reference *r = &references[k];
                for (uint32_t code = 0; code < code_count(r); code++) {
                        long double expected = value_of(r, code);
                        double v = convert_to_double(r->dtype, code);
                        struct conversion_result result;
                        uint32_t again = convert_from_double(r->dtype, v, &result);
                        assert_int_equal(result.inexact_count, 0);
                        if (isnan(expected)) {
                                assert_true(isnan(v));
                                assert_true(isnan(value_of(r, again)));
                                continue;
                        }
                        assert_true(v == (double) expected && !signbit(v) == !signbit(expected));
                        assert_int_equal(again, code);
                        /* The same by way of f32, which holds all of them too. */
                        float single;
                        uint8_t back[2] = {0};
                        assert_int_equal(
                                dtype_convert(&single, CAIRN_F32, &v, CAIRN_F64, 1, NULL, NULL), 0);
                        assert_int_equal(
                                dtype_convert(back, r->dtype, &single, CAIRN_F32, 1, NULL, NULL),
                                0);
                        assert_int_equal(read_code(r->dtype, back), code);
                }
        }
}

/* Between each pair of neighbours: the half-way point goes to the even code, what is a hair beside
 * it to its own side. Both signs. This covers every rounding decision there is. */
static void test_every_rounding_boundary(void **state) {
        for (size_t k = 0; k < REFERENCE_COUNT; k++) {
                const struct reference *r = &references[k];
                uint32_t sign = code_count(r) / 2;
                for (uint32_t code = 0; code + 1 < sign; code++) {
                        long double low = value_of(r, code), high = value_of(r, code + 1);
                        if (!isfinite(low) || isnan(high))
                                break;
                        if (isinf(high)) /* as if the exponent went on */
                                high = low + (low - value_of(r, code - 1));
                        double half = (double) ((low + high) / 2);
                        uint32_t even = code & 1 ? code + 1 : code;
                        double values[] = {half, nextafter(half, 0), nextafter(half, INFINITY)};
                        uint32_t expected[] = {even, code, code + 1};
                        for (size_t i = 0; i < 3; i++) {
                                assert_int_equal(convert_from_double(r->dtype, values[i], NULL),
                                                 expected[i]);
                                assert_int_equal(convert_from_double(r->dtype, -values[i], NULL),
                                                 expected[i] | sign);
                        }
                }
        }
}

static void test_overflow_and_underflow(void **state) {
        struct conversion_result r;

        assert_int_equal(convert_from_double(CAIRN_F16, 65519.999, &r), 0x7bff);
        assert_int_equal(r.overflow_count, 0);
        assert_int_equal(convert_from_double(CAIRN_F16, 65520, &r), 0x7c00);
        assert_int_equal(r.overflow_count, 1);
        assert_int_equal(convert_from_double(CAIRN_F16, -1e300, &r), 0xfc00);
        assert_int_equal(r.overflow_count, 1);
        assert_int_equal(convert_from_double(CAIRN_F16, INFINITY, &r), 0x7c00);
        assert_int_equal(r.overflow_count, 0);
        assert_int_equal(convert_from_double(CAIRN_F16, 2.9e-8, &r), 0);
        assert_int_equal(r.underflow_count, 1);
        assert_int_equal(convert_from_double(CAIRN_F16, 3e-8, &r), 1);
        assert_int_equal(r.underflow_count, 0);
        assert_int_equal(convert_from_double(CAIRN_F16, -0x1p-1074, &r), 0x8000);
        assert_int_equal(r.underflow_count, 1);
        /* OCP E4M3 without saturation: 464 is the tie between 448 and what would be 480. */
        assert_int_equal(convert_from_double(CAIRN_F8E4M3, 448, &r), 0x7e);
        assert_int_equal(convert_from_double(CAIRN_F8E4M3, 464, &r), 0x7e);
        assert_int_equal(r.overflow_count, 0);
        assert_int_equal(convert_from_double(CAIRN_F8E4M3, nextafter(464, 500), &r), 0x7f);
        assert_int_equal(r.overflow_count, 1);
        assert_int_equal(convert_from_double(CAIRN_F8E4M3, -1e9, &r), 0xff);
        assert_int_equal(convert_from_double(CAIRN_F8E4M3, INFINITY, &r), 0x7f);
        assert_int_equal(r.overflow_count, 0);
        assert_int_equal(convert_from_double(CAIRN_F8E5M2, 61440, &r), 0x7c);
        assert_int_equal(r.overflow_count, 1);
        assert_int_equal(convert_from_double(CAIRN_F8E5M2, 61439, &r), 0x7b);
        assert_int_equal(convert_from_double(CAIRN_BF16, 3.4e38, &r), 0x7f80);
        assert_int_equal(r.overflow_count, 1);
        /* The largest error is of what was stored, not of what overflowed. */
        float many[] = {1.0f, 1.001f, 70000.0f, 1e-9f, NAN, -INFINITY, 0.0f, -0.0f};
        uint16_t half[8];
        assert_int_equal(dtype_convert(half, CAIRN_F16, many, CAIRN_F32, 8, &r, NULL), 0);
        assert_int_equal(r.overflow_count, 1);
        assert_int_equal(r.underflow_count, 1);
        assert_int_equal(r.inexact_count, 3);
        assert_true(r.error_abs_max ==
                    fabs((double) 1.001f - convert_to_double(CAIRN_F16, half[1])));
        assert_int_equal(half[7], 0x8000);
}

static void test_e8m0(void **state) {
        struct conversion_result r;

        for (uint32_t code = 0; code < 255; code++) {
                double v = ldexp(1, (int) code - 127);
                assert_true(convert_to_double(CAIRN_E8M0, code) == v);
                assert_int_equal(convert_from_double(CAIRN_E8M0, v, &r), code);
                assert_int_equal(r.inexact_count, 0);
                uint32_t even = code & 1 ? code + 1 : code;
                assert_int_equal(convert_from_double(CAIRN_E8M0, 1.5 * v, NULL), even);
                assert_int_equal(convert_from_double(CAIRN_E8M0, nextafter(1.5 * v, 0), NULL),
                                 code);
                assert_int_equal(
                        convert_from_double(CAIRN_E8M0, nextafter(1.5 * v, INFINITY), NULL),
                        code + 1);
        }
        assert_true(isnan(convert_to_double(CAIRN_E8M0, 0xff)));
        assert_int_equal(convert_from_double(CAIRN_E8M0, 0, &r), 0);
        assert_int_equal(r.inexact_count, 1);
        assert_int_equal(convert_from_double(CAIRN_E8M0, -1, &r), 0xff);
        assert_int_equal(r.overflow_count, 1);
        assert_int_equal(convert_from_double(CAIRN_E8M0, 1e39, &r), 0xff);
        assert_int_equal(convert_from_double(CAIRN_E8M0, NAN, &r), 0xff);
        assert_int_equal(r.overflow_count, 0);
}

/* f32 to bf16 is the upper half, rounded: a formula that shares nothing with the code. */
static void test_bf16_by_the_upper_half(void **state) {
        uint64_t seed = 1;

        for (int i = 0; i < 2000000; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                uint32_t bits = (uint32_t) (seed >> 32);
                uint16_t code;
                float v;
                memcpy(&v, &bits, 4);
                assert_int_equal(dtype_convert(&code, CAIRN_BF16, &v, CAIRN_F32, 1, NULL, NULL), 0);
                if (isnan(v)) {
                        assert_int_equal(code, bits >> 16 | 0x40);
                        continue;
                }
                assert_int_equal(code, (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
        }
}

#define CONVERT(target_type, target, source_type, source, ...)                                  \
        ({                                                                                      \
                source_type from_ = (__VA_ARGS__);                                              \
                target_type to_;                                                                \
                assert_int_equal(dtype_convert(&to_, target, &from_, source, 1, &result, NULL), \
                                 0);                                                            \
                to_;                                                                            \
        })

static void test_integers(void **state) {
        struct conversion_result result;

        assert_true(CONVERT(int8_t, CAIRN_I8, int64_t, CAIRN_I64, 200) == 127);
        assert_int_equal(result.overflow_count, 1);
        assert_true(CONVERT(uint8_t, CAIRN_U8, int16_t, CAIRN_I16, -1) == 0);
        assert_int_equal(result.overflow_count, 1);
        assert_true(CONVERT(int64_t, CAIRN_I64, uint64_t, CAIRN_U64, UINT64_MAX) == INT64_MAX);
        assert_int_equal(result.overflow_count, 1);
        assert_true(CONVERT(uint64_t, CAIRN_U64, int64_t, CAIRN_I64, INT64_MAX) == INT64_MAX);
        assert_int_equal(result.inexact_count, 0);
        assert_true(CONVERT(int64_t, CAIRN_I64, double, CAIRN_F64, 0x1p62) == INT64_C(1) << 62);
        assert_int_equal(result.inexact_count, 0);
        assert_true(CONVERT(int64_t, CAIRN_I64, double, CAIRN_F64, 0x1p63) == INT64_MAX);
        assert_int_equal(result.overflow_count, 1);
        assert_true(CONVERT(int64_t, CAIRN_I64, double, CAIRN_F64, -0x1p63) == INT64_MIN);
        assert_int_equal(result.inexact_count, 0);
        assert_true(CONVERT(int32_t, CAIRN_I32, float, CAIRN_F32, 2.5f) == 2);
        assert_int_equal(result.inexact_count, 1);
        assert_int_equal(result.overflow_count, 0);
        assert_true(CONVERT(int32_t, CAIRN_I32, float, CAIRN_F32, -0.3f) == 0);
        assert_int_equal(result.underflow_count, 1);
        assert_true(CONVERT(int32_t, CAIRN_I32, float, CAIRN_F32, NAN) == 0);
        assert_int_equal(result.overflow_count, 1);
        assert_true(CONVERT(double, CAIRN_F64, uint8_t, CAIRN_BOOL, 1) == 1);
        assert_true(CONVERT(double, CAIRN_F64, int64_t, CAIRN_I64, (INT64_C(1) << 53) + 1) ==
                    0x1p53);
        assert_int_equal(result.inexact_count, 1);
        /* Rounded once: by way of f64 this would become 2^60 (a tie), it is above the tie. */
        assert_true(CONVERT(float, CAIRN_F32, int64_t, CAIRN_I64,
                            (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1) == 0x1p60f + 0x1p37f);
        uint16_t half = CONVERT(uint16_t, CAIRN_BF16, int64_t, CAIRN_I64,
                                (INT64_C(1) << 60) + (INT64_C(1) << 52) + 1);
        assert_true(convert_to_double(CAIRN_BF16, half) == 0x1p60 + 0x1p53);
}

static void test_pairs_without_meaning(void **state) {
        uint8_t source[16] = {1}, target[16];
        static const uint32_t pairs[][2] = {{CAIRN_C64, CAIRN_F32},  {CAIRN_F32, CAIRN_C64},
                                            {CAIRN_F32, CAIRN_BOOL}, {CAIRN_U8, CAIRN_BOOL},
                                            {CAIRN_C128, CAIRN_I64}, {0, CAIRN_F32},
                                            {CAIRN_F32, 0},          {99, CAIRN_F32}};

        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                memset(target, 0x5a, sizeof target);
                assert_int_equal(
                        dtype_convert(target, pairs[i][1], source, pairs[i][0], 1, NULL, &e),
                        CAIRN_ERR_UNSUPPORTED);
                for (size_t k = 0; k < sizeof target; k++)
                        assert_int_equal(target[k], 0x5a);
        }
        double wide[2] = {1.5, 1e300};
        float narrow[2];
        struct conversion_result r;
        assert_int_equal(dtype_convert(narrow, CAIRN_C64, wide, CAIRN_C128, 1, &r, NULL), 0);
        assert_true(narrow[0] == 1.5f && isinf(narrow[1]) && r.overflow_count == 1);
}

static void test_same_type_is_the_same_bytes(void **state) {
        uint8_t source[64], target[64];

        for (size_t i = 0; i < sizeof source; i++)
                source[i] = (uint8_t) (255 - i * 7);
        for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++) {
                uint64_t count = sizeof source / dtype_info(dtype)->bytes;
                memset(target, 0, sizeof target);
                assert_int_equal(dtype_convert(target, dtype, source, dtype, count, NULL, NULL), 0);
                assert_memory_equal(target, source, sizeof source);
        }
}

/* NaN stays NaN, with its sign and payload as far as they fit; signalling ones become quiet. */
static void test_nan(void **state) {
        uint32_t bits = 0xff812345, back;
        uint16_t half;
        float v;

        memcpy(&v, &bits, 4);
        assert_int_equal(dtype_convert(&half, CAIRN_BF16, &v, CAIRN_F32, 1, NULL, NULL), 0);
        assert_int_equal(half, 0xffc1);
        assert_int_equal(dtype_convert(&back, CAIRN_F32, &half, CAIRN_BF16, 1, NULL, NULL), 0);
        assert_int_equal(back, 0xffc10000);
        bits = 0x7f800001;
        memcpy(&v, &bits, 4);
        assert_int_equal(dtype_convert(&half, CAIRN_F16, &v, CAIRN_F32, 1, NULL, NULL), 0);
        assert_int_equal(half, 0x7e00);
}

static void test_tables(void **state) {
        assert_null(dtype_info(0));
        assert_null(dtype_info(19));
        assert_null(dtype_info(UINT32_MAX));
        assert_null(role_name(0));
        assert_null(role_name(13));
        for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++)
                assert_int_equal(dtype_from_name(dtype_info(dtype)->name), dtype);
        for (uint32_t role = CAIRN_PARAMETER; role <= CAIRN_OTHER; role++)
                assert_int_equal(role_from_name(role_name(role)), role);
        assert_int_equal(dtype_from_name("f31"), 0);
        assert_int_equal(role_from_name(""), 0);
}

static void test_shape_bytes(void **state) {
        uint64_t elements = 9, bytes = 9;
        const uint64_t big = UINT64_C(1) << 63;

        assert_true(shape_bytes(NULL, 0, CAIRN_F64, &elements, &bytes));
        assert_true(elements == 1 && bytes == 8);
        assert_true(shape_bytes((uint64_t[]){big, big, 0}, 3, CAIRN_F64, &elements, &bytes));
        assert_true(elements == 0 && bytes == 0);
        assert_true(shape_bytes((uint64_t[]){big}, 1, CAIRN_U8, &elements, &bytes));
        assert_true(elements == big && bytes == big);
        assert_false(shape_bytes((uint64_t[]){big}, 1, CAIRN_F16, &elements, &bytes));
        assert_false(shape_bytes((uint64_t[]){big, 2}, 2, CAIRN_U8, &elements, &bytes));
        assert_false(shape_bytes((uint64_t[]){1}, 1, 0, &elements, &bytes));
        assert_true(elements == big);
        assert_true(shape_bytes((uint64_t[]){(UINT64_C(1) << 31) + 5}, 1, CAIRN_BF16, &elements,
                                &bytes));
        assert_true(bytes == ((UINT64_C(1) << 31) + 5) * 2);
}

static void test_non_finite(void **state) {
        static const struct {
                uint32_t dtype;
                uint64_t bad; /* of all 256 or 65536 codes */
        } rows[] = {{CAIRN_F16, 2 * 1024}, {CAIRN_BF16, 2 * 128}, {CAIRN_F8E4M3, 2},
                    {CAIRN_F8E5M2, 8},     {CAIRN_E8M0, 1},       {CAIRN_U8, 0},
                    {CAIRN_I16, 0}};

        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
                size_t bytes = dtype_info(rows[i].dtype)->bytes;
                size_t count = bytes == 1 ? 256 : 65536;
                uint8_t *codes = malloc(count * bytes);
                assert_non_null(codes);
                for (size_t k = 0; k < count; k++)
                        memcpy(codes + k * bytes, &k, bytes);
                assert_int_equal(dtype_non_finite_count(codes, rows[i].dtype, count), rows[i].bad);
                free(codes);
        }
        float values[131] = {0};
        values[0] = NAN, values[63] = INFINITY, values[64] = -INFINITY, values[130] = -NAN;
        assert_int_equal(dtype_non_finite_count(values, CAIRN_F32, 131), 4);
        assert_int_equal(dtype_non_finite_count(values, CAIRN_F32, 130), 3);
        assert_int_equal(dtype_non_finite_count(values, CAIRN_C64, 65), 3);
        double wide[3] = {0x1p1023, NAN, INFINITY};
        assert_int_equal(dtype_non_finite_count(wide, CAIRN_F64, 3), 2);
}

/* ---- rules ---- */

static int stored(uint32_t role, uint32_t runtime, uint32_t as) {
        return dtype_check_stored(role, runtime, as, NULL);
}

static void test_stored_rules(void **state) {
        for (uint32_t role = CAIRN_PARAMETER; role <= CAIRN_OTHER; role++)
                for (uint32_t dtype = CAIRN_F64; dtype <= CAIRN_C128; dtype++)
                        assert_int_equal(
                                stored(role, dtype, dtype),
                                role == CAIRN_STEP && dtype != CAIRN_F32 ? CAIRN_ERR_MISMATCH : 0);
        assert_int_equal(stored(CAIRN_MOMENT1, CAIRN_F32, CAIRN_BF16), 0);
        assert_int_equal(stored(CAIRN_EMA, CAIRN_F32, CAIRN_F16), 0);
        assert_int_equal(stored(CAIRN_MOMENT2, CAIRN_F32, CAIRN_F16), CAIRN_ERR_MISMATCH);
        assert_int_equal(stored(CAIRN_MOMENT2, CAIRN_F32, CAIRN_BF16), CAIRN_ERR_MISMATCH);
        assert_int_equal(stored(CAIRN_MOMENT2, CAIRN_F64, CAIRN_F32), CAIRN_ERR_MISMATCH);
        assert_int_equal(stored(CAIRN_MOMENT2, CAIRN_BF16, CAIRN_F32), 0);
        assert_int_equal(stored(CAIRN_PARAMETER, CAIRN_F32, CAIRN_BF16), CAIRN_ERR_MISMATCH);
        assert_int_equal(stored(CAIRN_PARAMETER, CAIRN_F16, CAIRN_F32), 0);
        assert_int_equal(stored(CAIRN_MOMENT1, CAIRN_F32, CAIRN_F8E4M3), CAIRN_ERR_MISMATCH);
        assert_int_equal(stored(CAIRN_OTHER, CAIRN_I32, CAIRN_I64), CAIRN_ERR_MISMATCH);
        assert_int_equal(stored(CAIRN_STEP, CAIRN_F32, CAIRN_F64), CAIRN_ERR_MISMATCH);
        assert_int_equal(stored(0, CAIRN_F32, CAIRN_F32), CAIRN_ERR_UNSUPPORTED);
        assert_int_equal(stored(CAIRN_OTHER, 19, 19), CAIRN_ERR_UNSUPPORTED);
}

static int read_step(uint32_t dtype, const void *value, float *ret, int64_t *ret_true,
                     char *message) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = step_from_foreign("optimizer.step", dtype, value, ret, ret_true, &e);
        if (r < 0) {
                assert_string_equal(e.object, "optimizer.step");
                (void) snprintf(message, 512, "%s", e.message);
        }
        return r;
}

/* Steps as a half would hold them, from the decimal number. */
static uint16_t half_of(uint32_t dtype, double v) {
        return (uint16_t) convert_from_double(dtype, v, NULL);
}

static void resume_17_legacy_fp16_step(void **state) {
        char message[512];
        float single = -1;
        int64_t truth = -1;

        for (int64_t step = 0; step <= 2047; step++) {
                uint16_t code = half_of(CAIRN_F16, (double) step);
                assert_int_equal(read_step(CAIRN_F16, &code, &single, &truth, message), 0);
                assert_true(single == (float) step && truth == step);
        }
        for (int64_t step = 0; step <= 255; step++) {
                uint16_t code = half_of(CAIRN_BF16, (double) step);
                assert_int_equal(read_step(CAIRN_BF16, &code, &single, &truth, message), 0);
                assert_true(single == (float) step && truth == step);
        }
        static const struct {
                uint32_t dtype;
                double value;
                const char *range;
        } refused[] = {{CAIRN_F16, 2048, "2048 to 2049"},    {CAIRN_F16, 2050, "2050 to 2050"},
                       {CAIRN_F16, 2052, "2051 to 2053"},    {CAIRN_F16, 4096, "4095 to 4098"},
                       {CAIRN_F16, 65504, "65489 to 65519"}, {CAIRN_F16, INFINITY, "65520 or more"},
                       {CAIRN_BF16, 256, "256 to 257"},      {CAIRN_BF16, 512, "511 to 514"}};
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
                uint16_t code = half_of(refused[i].dtype, refused[i].value);
                single = -1;
                assert_int_equal(read_step(refused[i].dtype, &code, &single, &truth, message),
                                 CAIRN_ERR_MISMATCH);
                print_message("%s\n", message);
                assert_non_null(strstr(message, refused[i].range));
                assert_true(single == -1);
                /* The range is right: all of it rounds to the stored value, its neighbours do not.
                 */
                double low, high;
                if (sscanf(refused[i].range, "%lf to %lf", &low, &high) != 2)
                        continue;
                for (int64_t v = (int64_t) low; v <= (int64_t) high; v++)
                        assert_int_equal(half_of(refused[i].dtype, (double) v), code);
                assert_true(half_of(refused[i].dtype, low - 1) != code);
                assert_true(half_of(refused[i].dtype, high + 1) != code);
        }
        uint16_t bad[] = {half_of(CAIRN_F16, NAN), half_of(CAIRN_F16, -1), half_of(CAIRN_F16, 0.5)};
        for (size_t i = 0; i < 3; i++)
                assert_int_equal(read_step(CAIRN_F16, &bad[i], &single, &truth, message),
                                 CAIRN_ERR_MISMATCH);
}

static void resume_18_legacy_integer_and_fp64_step(void **state) {
        static const int64_t good[] = {0, 1, 2047, 2048, 2049, 65505, 1 << 24};
        static const int64_t bad[] = {(1 << 24) + 1, -1, INT64_MAX, INT64_MIN};
        char message[512];
        float single;
        int64_t truth;

        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
                double wide = (double) good[i];
                assert_int_equal(read_step(CAIRN_I64, &good[i], &single, &truth, message), 0);
                assert_true(single == (float) good[i] && truth == good[i]);
                assert_int_equal(read_step(CAIRN_F64, &wide, &single, &truth, message), 0);
                assert_true(single == (float) good[i] && truth == good[i]);
        }
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                double wide = (double) bad[i];
                assert_int_equal(read_step(CAIRN_I64, &bad[i], &single, &truth, message),
                                 CAIRN_ERR_MISMATCH);
                print_message("%s\n", message);
                assert_int_equal(read_step(CAIRN_F64, &wide, &single, &truth, message),
                                 CAIRN_ERR_MISMATCH);
        }
        double fraction[] = {0.5, 2047.5, NAN, INFINITY, -INFINITY, -0.25};
        for (size_t i = 0; i < sizeof fraction / sizeof fraction[0]; i++) {
                assert_int_equal(read_step(CAIRN_F64, &fraction[i], &single, &truth, message),
                                 CAIRN_ERR_MISMATCH);
                print_message("%s\n", message);
        }
        uint64_t huge = UINT64_MAX;
        assert_int_equal(read_step(CAIRN_U64, &huge, &single, &truth, message), CAIRN_ERR_MISMATCH);
        uint8_t small = 200;
        assert_int_equal(read_step(CAIRN_U8, &small, &single, &truth, message), 0);
        assert_int_equal(truth, 200);
        /* f32 that came without its int64: 2^24 may be 2^24 + 1. */
        float f = 16777215.0f;
        assert_int_equal(read_step(CAIRN_F32, &f, &single, &truth, message), 0);
        assert_int_equal(truth, 16777215);
        f = 16777216.0f;
        assert_int_equal(read_step(CAIRN_F32, &f, &single, &truth, message), CAIRN_ERR_MISMATCH);
        assert_non_null(strstr(message, "16777216 to 16777217"));
        double minus_zero = -0.0;
        assert_int_equal(read_step(CAIRN_F64, &minus_zero, &single, &truth, message), 0);
        assert_true(single == 0 && !signbit(single) && truth == 0);
        assert_int_equal(read_step(CAIRN_BOOL, &small, &single, &truth, message),
                         CAIRN_ERR_MISMATCH);
        assert_int_equal(read_step(CAIRN_F8E4M3, &small, &single, &truth, message),
                         CAIRN_ERR_MISMATCH);
        assert_int_equal(read_step(0, &small, &single, &truth, message), CAIRN_ERR_MISMATCH);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_code_decodes_exactly_and_comes_back),
                cmocka_unit_test(test_every_rounding_boundary),
                cmocka_unit_test(test_overflow_and_underflow),
                cmocka_unit_test(test_e8m0),
                cmocka_unit_test(test_bf16_by_the_upper_half),
                cmocka_unit_test(test_integers),
                cmocka_unit_test(test_pairs_without_meaning),
                cmocka_unit_test(test_same_type_is_the_same_bytes),
                cmocka_unit_test(test_nan),
                cmocka_unit_test(test_tables),
                cmocka_unit_test(test_shape_bytes),
                cmocka_unit_test(test_non_finite),
                cmocka_unit_test(test_stored_rules),
                cmocka_unit_test(resume_17_legacy_fp16_step),
                cmocka_unit_test(resume_18_legacy_integer_and_fp64_step),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
