/* SPDX-License-Identifier: Apache-2.0
 *
 * gradient.h - the gradient of a step's global batch. Each rank computes its range of positions in
 * micro-batches; where memory is short on any rank, all take smaller ones and begin the step's
 * gradient anew, with the state as it was. Then it is summed over the ranks.
 *
 *     TRY(gradient_prepare(&t, &e));                 // before the first step
 *     TRY(gradient_compute(&t, step, &loss, &e));    // t->gradient_block, t->shard's part of it
 *
 * The order of samples is a function of seed, epoch and position alone, so it does not depend on
 * the number of ranks. Errors are the group's; NOMEM: not even one sample fits.
 */
#ifndef CAIRN_TRAINER_GRADIENT_H
#define CAIRN_TRAINER_GRADIENT_H

#include "base/status.h"

struct train;

/* Micro-batches that every rank has memory for. */
int gradient_prepare(struct train *t, struct cairn_error *reterr);
/* Of the scaled mean loss: with --zero 1 this rank's shard of it, else all of it. *ret_loss: the
 * mean over the global batch, the same on all ranks. */
int gradient_compute(struct train *t, int64_t step, float *ret_loss, struct cairn_error *reterr);

#endif
