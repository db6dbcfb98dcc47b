/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/evaluate.h"

float evaluate_loss(struct network *n, const struct weights *w, const struct corpus *c,
                    int64_t batches, uint32_t *inputs, uint32_t *targets) {
        struct network_pass pass = {.training = false};
        double sum = 0.0;

        for (int64_t i = 0; i < batches; i++) {
                corpus_eval_batch(c, inputs, targets, (uint64_t) i, n->batch, n->time);
                sum += (double) network_forward(n, w, inputs, targets, &pass);
        }
        return (float) (sum / (double) batches);
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
