/* SPDX-License-Identifier: Apache-2.0
 *
 * dropout.h - inverted dropout without generator state: whether an element is dropped is a pure
 * function of (seed, step, layer, sample, element). The sample's number is its global position in
 * the run, so that the mask does not depend on micro-batch, rank or world size. The mask of the
 * forward pass (one byte an element) serves the backward pass. Any thread.
 */
#ifndef CAIRN_KERNELS_DROPOUT_H
#define CAIRN_KERNELS_DROPOUT_H

#include "kernels/philox.h"
#include <stddef.h>
#include <stdint.h>

struct dropout_site {
        uint64_t seed;
        uint64_t step;
        uint64_t sample; /* of the first of the batch */
        uint32_t layer;  /* numbers every place in the model where elements are dropped */
        float probability;
};

/* The random words of elements 4 * quad to 4 * quad + 3 of a sample. */
HOST_DEVICE static inline struct philox_block dropout_words(struct dropout_site site,
                                                            uint64_t sample, size_t quad) {
        /* Sample and step share a word: their low halves are what differs between neighbours. */
        uint32_t high = (uint32_t) (sample >> 32) * 0x9E3779B1u ^ (uint32_t) (site.step >> 32);

        return philox_draw(site.seed ^ high, PHILOX_DROPOUT, (uint32_t) quad, (uint32_t) sample,
                           site.layer, (uint32_t) site.step);
}
/* An element stays whose word is at least this. */
HOST_DEVICE static inline uint32_t dropout_threshold(float probability) {
        return (uint32_t) ((double) probability * 4294967296.0);
}

/* out = in * mask / (1 - p); samples x elements values, out may be in. */
void dropout_forward(float *out, uint8_t *mask, const float *in, size_t samples, size_t elements,
                     const struct dropout_site *site);
/* din = dout * mask / (1 - p); din may be dout. */
void dropout_backward(float *din, const float *dout, const uint8_t *mask, size_t count,
                      float probability);

#endif
