/* SPDX-License-Identifier: Apache-2.0
 *
 * embedding.h - token plus position embedding.
 * out (B, T, C) = tokens' rows of wte (V, C) + rows of wpe (>= T, C). Tokens are checked by whoever
 * reads the data: they index wte unchecked. backward adds, in the order of the tokens. Any thread.
 */
#ifndef CAIRN_KERNELS_EMBEDDING_H
#define CAIRN_KERNELS_EMBEDDING_H

#include <stddef.h>
#include <stdint.h>

void embedding_forward(float *out, const uint32_t *tokens, const float *wte, const float *wpe,
                       size_t batch, size_t time, size_t channels);
void embedding_backward(float *dwte, float *dwpe, const float *dout, const uint32_t *tokens,
                        size_t batch, size_t time, size_t channels);

#endif
