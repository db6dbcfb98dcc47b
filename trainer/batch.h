/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h - the samples that a rank computes at a time: the network's activations for a
 * micro-batch, and the tokens that go in.
 *
 *     batch_init(&b, compute, &model, &settings, running);
 *     if (!b.is_ready) batch_shrink(&b);            // memory is short: as often as need be
 *     ... b.network, b.inputs, b.targets ...
 *     batch_done(&b);
 *
 * A step's global batch is cut into one range of positions a rank, and each of these into
 * micro-batches; smaller ones change nothing but the time it takes and the last bits. Owner: the
 * caller; the model has to live as long. One thread.
 */
#ifndef CAIRN_TRAINER_BATCH_H
#define CAIRN_TRAINER_BATCH_H

#include "trainer/corpus.h"
#include "trainer/network.h"

struct batch {
        int64_t local; /* samples of a step that are this rank's */
        int64_t full;  /* --batch; micro divides it, and it divides local */
        int64_t micro, context;
        bool is_ready; /* there is memory for micro */
        struct network network;
        uint32_t *inputs, *targets; /* (micro, context) */
};

/* running: network.h. Where memory is short is_ready stays false. */
void batch_init(struct batch *b, struct compute *c, const struct model *m, const struct settings *s,
                float *running);
void batch_done(struct batch *b);
/* Half as large or less. False: it is one sample already. */
bool batch_shrink(struct batch *b);

static inline int64_t batch_count(const struct batch *b) {
        return b->local / b->micro;
}

#endif
