/* SPDX-License-Identifier: Apache-2.0
 *
 * layernorm.h - layer normalisation over the last dimension: rows x channels.
 * forward keeps mean and 1/sqrt(variance + 1e-5) of each row for the backward pass. backward adds
 * to dweight and dbias and overwrites din. din may be dout. Any thread.
 */
#ifndef CAIRN_KERNELS_LAYERNORM_H
#define CAIRN_KERNELS_LAYERNORM_H

#include <stddef.h>

void layernorm_forward(float *out, float *mean, float *rstd, const float *in, const float *weight,
                       const float *bias, size_t rows, size_t channels);
void layernorm_backward(float *din, float *dweight, float *dbias, const float *dout,
                        const float *in, const float *weight, const float *mean, const float *rstd,
                        size_t rows, size_t channels);

#endif
