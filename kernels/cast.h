/* SPDX-License-Identifier: Apache-2.0
 *
 * cast.h - bfloat16 and half <-> float over arrays, round to nearest even, NaN stays a quiet NaN.
 * The bits equal those of dtype_convert (format/dtype.h), which also counts what was lost; these
 * are the paths of every training step. Pure, any thread; source and target do not overlap.
 */
#ifndef CAIRN_KERNELS_CAST_H
#define CAIRN_KERNELS_CAST_H

#include "kernels/host_device.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

HOST_DEVICE static inline uint16_t cast_bf16_of_f32(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        uint32_t quiet_nan = (bits >> 16) | 0x40u;
        return (uint16_t) ((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

HOST_DEVICE static inline float cast_f32_of_bf16(uint16_t value) {
        uint32_t bits = (uint32_t) value << 16;
        float f;

        bits |= (bits & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0u;
        memcpy(&f, &bits, sizeof(f));
        return f;
}

HOST_DEVICE static inline uint16_t cast_f16_of_f32(float value) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u)
                return (uint16_t) (sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
        if (magnitude >= 0x477ff000u) /* 65520 rounds to infinity */
                return (uint16_t) (sign | 0x7c00u);
        if (magnitude < 0x38800000u) {
                /* A subnormal counts in units of 2^-24, as do the last bits beside 0.5: the
                 * addition rounds. */
                float beside;
                memcpy(&beside, &magnitude, sizeof(beside));
                beside += 0.5f;
                memcpy(&magnitude, &beside, sizeof(magnitude));
                return (uint16_t) (sign | (magnitude - 0x3f000000u));
        }
        return (uint16_t) (sign |
                           (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

HOST_DEVICE static inline float cast_f32_of_f16(uint16_t value) {
        uint32_t magnitude = value & 0x7fffu, bits = (magnitude << 13) + 0x38000000u;
        float f = (float) magnitude * 0x1p-24f; /* what a subnormal is */

        if (magnitude < 0x400u)
                memcpy(&bits, &f, sizeof(bits));
        else if (magnitude >= 0x7c00u)
                bits = 0x7f800000u | (magnitude & 0x3ffu) << 13 |
                       (magnitude > 0x7c00u ? 0x400000u : 0u);
        bits |= (value & 0x8000u) << 16;
        memcpy(&f, &bits, sizeof(f));
        return f;
}

void cast_f32_to_bf16(uint16_t *target, const float *source, size_t count);
void cast_bf16_to_f32(float *target, const uint16_t *source, size_t count);
void cast_f32_to_f16(uint16_t *target, const float *source, size_t count);
void cast_f16_to_f32(float *target, const uint16_t *source, size_t count);

#endif
