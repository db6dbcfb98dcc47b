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

#include <stddef.h>
#include <stdint.h>

struct adamw {
        double beta1, beta2, epsilon, weight_decay, learning_rate;
};

/* 1 - beta^t, the power by squaring in double: the same operations in the same order everywhere,
 * where pow() differs between libraries. */
double adamw_bias_correction(double beta, int64_t t);

/* gradient_scale multiplies each gradient first (1/loss scale, clipping). weights_bf16 may be NULL.
 */
void adamw_update(float *weights, uint16_t *weights_bf16, float *moment1, float *moment2,
                  const float *gradient, size_t count, const struct adamw *a, int64_t t,
                  float gradient_scale);

/* average += (1 - decay) (weights - average) */
void ema_update(float *average, const float *weights, size_t count, float decay);

#endif
