/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"
#include "base/bytes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define STEP_EXACT_F32 16777216.0 /* 2^24: FP32 counts by one up to here */

static const struct dtype_info dtype_table[] = {
        [CAIRN_F64] = {"f64", 8, .is_float = true},
        [CAIRN_F32] = {"f32", 4, .is_float = true},
        [CAIRN_F16] = {"f16", 2, .is_float = true},
        [CAIRN_BF16] = {"bf16", 2, .is_float = true},
        [CAIRN_F8E4M3] = {"f8e4m3", 1, .is_float = true},
        [CAIRN_F8E5M2] = {"f8e5m2", 1, .is_float = true},
        [CAIRN_E8M0] = {"e8m0", 1, .is_float = true},
        [CAIRN_I64] = {"i64", 8, .is_integer = true},
        [CAIRN_I32] = {"i32", 4, .is_integer = true},
        [CAIRN_I16] = {"i16", 2, .is_integer = true},
        [CAIRN_I8] = {"i8", 1, .is_integer = true},
        [CAIRN_U64] = {"u64", 8, .is_integer = true},
        [CAIRN_U32] = {"u32", 4, .is_integer = true},
        [CAIRN_U16] = {"u16", 2, .is_integer = true},
        [CAIRN_U8] = {"u8", 1, .is_integer = true},
        [CAIRN_BOOL] = {"bool", 1, .is_float = false},
        [CAIRN_C64] = {"c64", 8, .is_float = false},
        [CAIRN_C128] = {"c128", 16, .is_float = false},
};

static const char *const role_table[] = {
        [CAIRN_PARAMETER] = "parameter",
        [CAIRN_BUFFER] = "buffer",
        [CAIRN_MASTER] = "master",
        [CAIRN_GRADIENT] = "gradient",
        [CAIRN_MOMENT1] = "moment1",
        [CAIRN_MOMENT2] = "moment2",
        [CAIRN_MOMENT_OTHER] = "moment-other",
        [CAIRN_STEP] = "step",
        [CAIRN_EMA] = "ema",
        [CAIRN_RNG] = "rng",
        [CAIRN_SCALER] = "scaler",
        [CAIRN_OTHER] = "other",
};

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

const struct dtype_info *dtype_info(uint32_t dtype) {
        if (dtype >= COUNT_OF(dtype_table) || !dtype_table[dtype].name)
                return NULL;
        return &dtype_table[dtype];
}

uint32_t dtype_from_name(const char *name) {
        for (uint32_t i = 1; i < COUNT_OF(dtype_table); i++)
                if (strcmp(dtype_table[i].name, name) == 0)
                        return i;
        return 0;
}

const char *role_name(uint32_t role) {
        return role < COUNT_OF(role_table) ? role_table[role] : NULL;
}

uint32_t role_from_name(const char *name) {
        for (uint32_t i = 1; i < COUNT_OF(role_table); i++)
                if (strcmp(role_table[i], name) == 0)
                        return i;
        return 0;
}

bool shape_bytes(const uint64_t *shape, size_t rank, uint32_t dtype, uint64_t *ret_elements,
                 uint64_t *ret_bytes) {
        const struct dtype_info *info = dtype_info(dtype);
        uint64_t elements = 1, bytes;
        bool empty = false;

        if (!info)
                return false;
        /* A zero first: [2^63, 2^63, 0] has no elements and overflows nothing. */
        for (size_t i = 0; i < rank; i++)
                empty |= shape[i] == 0;
        for (size_t i = 0; i < rank && !empty; i++)
                if (!mul_checked(elements, shape[i], &elements))
                        return false;
        if (empty)
                elements = 0;
        if (!mul_checked(elements, info->bytes, &bytes))
                return false;
        *ret_elements = elements;
        *ret_bytes = bytes;
        return true;
}

/* ---- what may be stored as what ---- */

int dtype_check_stored(uint32_t role, uint32_t runtime, uint32_t stored,
                       struct cairn_error *reterr) {
        const struct dtype_info *from = dtype_info(runtime), *to = dtype_info(stored);
        const char *name = role_name(role);
        const char *operation = "check stored type";

        if (!name || !from || !to)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, operation, name ? name : "tensor",
                                 "role %" PRIu32 ", type %" PRIu32 " stored as %" PRIu32
                                 ": this version does not know one of these codes",
                                 role, runtime, stored);
        if (role == CAIRN_STEP && (runtime != CAIRN_F32 || stored != CAIRN_F32))
                return error_set(reterr, CAIRN_ERR_MISMATCH, operation, name,
                                 "a step counter is f32 at run time and in storage, not %s stored "
                                 "as %s; register a counter of another type as a host value or "
                                 "with role other",
                                 from->name, to->name);
        if (runtime == stored)
                return 0;
        /* Every value of a narrower real type is a value of f32 and f64. */
        if (from->is_float && to->is_float && to->bytes >= 4 && from->bytes < to->bytes)
                return 0;
        if (role == CAIRN_MOMENT2)
                return error_set(reterr, CAIRN_ERR_MISMATCH, operation, name,
                                 "a second moment is never stored narrower than it is (%s as %s): "
                                 "it would underflow and the next update would be many times too "
                                 "large",
                                 from->name, to->name);
        bool lossy_role = role == CAIRN_MOMENT1 || role == CAIRN_EMA;
        bool lossy_pair = (runtime == CAIRN_F32 || runtime == CAIRN_F64) &&
                          (stored == CAIRN_F16 || stored == CAIRN_BF16);
        if (lossy_role && lossy_pair)
                return 0;
        return error_set(reterr, CAIRN_ERR_MISMATCH, operation, name,
                         "%s may not be stored as %s: only moment1 and ema tensors in f32 or f64 "
                         "may be stored narrower, as f16 or bf16",
                         from->name, to->name);
}

/* ---- step counters of others ---- */

/* Decode any real element exactly; integers beyond 2^53 are compared as integers by the caller. */
static double load_double(uint32_t dtype, const void *value) {
        double target = 0;
        struct conversion_result ignored;

        (void) dtype_convert(&target, CAIRN_F64, value, dtype, 1, &ignored, NULL);
        return target;
}

/* The representable value next to `code` of a 16-bit or 32-bit float, for positive finite ones. */
static double neighbour(uint32_t dtype, const void *value, int direction) {
        uint16_t half;
        uint32_t word;

        if (dtype == CAIRN_F32) {
                memcpy(&word, value, sizeof word);
                word += (uint32_t) direction;
                return load_double(dtype, &word);
        }
        memcpy(&half, value, sizeof half);
        half = (uint16_t) (half + direction);
        return load_double(dtype, &half);
}

/* The integers that round (to nearest, ties to even) to this float: [*low, *high]. */
static void candidates(uint32_t dtype, const void *value, double v, double *low, double *high) {
        double below = neighbour(dtype, value, -1), above = neighbour(dtype, value, 1);
        uint8_t first_byte;
        memcpy(&first_byte, value, 1);
        bool even = (first_byte & 1) == 0;
        double low_tie = below + (v - below) / 2;
        /* The largest finite value ends where rounding up to infinity begins. */
        double high_tie = isfinite(above) ? v + (above - v) / 2 : v + (v - below) / 2;

        *low = ceil(low_tie);
        *high = floor(high_tie);
        if (!even && *low == low_tie)
                *low += 1;
        if (!even && *high == high_tie)
                *high -= 1;
}

static int refuse_float(const char *name, uint32_t dtype, const void *value, double v,
                        struct cairn_error *reterr) {
        const char *type = dtype_info(dtype)->name;
        double low = 0, high = 0;

        if (isnan(v))
                return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                 "the stored %s is not a number: any step is possible; supply the "
                                 "true step",
                                 type);
        if (isinf(v) && v > 0) {
                double least = dtype == CAIRN_F16 ? 65520 : 0;
                if (least > 0)
                        return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                         "the stored %s is infinite: the true step is %.0f or more "
                                         "if it was converted; supply the true step",
                                         type, least);
                return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                 "the stored %s is infinite: it stands for no step; supply the "
                                 "true step",
                                 type);
        }
        if (v < 0 || v != floor(v))
                return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                 "the stored %s is %.17g: a step is a whole number, not negative; "
                                 "supply the true step",
                                 type, v);
        if (dtype == CAIRN_F64)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                 "the stored f64 is %.0f: above 16777216 f32 does not count by "
                                 "one; supply the true step",
                                 v);
        candidates(dtype, value, v, &low, &high);
        /* A counter that is kept in this type stands still where adding one rounds back. */
        double frozen = dtype == CAIRN_F16 ? 2048 : dtype == CAIRN_BF16 ? 256 : STEP_EXACT_F32;
        char counted[64] = "";
        if (v == frozen)
                (void) snprintf(counted, sizeof counted,
                                ", and %.0f or more if it was counted in %s", v, type);
        return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                         "the stored %s is %.0f: the true step is %.0f to %.0f if it was "
                         "converted%s; supply the true step",
                         type, v, low, high, counted);
}

static int step_from_integer(const char *name, uint32_t dtype, const void *value, float *ret_fp32,
                             int64_t *ret_true, struct cairn_error *reterr) {
        const char *type = dtype_info(dtype)->name;
        int64_t exact = 0;
        struct conversion_result r = {0};

        TRY(dtype_convert(&exact, CAIRN_I64, value, dtype, 1, &r, reterr));
        if (exact < 0)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                 "the stored %s is %" PRId64 ": a step is not negative; supply "
                                 "the true step",
                                 type, exact);
        if (r.overflow_count || exact > (int64_t) STEP_EXACT_F32)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                 "the stored %s is %s%" PRId64 ": above 16777216 f32 does not "
                                 "count by one; supply the true step",
                                 type, r.overflow_count ? "more than " : "", exact);
        *ret_fp32 = (float) exact;
        *ret_true = exact;
        return 0;
}

int step_from_foreign(const char *name, uint32_t dtype, const void *value, float *ret_fp32,
                      int64_t *ret_true, struct cairn_error *reterr) {
        const struct dtype_info *info = dtype_info(dtype);
        double limit;

        if (info && info->is_integer)
                return step_from_integer(name, dtype, value, ret_fp32, ret_true, reterr);
        switch (dtype) {
        case CAIRN_F16:
                limit = 2047;
                break;
        case CAIRN_BF16:
                limit = 255;
                break;
        case CAIRN_F32:
                limit = STEP_EXACT_F32 - 1;
                break;
        case CAIRN_F64:
                limit = STEP_EXACT_F32;
                break;
        default:
                return error_set(reterr, CAIRN_ERR_MISMATCH, "read step", name,
                                 "%s cannot hold a step counter; supply the true step",
                                 info ? info->name : "an unknown type");
        }
        double v = load_double(dtype, value);
        /* -0.0 compares equal to 0 and is one. */
        if (!(v >= 0 && v <= limit) || v != floor(v))
                return refuse_float(name, dtype, value, v, reterr);
        *ret_fp32 = (float) v + 0.0f;
        *ret_true = (int64_t) v;
        return 0;
}
