/* SPDX-License-Identifier: Apache-2.0
 *
 * gelu.h - GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415), written with the
 * logistic function: x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3). din may be dout. Any thread.
 */
#ifndef CAIRN_KERNELS_GELU_H
#define CAIRN_KERNELS_GELU_H

#include "kernels/exp.h"
#include <stddef.h>

#define GELU_TWO_ROOT (2.0f * 0.79788456080286535588f) /* 2 sqrt(2/pi) */
#define GELU_CUBIC 0.044715f

HOST_DEVICE static inline float gelu_logistic(float x) {
        return 1.0f / (1.0f + exp_f32(-(GELU_TWO_ROOT * (x + GELU_CUBIC * x * x * x))));
}

HOST_DEVICE static inline float gelu_value(float x) {
        return x * gelu_logistic(x);
}

HOST_DEVICE static inline float gelu_slope(float x) {
        float s = gelu_logistic(x);
        float slope = GELU_TWO_ROOT * (1.0f + 3.0f * GELU_CUBIC * x * x);
        return s + x * s * (1.0f - s) * slope;
}

void gelu_forward(float *out, const float *in, size_t count);
void gelu_backward(float *din, const float *dout, const float *in, size_t count);

#endif
