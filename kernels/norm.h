/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.h - sums, and sums of squares, in double, in one fixed order (lanes.h's). Infinite or NaN
 * where an element is. Any thread.
 */
#ifndef CAIRN_KERNELS_NORM_H
#define CAIRN_KERNELS_NORM_H

#include <stddef.h>

double norm_squared_f32(const float *x, size_t count);
double sum_f32(const float *x, size_t count);

#endif
