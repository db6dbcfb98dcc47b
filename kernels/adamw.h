/* SPDX-License-Identifier: Apache-2.0
 *
 * adamw.h - AdamW (Loshchilov and Hutter, arXiv 1711.05101) on one tensor:
 *
 *     m = b1 m + (1 - b1) g          v = b2 v + (1 - b2) g^2
 *     w = w - lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w)
 *
 * The step t is the tensor's own int64 after the increment; the FP32 counter beside it is only what
 * other programs read. Weights are updated in FP32 (the masters); BF16 weights are rounded from
 * them. In place, any thread, no allocation.
 */
#ifndef CAIRN_KERNELS_ADAMW_H
#define CAIRN_KERNELS_ADAMW_H

#include "kernels/host_device.h"
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct adamw {
        double beta1, beta2, epsilon, weight_decay, learning_rate;
};

/* 1 - beta^t, the power by squaring in double: the same operations in the same order everywhere,
 * where pow() differs between libraries. */
static inline double adamw_bias_correction(double beta, int64_t t) {
        double power = 1.0, square = beta;

        for (uint64_t n = t > 0 ? (uint64_t) t : 0; n > 0; n >>= 1) {
                if (n & 1)
                        power *= square;
                square *= square;
        }
        return 1.0 - power;
}

/* What is the same for all elements of an update. */
struct adamw_factors {
        float beta1, gain1, beta2, gain2, rate, root, epsilon, shrink, gradient_scale;
};

static inline struct adamw_factors adamw_factors(const struct adamw *a, int64_t t,
                                                 float gradient_scale) {
        /* 1 - beta in double first: 1 - 0.999f in float has only three digits. */
        struct adamw_factors f = {
                (float) a->beta1,
                (float) (1.0 - a->beta1),
                (float) a->beta2,
                (float) (1.0 - a->beta2),
                (float) (a->learning_rate / adamw_bias_correction(a->beta1, t)),
                (float) (1.0 / sqrt(adamw_bias_correction(a->beta2, t))),
                (float) a->epsilon,
                (float) (a->learning_rate * a->weight_decay),
                gradient_scale,
        };
        return f;
}

/* One element: the weight after the update. */
HOST_DEVICE static inline float adamw_element(float weight, float *moment1, float *moment2,
                                              float gradient, struct adamw_factors f) {
        float g = gradient * f.gradient_scale;
        float m = f.beta1 * *moment1 + f.gain1 * g;
        float v = f.beta2 * *moment2 + f.gain2 * (g * g);
        *moment1 = m;
        *moment2 = v;
        return weight - f.shrink * weight - f.rate * m / (sqrtf(v) * f.root + f.epsilon);
}

/* gradient_scale multiplies each gradient first (1/loss scale, clipping). weights_bf16 may be NULL.
 */
void adamw_update(float *weights, uint16_t *weights_bf16, float *moment1, float *moment2,
                  const float *gradient, size_t count, const struct adamw *a, int64_t t,
                  float gradient_scale);

/* average += (1 - decay) (weights - average) */
void ema_update(float *average, const float *weights, size_t count, float decay);

#ifdef __cplusplus
}
#endif

#endif
