/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gelu.h"
#include "kernels/clones.h"

CLONES void gelu_forward(float *restrict out, const float *restrict in, size_t count) {
        for (size_t i = 0; i < count; i++)
                out[i] = gelu_value(in[i]);
}

CLONES void gelu_backward(float *din, const float *dout, const float *restrict in, size_t count) {
        for (size_t i = 0; i < count; i++)
                din[i] = dout[i] * gelu_slope(in[i]);
}
