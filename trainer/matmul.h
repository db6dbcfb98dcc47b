/* SPDX-License-Identifier: Apache-2.0
 *
 * matmul.h - the linear layer on BLAS: out (rows, outputs) = in (rows, inputs) @ weight^T + bias,
 * weight (outputs, inputs). bias may be NULL. The gradient functions: din is overwritten, dweight
 * and dbias are added to. One BLAS thread gives the same bits each time; more need not.
 */
#ifndef CAIRN_TRAINER_MATMUL_H
#define CAIRN_TRAINER_MATMUL_H

#include <stddef.h>

void matmul_forward(float *out, const float *in, const float *weight, const float *bias,
                    size_t rows, size_t inputs, size_t outputs);
void matmul_backward(float *din, float *dweight, float *dbias, const float *dout, const float *in,
                     const float *weight, size_t rows, size_t inputs, size_t outputs);

/* What the bits of a product depend on, for the numerics fingerprint. */
void matmul_set_threads(int threads);
const char *matmul_library(void);
const char *matmul_core(void);

#endif
