/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dropout.h"

static void fill_mask(uint8_t *mask, size_t elements, uint64_t sample,
                      const struct dropout_site *site) {
        uint32_t threshold = dropout_threshold(site->probability);

        for (size_t i = 0; i < elements; i += 4) {
                struct philox_block r = dropout_words(*site, sample, i / 4);
                for (size_t j = 0; j < 4 && i + j < elements; j++)
                        mask[i + j] = r.word[j] >= threshold;
        }
}

void dropout_forward(float *out, uint8_t *mask, const float *in, size_t samples, size_t elements,
                     const struct dropout_site *site) {
        float scale = 1.0f / (1.0f - site->probability);

        for (size_t s = 0; s < samples; s++) {
                uint8_t *m = mask + s * elements;
                fill_mask(m, elements, site->sample + s, site);
                for (size_t i = 0; i < elements; i++)
                        out[s * elements + i] = in[s * elements + i] * (m[i] ? scale : 0.0f);
        }
}

void dropout_backward(float *din, const float *dout, const uint8_t *mask, size_t count,
                      float probability) {
        float scale = 1.0f / (1.0f - probability);

        for (size_t i = 0; i < count; i++)
                din[i] = dout[i] * (mask[i] ? scale : 0.0f);
}
