/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/adamw.h"
#include "kernels/cast.h"
#include "kernels/clones.h"

CLONES void adamw_update(float *restrict weights, uint16_t *restrict weights_bf16,
                         float *restrict moment1, float *restrict moment2,
                         const float *restrict gradient, size_t count, const struct adamw *a,
                         int64_t t, float gradient_scale) {
        const struct adamw_factors f = adamw_factors(a, t, gradient_scale);

        for (size_t i = 0; i < count; i++)
                weights[i] = adamw_element(weights[i], &moment1[i], &moment2[i], gradient[i], f);
        if (weights_bf16)
                cast_f32_to_bf16(weights_bf16, weights, count);
}

void ema_update(float *restrict average, const float *restrict weights, size_t count, float decay) {
        float gain = 1.0f - decay;

        for (size_t i = 0; i < count; i++)
                average[i] += gain * (weights[i] - average[i]);
}
