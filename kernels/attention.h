/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.h - causal multi-head self-attention between the projections.
 *
 *     qkv  (B, T, 3, NH, HS)    queries, keys, values side by side; HS = C / NH
 *     att  (B, NH, T, T)        probabilities; only t2 <= t is written and read
 *     out  (B, T, C)
 *
 * forward fills att for the backward pass, backward overwrites dqkv. Scratch belongs to the caller:
 * attention_scratch(T, HS) floats. Any thread with its own scratch.
 */
#ifndef CAIRN_KERNELS_ATTENTION_H
#define CAIRN_KERNELS_ATTENTION_H

#include <stddef.h>

struct attention {
        size_t batch, time, channels, heads;
};

size_t attention_scratch(const struct attention *a);
void attention_forward(float *out, float *att, const float *qkv, float *scratch,
                       const struct attention *a);
void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *att,
                        float *scratch, const struct attention *a);

#endif
