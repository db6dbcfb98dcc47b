/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/evaluate.h"
#include "base/cleanup.h"
#include <errno.h>

static int batch_loss(struct batch *b, const struct weights *w, const struct corpus *c,
                      int64_t index, double *ret, struct cairn_error *reterr) {
        struct network_pass pass = {.training = false};
        int64_t parts = b->full / b->micro;
        double sum = 0.0;
        float loss;

        for (int64_t i = 0; i < parts; i++) {
                corpus_eval_batch(c, b->inputs, b->targets, (uint64_t) (index * parts + i),
                                  (uint64_t) b->micro, (uint64_t) b->context);
                network_forward(&b->network, w, b->inputs, b->targets, &pass);
                TRY(network_loss(&b->network, &loss, reterr));
                sum += (double) loss;
        }
        *ret = sum / (double) parts;
        return 0;
}

int evaluate_loss(struct group *g, struct batch *b, const struct weights *w, const struct corpus *c,
                  int64_t batches, float *ret, struct cairn_error *reterr) {
        size_t world = g->world, each = ((size_t) batches + world - 1) / world;
        _cleanup_free_ double *losses = calloc(world * each, sizeof(*losses));
        double sum = 0.0;

        if (!losses)
                return error_set_errno(reterr, ENOMEM, "evaluate", "losses");
        for (size_t i = g->rank; i < (size_t) batches; i += world) {
                TRY(batch_loss(b, w, c, (int64_t) i, &losses[g->rank * each + i / world], reterr));
                group_keepalive(g);
        }
        TRY(group_spread(g, losses, each * sizeof(*losses), reterr));
        for (size_t i = 0; i < (size_t) batches; i++)
                sum += losses[i % world * each + i / world];
        *ret = (float) (sum / (double) batches);
        return 0;
}

void evaluate_judge(struct state *st, float loss, int64_t step) {
        if ((double) loss < st->best_loss) {
                st->best_loss = (double) loss;
                st->best_step = step;
                st->evaluations_without_gain = 0;
        } else {
                st->evaluations_without_gain++;
        }
}
