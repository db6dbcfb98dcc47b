/* SPDX-License-Identifier: Apache-2.0
 *
 * convert.c - dtype_convert and dtype_non_finite_count (dtype.h).
 *
 * Real floats go through blocks of doubles: a double holds every value of every other real float,
 * so that decoding is exact and encoding rounds once. Integers go through long double, whose 64
 * bits of mantissa hold every 64-bit integer. What was stored is decoded again and compared, so
 * that the counts describe the result and not the arithmetic that made it.
 */
#include "base/bytes.h"
#include "format/dtype.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

static_assert(LDBL_MANT_DIG >= 64, "long double holds every 64-bit integer");

#define BLOCK 256 /* elements; both buffers stay in the first-level cache */

/* ---- one element, real floats below 32 bits ---- */

struct float_format {
        unsigned exponent_bits, mantissa_bits;
        bool has_infinity; /* no: the all-ones exponent holds numbers, all ones is NaN (OCP E4M3) */
};
static const struct float_format format_f16 = {5, 10, true};
static const struct float_format format_bf16 = {8, 7, true};
static const struct float_format format_f8e4m3 = {4, 3, false};
static const struct float_format format_f8e5m2 = {5, 2, true};

static inline uint64_t double_bits(double v) {
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        return bits;
}

static inline double bits_double(uint64_t bits) {
        double v;
        memcpy(&v, &bits, sizeof v);
        return v;
}

/* NaN keeps its sign and the upper bits of its payload and becomes quiet, as hardware does. */
static inline uint32_t encode_nan(uint64_t bits, struct float_format f) {
        uint32_t mantissa_mask = (1u << f.mantissa_bits) - 1;
        uint32_t exponent = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;

        if (!f.has_infinity)
                return exponent | mantissa_mask;
        uint32_t payload = (uint32_t) (bits >> (52 - f.mantissa_bits)) & mantissa_mask;
        return exponent | payload | 1u << (f.mantissa_bits - 1);
}

static inline uint32_t encode(double v, struct float_format f) {
        uint64_t bits = double_bits(v), magnitude = bits & ~(UINT64_C(1) << 63);
        uint32_t sign = (uint32_t) (bits >> 63) << (f.exponent_bits + f.mantissa_bits);
        uint32_t exponent_ones = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
        uint32_t overflow =
                f.has_infinity ? exponent_ones : exponent_ones | ((1u << f.mantissa_bits) - 1);
        int exponent_min = 2 - (1 << (f.exponent_bits - 1)); /* of normal numbers */

        if (magnitude > UINT64_C(0x7ff) << 52)
                return sign | encode_nan(bits, f);
        int exponent = (int) (magnitude >> 52) - 1023;
        if (exponent < exponent_min - (int) f.mantissa_bits - 1)
                return sign; /* below half of the least subnormal; doubles' subnormals are here */
        if (exponent > 1 << (f.exponent_bits - 1))
                return sign | overflow;
        uint64_t mantissa = (magnitude & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
        unsigned shift = 52 - f.mantissa_bits;
        uint32_t base = 0;
        if (exponent < exponent_min)
                shift += (unsigned) (exponent_min - exponent);
        else /* the implicit bit adds one more to the exponent field */
                base = (uint32_t) (exponent - exponent_min) << f.mantissa_bits;
        uint64_t kept = mantissa >> shift, rest = mantissa & ((UINT64_C(1) << shift) - 1);
        uint64_t half = UINT64_C(1) << (shift - 1);
        kept += rest > half || (rest == half && (kept & 1));
        uint32_t code = base + (uint32_t) kept; /* a carry grows the exponent, as it should */
        return sign | (code >= overflow ? overflow : code);
}

static inline double decode(uint32_t code, struct float_format f) {
        uint32_t mantissa_mask = (1u << f.mantissa_bits) - 1;
        uint32_t exponent_ones = (1u << f.exponent_bits) - 1;
        uint64_t sign = (uint64_t) (code >> (f.exponent_bits + f.mantissa_bits) & 1) << 63;
        uint32_t exponent = code >> f.mantissa_bits & exponent_ones;
        uint64_t mantissa = code & mantissa_mask;
        int exponent_min = 2 - (1 << (f.exponent_bits - 1));

        bool special = exponent == exponent_ones && (f.has_infinity || mantissa == mantissa_mask);
        if (special && mantissa) /* quiet, with its payload */
                return bits_double(sign | UINT64_C(0x7ff8) << 48 |
                                   mantissa << (52 - f.mantissa_bits));
        if (special)
                return bits_double(sign | UINT64_C(0x7ff) << 52);
        if (exponent == 0) {
                double unit =
                        bits_double((uint64_t) (1023 + exponent_min - (int) f.mantissa_bits) << 52);
                double v = (double) mantissa * unit;
                return bits_double(sign | double_bits(v));
        }
        return bits_double(sign | (uint64_t) ((int) exponent - 1 + exponent_min + 1023) << 52 |
                           mantissa << (52 - f.mantissa_bits));
}

/* E8M0 has neither sign nor zero nor infinity: 2^(code - 127). Zero and what lies below become
 * 2^-127, negative and too large values NaN. */
static uint8_t encode_e8m0(double v) {
        int exponent;

        if (isnan(v) || v < 0 || isinf(v))
                return 0xff;
        if (v <= 0x1p-127)
                return 0;
        double fraction = frexp(v, &exponent); /* v = fraction * 2^exponent, fraction in [0.5, 1) */
        int code = exponent - 1 + 127;
        /* 0.75 lies half way between two powers: to the even code. */
        code += fraction > 0.75 || (fraction == 0.75 && (code & 1));
        return code >= 0xff ? 0xff : (uint8_t) code;
}

static double decode_e8m0(uint8_t code) {
        return code == 0xff ? (double) NAN : bits_double((uint64_t) (code - 127 + 1023) << 52);
}

/* ---- blocks of real floats ---- */

#define DECODE_BLOCK(name, type, expression)                                                     \
        static void decode_block_##name(double *target, const unsigned char *source, size_t n) { \
                for (size_t i = 0; i < n; i++) {                                                 \
                        type v;                                                                  \
                        memcpy(&v, source + i * sizeof v, sizeof v);                             \
                        target[i] = (expression);                                                \
                }                                                                                \
        }
#define ENCODE_BLOCK(name, type, expression)                                                     \
        static void encode_block_##name(unsigned char *target, const double *source, size_t n) { \
                for (size_t i = 0; i < n; i++) {                                                 \
                        double v = source[i];                                                    \
                        type code = (type) (expression);                                         \
                        memcpy(target + i * sizeof code, &code, sizeof code);                    \
                }                                                                                \
        }

DECODE_BLOCK(f64, double, v)
DECODE_BLOCK(f32, float, (double) v)
DECODE_BLOCK(f16, uint16_t, decode(v, format_f16))
DECODE_BLOCK(bf16, uint16_t, decode(v, format_bf16))
DECODE_BLOCK(f8e4m3, uint8_t, decode(v, format_f8e4m3))
DECODE_BLOCK(f8e5m2, uint8_t, decode(v, format_f8e5m2))
DECODE_BLOCK(e8m0, uint8_t, decode_e8m0(v))
ENCODE_BLOCK(f64, double, v)
ENCODE_BLOCK(f32, float, v)
ENCODE_BLOCK(f16, uint16_t, encode(v, format_f16))
ENCODE_BLOCK(bf16, uint16_t, encode(v, format_bf16))
ENCODE_BLOCK(f8e4m3, uint8_t, encode(v, format_f8e4m3))
ENCODE_BLOCK(f8e5m2, uint8_t, encode(v, format_f8e5m2))
ENCODE_BLOCK(e8m0, uint8_t, encode_e8m0(v))

struct float_codec {
        void (*decode_block)(double *target, const unsigned char *source, size_t n);
        void (*encode_block)(unsigned char *target, const double *source, size_t n);
};
static const struct float_codec float_codecs[] = {
        [CAIRN_F64] = {decode_block_f64, encode_block_f64},
        [CAIRN_F32] = {decode_block_f32, encode_block_f32},
        [CAIRN_F16] = {decode_block_f16, encode_block_f16},
        [CAIRN_BF16] = {decode_block_bf16, encode_block_bf16},
        [CAIRN_F8E4M3] = {decode_block_f8e4m3, encode_block_f8e4m3},
        [CAIRN_F8E5M2] = {decode_block_f8e5m2, encode_block_f8e5m2},
        [CAIRN_E8M0] = {decode_block_e8m0, encode_block_e8m0},
};

static void count_difference(double source, double stored, struct conversion_result *ret) {
        if (source == stored || isnan(source))
                return;
        ret->inexact_count++;
        if (isfinite(source) && !isfinite(stored))
                ret->overflow_count++;
        if (source != 0 && stored == 0)
                ret->underflow_count++;
        double error = fabs(source - stored);
        if (isfinite(error) && error > ret->error_abs_max)
                ret->error_abs_max = error;
}

static void convert_floats(unsigned char *target, uint32_t target_dtype,
                           const unsigned char *source, uint32_t source_dtype, uint64_t count,
                           struct conversion_result *ret) {
        const struct float_codec *from = &float_codecs[source_dtype];
        const struct float_codec *to = &float_codecs[target_dtype];
        size_t source_bytes = dtype_info(source_dtype)->bytes;
        size_t target_bytes = dtype_info(target_dtype)->bytes;
        double before[BLOCK], after[BLOCK];

        for (uint64_t done = 0; done < count; done += BLOCK) {
                size_t n = count - done < BLOCK ? (size_t) (count - done) : BLOCK;
                from->decode_block(before, source + done * source_bytes, n);
                to->encode_block(target + done * target_bytes, before, n);
                to->decode_block(after, target + done * target_bytes, n);
                for (size_t i = 0; i < n; i++)
                        count_difference(before[i], after[i], ret);
        }
}

/* ---- pairs with an integer ---- */

#define LOAD_AS(type)                                     \
        {                                                 \
                type load_v_;                             \
                memcpy(&load_v_, source, sizeof load_v_); \
                return (long double) load_v_;             \
        }

static long double load_number(uint32_t dtype, const unsigned char *source) {
        double v;

        switch (dtype) {
        case CAIRN_I64:
                LOAD_AS(int64_t)
        case CAIRN_I32:
                LOAD_AS(int32_t)
        case CAIRN_I16:
                LOAD_AS(int16_t)
        case CAIRN_I8:
                LOAD_AS(int8_t)
        case CAIRN_U64:
                LOAD_AS(uint64_t)
        case CAIRN_U32:
                LOAD_AS(uint32_t)
        case CAIRN_U16:
                LOAD_AS(uint16_t)
        case CAIRN_U8:
                LOAD_AS(uint8_t)
        case CAIRN_BOOL:
                return source[0] != 0;
        default:
                float_codecs[dtype].decode_block(&v, source, 1);
                return v;
        }
}

/* To a double by rounding to odd: the lowest bit says "there was more", so that a second rounding
 * to at most 51 bits is as good as one from the exact value. */
static double round_to_odd(long double v) {
        double nearest = (double) v;
        if ((long double) nearest == v)
                return nearest;
        /* One of the two neighbours towards v: the one whose last bit is set. */
        if (double_bits(nearest) & 1)
                return nearest;
        return nextafter(nearest, (long double) nearest < v ? INFINITY : -INFINITY);
}

/* Saturates; NaN becomes 0. */
#define STORE_AS(type, low, high)                                              \
        {                                                                      \
                type store_v_ = v != v                      ? 0                \
                                : v <= (long double) (low)  ? (low)            \
                                : v >= (long double) (high) ? (high)           \
                                                            : (type) rintl(v); \
                memcpy(target, &store_v_, sizeof store_v_);                    \
                return;                                                        \
        }

static void store_number(uint32_t dtype, unsigned char *target, long double v) {
        double rounded;
        float single;

        switch (dtype) {
        case CAIRN_I64:
                STORE_AS(int64_t, INT64_MIN, INT64_MAX)
        case CAIRN_I32:
                STORE_AS(int32_t, INT32_MIN, INT32_MAX)
        case CAIRN_I16:
                STORE_AS(int16_t, INT16_MIN, INT16_MAX)
        case CAIRN_I8:
                STORE_AS(int8_t, INT8_MIN, INT8_MAX)
        case CAIRN_U64:
                STORE_AS(uint64_t, 0, UINT64_MAX)
        case CAIRN_U32:
                STORE_AS(uint32_t, 0, UINT32_MAX)
        case CAIRN_U16:
                STORE_AS(uint16_t, 0, UINT16_MAX)
        case CAIRN_U8:
                STORE_AS(uint8_t, 0, UINT8_MAX)
        case CAIRN_F64:
                rounded = (double) v;
                memcpy(target, &rounded, sizeof rounded);
                return;
        case CAIRN_F32:
                single = (float) v;
                memcpy(target, &single, sizeof single);
                return;
        default:
                rounded = round_to_odd(v);
                float_codecs[dtype].encode_block(target, &rounded, 1);
        }
}

static void convert_numbers(unsigned char *target, uint32_t target_dtype,
                            const unsigned char *source, uint32_t source_dtype, uint64_t count,
                            struct conversion_result *ret) {
        const struct dtype_info *from = dtype_info(source_dtype), *to = dtype_info(target_dtype);

        for (uint64_t i = 0; i < count; i++) {
                long double before = load_number(source_dtype, source + i * from->bytes);
                unsigned char *place = target + i * to->bytes;
                store_number(target_dtype, place, before);
                long double after = load_number(target_dtype, place);
                if (before == after || (isnan(before) && isnan(after)))
                        continue;
                ret->inexact_count++;
                bool in_range = to->is_float ? isfinite(after) : fabsl(before - after) <= 0.5L;
                if (!in_range)
                        ret->overflow_count++;
                if (before != 0 && after == 0 && in_range)
                        ret->underflow_count++;
                double error = (double) fabsl(before - after);
                if (isfinite(error) && error > ret->error_abs_max)
                        ret->error_abs_max = error;
        }
}

/* ---- all pairs ---- */

static uint32_t component_dtype(uint32_t dtype) {
        return dtype == CAIRN_C64 ? CAIRN_F32 : dtype == CAIRN_C128 ? CAIRN_F64 : 0;
}

int dtype_convert(void *target, uint32_t target_dtype, const void *source, uint32_t source_dtype,
                  uint64_t count, struct conversion_result *ret, struct cairn_error *reterr) {
        const struct dtype_info *from = dtype_info(source_dtype), *to = dtype_info(target_dtype);
        struct conversion_result r = {0};

        if (!from || !to)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "convert",
                                 from ? "target" : "source", "unknown type code %u",
                                 from ? target_dtype : source_dtype);
        uint32_t from_part = component_dtype(source_dtype), to_part = component_dtype(target_dtype);
        if (source_dtype == target_dtype) {
                if (count > 0)
                        memcpy(target, source, (size_t) (count * from->bytes));
        } else if (from_part && to_part) {
                convert_floats(target, to_part, source, from_part, count * 2, &r);
        } else if (from->is_float && to->is_float) {
                convert_floats(target, target_dtype, source, source_dtype, count, &r);
        } else if (!from_part && (to->is_float || to->is_integer)) {
                convert_numbers(target, target_dtype, source, source_dtype, count, &r);
        } else {
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "convert", from->name,
                                 "there is no conversion from %s to %s", from->name, to->name);
        }
        if (ret)
                *ret = r;
        return 0;
}

/* ---- non-finite elements ---- */

/* The inner loop has a constant number of turns and no branch, so that the compiler vectorizes it.
 */
#define COUNT_NON_FINITE(name, type, lanes, is_bad)                                    \
        static uint64_t non_finite_##name(const unsigned char *data, uint64_t count) { \
                uint64_t total = 0, i = 0;                                             \
                for (; i + (lanes) <= count; i += (lanes)) {                           \
                        type block[lanes], bad = 0;                                    \
                        memcpy(block, data + i * sizeof(type), sizeof block);          \
                        for (unsigned k = 0; k < (lanes); k++) {                       \
                                type v = block[k];                                     \
                                bad = (type) (bad + ((is_bad) ? 1 : 0));               \
                        }                                                              \
                        total += bad;                                                  \
                }                                                                      \
                for (; i < count; i++) {                                               \
                        type v;                                                        \
                        memcpy(&v, data + i * sizeof v, sizeof v);                     \
                        total += (is_bad) ? 1 : 0;                                     \
                }                                                                      \
                return total;                                                          \
        }

COUNT_NON_FINITE(f64, uint64_t, 64, (v & UINT64_C(0x7ff) << 52) == UINT64_C(0x7ff) << 52)
COUNT_NON_FINITE(f32, uint32_t, 64, (v & 0x7f800000u) == 0x7f800000u)
COUNT_NON_FINITE(f16, uint16_t, 128, (v & 0x7c00u) == 0x7c00u)
COUNT_NON_FINITE(bf16, uint16_t, 128, (v & 0x7f80u) == 0x7f80u)
COUNT_NON_FINITE(f8e4m3, uint8_t, 128, (v & 0x7fu) == 0x7fu)
COUNT_NON_FINITE(f8e5m2, uint8_t, 128, (v & 0x7cu) == 0x7cu)
COUNT_NON_FINITE(e8m0, uint8_t, 128, v == 0xffu)

static uint64_t non_finite_complex(const unsigned char *data, uint32_t part, uint64_t count) {
        size_t bytes = 2 * (size_t) dtype_info(part)->bytes;
        uint64_t total = 0;

        for (uint64_t i = 0; i < count; i++)
                total += dtype_non_finite_count(data + i * bytes, part, 2) > 0;
        return total;
}

uint64_t dtype_non_finite_count(const void *data, uint32_t dtype, uint64_t count) {
        switch (dtype) {
        case CAIRN_F64:
                return non_finite_f64(data, count);
        case CAIRN_F32:
                return non_finite_f32(data, count);
        case CAIRN_F16:
                return non_finite_f16(data, count);
        case CAIRN_BF16:
                return non_finite_bf16(data, count);
        case CAIRN_F8E4M3:
                return non_finite_f8e4m3(data, count);
        case CAIRN_F8E5M2:
                return non_finite_f8e5m2(data, count);
        case CAIRN_E8M0:
                return non_finite_e8m0(data, count);
        case CAIRN_C64:
        case CAIRN_C128:
                return non_finite_complex(data, component_dtype(dtype), count);
        default:
                return 0;
        }
}
