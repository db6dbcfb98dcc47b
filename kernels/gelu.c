/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gelu.h"
#include "kernels/clones.h"
#include "kernels/exp.h"

#define TWO_ROOT (2.0f * 0.79788456080286535588f) /* 2 sqrt(2/pi) */
#define CUBIC 0.044715f

static inline float logistic(float x) {
        return 1.0f / (1.0f + exp_f32(-x));
}

CLONES void gelu_forward(float *restrict out, const float *restrict in, size_t count) {
        for (size_t i = 0; i < count; i++) {
                float x = in[i];
                out[i] = x * logistic(TWO_ROOT * (x + CUBIC * x * x * x));
        }
}

CLONES void gelu_backward(float *din, const float *dout, const float *restrict in, size_t count) {
        for (size_t i = 0; i < count; i++) {
                float x = in[i];
                float s = logistic(TWO_ROOT * (x + CUBIC * x * x * x));
                float slope = TWO_ROOT * (1.0f + 3.0f * CUBIC * x * x);
                din[i] = dout[i] * (s + x * s * (1.0f - s) * slope);
        }
}
