/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cast.h"

void cast_f32_to_bf16(uint16_t *restrict target, const float *restrict source, size_t count) {
        for (size_t i = 0; i < count; i++)
                target[i] = cast_bf16_of_f32(source[i]);
}

void cast_bf16_to_f32(float *restrict target, const uint16_t *restrict source, size_t count) {
        for (size_t i = 0; i < count; i++)
                target[i] = cast_f32_of_bf16(source[i]);
}

void cast_f32_to_f16(uint16_t *restrict target, const float *restrict source, size_t count) {
        for (size_t i = 0; i < count; i++)
                target[i] = cast_f16_of_f32(source[i]);
}

void cast_f16_to_f32(float *restrict target, const uint16_t *restrict source, size_t count) {
        for (size_t i = 0; i < count; i++)
                target[i] = cast_f32_of_f16(source[i]);
}
