/* SPDX-License-Identifier: Apache-2.0
 *
 * cross_entropy.h - softmax and cross entropy of rows x classes logits in one pass over them.
 * forward turns the logits into probabilities in place and writes one loss a row; backward turns
 * the probabilities into gradients in place: (p - [class == target]) * scale. Any thread.
 */
#ifndef CAIRN_KERNELS_CROSS_ENTROPY_H
#define CAIRN_KERNELS_CROSS_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

void cross_entropy_forward(float *losses, float *logits, const uint32_t *targets, size_t rows,
                           size_t classes);
void cross_entropy_backward(float *probabilities, const uint32_t *targets, size_t rows,
                            size_t classes, float scale);

#endif
