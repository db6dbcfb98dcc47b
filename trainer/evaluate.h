/* SPDX-License-Identifier: Apache-2.0
 *
 * evaluate.h - the loss on text that is not learnt, by the live weights and by their average, and
 * early stopping. Reads the state; only the early-stop triple changes. One thread.
 */
#ifndef CAIRN_TRAINER_EVALUATE_H
#define CAIRN_TRAINER_EVALUATE_H

#include "trainer/corpus.h"
#include "trainer/network.h"
#include "trainer/state.h"

/* inputs and targets: room for one batch of the network. */
float evaluate_loss(struct network *n, const struct weights *w, const struct corpus *c,
                    int64_t batches, uint32_t *inputs, uint32_t *targets);
/* Only a strict gain is one: a plateau and a NaN are none. */
void evaluate_judge(struct state *st, float loss, int64_t step);

#endif
