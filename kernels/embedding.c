/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embedding.h"

void embedding_forward(float *restrict out, const uint32_t *restrict tokens,
                       const float *restrict wte, const float *restrict wpe, size_t batch,
                       size_t time, size_t channels) {
        for (size_t row = 0; row < batch * time; row++) {
                const float *token = wte + tokens[row] * channels;
                const float *position = wpe + row % time * channels;
                for (size_t c = 0; c < channels; c++)
                        out[row * channels + c] = token[c] + position[c];
        }
}

void embedding_backward(float *restrict dwte, float *restrict dwpe, const float *restrict dout,
                        const uint32_t *restrict tokens, size_t batch, size_t time,
                        size_t channels) {
        for (size_t row = 0; row < batch * time; row++) {
                float *token = dwte + tokens[row] * channels;
                float *position = dwpe + row % time * channels;
                const float *d = dout + row * channels;
                for (size_t c = 0; c < channels; c++) {
                        token[c] += d[c];
                        position[c] += d[c];
                }
        }
}
