/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.h - the dtype table, conversions between element types, and the rules for step counters.
 * Pure functions, any thread. Rounding is to nearest even everywhere; NaN stays NaN.
 * Sources: IEEE 754-2019 (binary16/32/64); bfloat16 is the upper half of binary32; OCP 8-bit
 * Floating Point Specification 1.0 (E4M3, E5M2); OCP Microscaling Formats 1.0 (E8M0).
 */
#ifndef CAIRN_DTYPE_H
#define CAIRN_DTYPE_H

#include "base/status.h"
#include <stdbool.h>

struct dtype_info {
        const char *name; /* "bf16" */
        uint32_t bytes;
        bool is_float;   /* real floating: f64 f32 f16 bf16 f8* e8m0 */
        bool is_integer; /* signed or unsigned, not bool */
};
/* NULL for an unknown code. */
const struct dtype_info *dtype_info(uint32_t dtype);
uint32_t dtype_from_name(const char *name); /* 0: unknown */
const char *role_name(uint32_t role);       /* "moment2"; NULL if unknown */
uint32_t role_from_name(const char *name);

/* Product of the shape times the element size, overflow-checked; empty list is 1 element, a zero
 * gives 0. */
bool shape_bytes(const uint64_t *shape, size_t rank, uint32_t dtype, uint64_t *ret_elements,
                 uint64_t *ret_bytes);

struct conversion_result {
        double error_abs_max;
        uint64_t overflow_count;  /* finite source, infinite or NaN or saturated target */
        uint64_t underflow_count; /* non-zero source, zero target */
        uint64_t inexact_count;   /* source and target differ in value */
};
/* count elements; source and target must not overlap. What converts: the same type (the bytes as
 * they are), real floats among each other, integers and bool to integers and real floats, real
 * floats to integers, c64 <-> c128. UNSUPPORTED for the rest (complex -> real, anything else to
 * bool ...); nothing is written then.
 *
 * Floats round once, to nearest even. NaN keeps its sign and the upper bits of its payload and
 * becomes quiet. Overflow: infinity, or NaN in F8E4M3 (which has no infinity: OCP's non-saturating
 * mode; 464 still rounds to 448, above that is NaN, and so is an infinite source) and in E8M0. E8M0
 * has no sign and no zero: negative values become NaN, zero and all below 2^-127 become 2^-127.
 * Integers saturate; NaN becomes 0; both count as overflow. For c64/c128 the counts are of
 * components. */
int dtype_convert(void *target, uint32_t target_dtype, const void *source, uint32_t source_dtype,
                  uint64_t count, struct conversion_result *ret, struct cairn_error *reterr);

/* Elements that are NaN or infinite (complex: in either component); 0 for integers. */
uint64_t dtype_non_finite_count(const void *data, uint32_t dtype, uint64_t count);

/* May a tensor of this role and runtime dtype be stored as `stored`? 0 or MISMATCH with the rule:
 * STEP is F32 in both; any real float may be stored wider, as F32 or F64; only MOMENT1 and EMA in
 * F32 or F64 may be stored narrower, as F16 or BF16, and MOMENT2 never. UNSUPPORTED for unknown
 * codes. */
int dtype_check_stored(uint32_t role, uint32_t runtime, uint32_t stored,
                       struct cairn_error *reterr);

/* A foreign step counter -> FP32 and int64, only when certainly exact: F16 <= 2047, BF16 <= 255,
 * F32 < 2^24, integers and F64 <= 2^24, integral, not negative, finite. Otherwise MISMATCH, whose
 * message names the tensor, the stored value and the range of true steps that it could stand for
 * (F16 2048: 2047.. is ambiguous from 2048 on). */
int step_from_foreign(const char *name, uint32_t dtype, const void *value, float *ret_fp32,
                      int64_t *ret_true, struct cairn_error *reterr);

#endif
