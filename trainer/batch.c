/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/batch.h"

static void allocate(struct batch *b, struct compute *c, const struct model *m, float dropout,
                     float *running) {
        size_t tokens = (size_t) (b->micro * b->context);

        b->inputs = malloc(tokens * sizeof(*b->inputs));
        b->targets = malloc(tokens * sizeof(*b->targets));
        b->is_ready = b->inputs && b->targets &&
                      network_init(&b->network, c, m, (size_t) b->micro, (size_t) b->context,
                                   (double) dropout, NULL) == 0;
        b->network.compute = c;
        b->network.model = m;
        b->network.dropout = dropout;
        b->network.running = running;
}

void batch_init(struct batch *b, struct compute *c, const struct model *m, const struct settings *s,
                float *running) {
        *b = (struct batch){.local = s->batch * s->accumulate,
                            .full = s->batch,
                            .micro = s->batch,
                            .context = s->context};
        allocate(b, c, m, (float) s->dropout, running);
}

void batch_done(struct batch *b) {
        if (!b)
                return;
        network_done(&b->network);
        free(b->inputs);
        free(b->targets);
        b->inputs = b->targets = NULL;
        b->is_ready = false;
}

bool batch_shrink(struct batch *b) {
        struct network old = b->network;

        if (b->micro == 1)
                return false;
        batch_done(b);
        b->micro /= 2;
        while (b->full % b->micro)
                b->micro--;
        allocate(b, old.compute, old.model, old.dropout, old.running);
        return true;
}
