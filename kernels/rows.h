/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.h - what goes over rows x channels between the layers: a bias added to each row, its
 * gradient (sums over the rows, first row first), the sum of two arrays, running means.
 */
#ifndef CAIRN_KERNELS_ROWS_H
#define CAIRN_KERNELS_ROWS_H

#include <stddef.h>

void rows_fill(float *out, const float *bias, size_t rows, size_t channels);
void rows_add_bias_gradient(float *dbias, const float *dout, size_t rows, size_t channels);
void rows_add(float *out, const float *a, const float *b, size_t count); /* out may be a or b */
/* running += momentum (mean over the rows - running), then in -= running */
void rows_center_running(float *running, float *in, float momentum, size_t rows, size_t channels);
void rows_subtract(float *in, const float *offset, size_t rows, size_t channels);

#endif
