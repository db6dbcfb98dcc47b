/* SPDX-License-Identifier: Apache-2.0
 *
 * dropout.h - inverted dropout without generator state: whether an element is dropped is a pure
 * function of (seed, step, layer, sample, element). The sample's number is its global position in
 * the run, so that the mask does not depend on micro-batch, rank or world size. The mask of the
 * forward pass (one byte an element) serves the backward pass. Any thread.
 */
#ifndef CAIRN_KERNELS_DROPOUT_H
#define CAIRN_KERNELS_DROPOUT_H

#include <stddef.h>
#include <stdint.h>

struct dropout_site {
        uint64_t seed;
        uint64_t step;
        uint64_t sample; /* of the first of the batch */
        uint32_t layer;  /* numbers every place in the model where elements are dropped */
        float probability;
};

/* out = in * mask / (1 - p); samples x elements values, out may be in. */
void dropout_forward(float *out, uint8_t *mask, const float *in, size_t samples, size_t elements,
                     const struct dropout_site *site);
/* din = dout * mask / (1 - p); din may be dout. */
void dropout_backward(float *din, const float *dout, const uint8_t *mask, size_t count,
                      float probability);

#endif
