/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/adamw.h"
#include "kernels/cast.h"
#include "kernels/clones.h"
#include <math.h>

double adamw_bias_correction(double beta, int64_t t) {
        double power = 1.0, square = beta;

        for (uint64_t n = t > 0 ? (uint64_t) t : 0; n > 0; n >>= 1) {
                if (n & 1)
                        power *= square;
                square *= square;
        }
        return 1.0 - power;
}

CLONES void adamw_update(float *restrict weights, uint16_t *restrict weights_bf16,
                         float *restrict moment1, float *restrict moment2,
                         const float *restrict gradient, size_t count, const struct adamw *a,
                         int64_t t, float gradient_scale) {
        /* 1 - beta in double first: 1 - 0.999f in float has only three digits. */
        float beta1 = (float) a->beta1, gain1 = (float) (1.0 - a->beta1);
        float beta2 = (float) a->beta2, gain2 = (float) (1.0 - a->beta2);
        float rate = (float) (a->learning_rate / adamw_bias_correction(a->beta1, t));
        float root = (float) (1.0 / sqrt(adamw_bias_correction(a->beta2, t)));
        float epsilon = (float) a->epsilon;
        float shrink = (float) (a->learning_rate * a->weight_decay);

        for (size_t i = 0; i < count; i++) {
                float g = gradient[i] * gradient_scale;
                float m = beta1 * moment1[i] + gain1 * g;
                float v = beta2 * moment2[i] + gain2 * (g * g);
                float w = weights[i];
                moment1[i] = m;
                moment2[i] = v;
                weights[i] = w - shrink * w - rate * m / (sqrtf(v) * root + epsilon);
        }
        if (weights_bf16)
                cast_f32_to_bf16(weights_bf16, weights, count);
}

void ema_update(float *restrict average, const float *restrict weights, size_t count, float decay) {
        float gain = 1.0f - decay;

        for (size_t i = 0; i < count; i++)
                average[i] += gain * (weights[i] - average[i]);
}
