/* SPDX-License-Identifier: Apache-2.0
 *
 * gelu.h - GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415), written with the
 * logistic function: x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3). din may be dout. Any thread.
 */
#ifndef CAIRN_KERNELS_GELU_H
#define CAIRN_KERNELS_GELU_H

#include <stddef.h>

void gelu_forward(float *out, const float *in, size_t count);
void gelu_backward(float *din, const float *dout, const float *in, size_t count);

#endif
