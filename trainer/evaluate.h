/* SPDX-License-Identifier: Apache-2.0
 *
 * evaluate.h - the loss on text that is not learnt, by the live weights and by their average, and
 * early stopping. The batches are shared among the ranks; their losses are added in the order of
 * the batches, so that all ranks come to the same bits, whatever their number. Reads the state;
 * only the early-stop triple changes. One thread.
 */
#ifndef CAIRN_TRAINER_EVALUATE_H
#define CAIRN_TRAINER_EVALUATE_H

#include "trainer/batch.h"
#include "trainer/group.h"
#include "trainer/state.h"

/* batches: of b->full samples each. */
int evaluate_loss(struct group *g, struct batch *b, const struct weights *w, const struct corpus *c,
                  int64_t batches, float *ret, struct cairn_error *reterr);
/* Only a strict gain is one: a plateau and a NaN are none. */
void evaluate_judge(struct state *st, float loss, int64_t step);

#endif
