/* SPDX-License-Identifier: Apache-2.0
 *
 * update.h - one optimizer step on the state: non-finite check and loss scale, clipping, AdamW,
 * the average of the weights.
 *
 *     TRY(update_sums(&st, sums, gradients, count, &e));   // reads only; before the gate
 *     update_examine(&u, &st, sums, count / SHARD_CHUNK, &settings);
 *     cairn_update_begin(c);
 *     update_apply(&u, &st, gradients, &settings, rate);   // all stores to the shard's state
 *     ... other ranks' parameters come in, state_restored ...
 *     cairn_update_end(c, step);
 *
 * A non-finite gradient skips the weights and their steps; the scale and the counters still change.
 */
#ifndef CAIRN_TRAINER_UPDATE_H
#define CAIRN_TRAINER_UPDATE_H

#include "trainer/state.h"

struct update {
        bool is_finite;
        double norm;          /* of the unscaled gradient */
        float gradient_scale; /* 1 / loss scale, clipping included */
};

/* Sums of squares of each SHARD_CHUNK elements, not finite where one of them is not. */
int update_sums(const struct state *st, double *sums, const float *gradients, size_t count,
                struct cairn_error *reterr);
/* sums: of the whole block, in its order. */
void update_examine(struct update *u, const struct state *st, const double *sums, size_t sum_count,
                    const struct settings *s);
/* gradients: the shard's part of the block, of the scaled loss. */
void update_apply(const struct update *u, struct state *st, const float *gradients,
                  const struct settings *s, double rate);
/* Too many updates skipped in a row: the run cannot recover by itself. */
bool update_is_hopeless(const struct state *st, const struct settings *s);

#endif
