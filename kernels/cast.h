/* SPDX-License-Identifier: Apache-2.0
 *
 * cast.h - bfloat16 <-> float over arrays, round to nearest even, NaN stays a quiet NaN. The bits
 * equal those of dtype_convert (format/dtype.h), which also counts what was lost; these are the
 * paths of every training step. Pure, any thread; source and target do not overlap.
 */
#ifndef CAIRN_KERNELS_CAST_H
#define CAIRN_KERNELS_CAST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t cast_bf16_of_f32(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        uint32_t quiet_nan = (bits >> 16) | 0x40u;
        return (uint16_t) ((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

static inline float cast_f32_of_bf16(uint16_t value) {
        uint32_t bits = (uint32_t) value << 16;
        float f;

        memcpy(&f, &bits, sizeof(f));
        return f;
}

void cast_f32_to_bf16(uint16_t *target, const float *source, size_t count);
void cast_bf16_to_f32(float *target, const uint16_t *source, size_t count);

#endif
