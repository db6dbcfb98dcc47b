/* SPDX-License-Identifier: Apache-2.0
 *
 * nonfinite.h - how many values are infinite or NaN. Looks at the exponent bits only, so that no
 * compiler option can optimise it away. Any thread.
 */
#ifndef CAIRN_KERNELS_NONFINITE_H
#define CAIRN_KERNELS_NONFINITE_H

#include <stddef.h>
#include <stdint.h>

uint64_t nonfinite_count_f32(const float *x, size_t count);
uint64_t nonfinite_count_bf16(const uint16_t *x, size_t count);

#endif
