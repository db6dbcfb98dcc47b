/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/update.h"
#include <math.h>

#define SCALE_MIN 0x1p-24
#define SCALE_MAX 0x1p24
/* A dynamic scale needs several halvings to recover from an overflow, a fixed one never does. */
enum { NONFINITE_RUN_MAX = 3, NONFINITE_RUN_DYNAMIC_MAX = 48 };

int update_sums(const struct state *st, double *sums, const float *gradients, size_t count,
                struct cairn_error *reterr) {
        return st->compute->ops->norm_squared(st->compute, sums, gradients, SHARD_CHUNK, count,
                                              reterr);
}

void update_examine(struct update *u, const struct state *st, const double *sums, size_t sum_count,
                    const struct settings *s) {
        double squared = 0.0;

        for (size_t i = 0; i < sum_count; i++)
                squared += sums[i];
        /* Squares of floats stay far below what a double holds. */
        u->is_finite = isfinite(squared);
        u->norm = sqrt(squared) / st->loss_scale;
        double factor = s->clip > 0 && u->norm > s->clip ? s->clip / u->norm : 1.0;
        u->gradient_scale = (float) (factor / st->loss_scale);
}

static void adjust_scale(const struct update *u, struct state *st, const struct settings *s) {
        if (s->loss_scale >= 0)
                return;
        if (!u->is_finite) {
                st->loss_scale = fmax(st->loss_scale / 2, SCALE_MIN);
                st->good_steps = 0;
        } else if (++st->good_steps >= s->loss_scale_growth) { /* an override may have lowered it */
                st->loss_scale = fmin(st->loss_scale * 2, SCALE_MAX);
                st->good_steps = 0;
        }
}

static void average_weights(struct state *st, const struct settings *s) {
        st->ema_updates++;
        /* Young averages follow faster: the first weights are noise. */
        double n = (double) st->ema_updates, decay = fmin(s->ema, (1.0 + n) / (10.0 + n));
        st->compute->ops->ema(st->compute, st->ema, state_weights(st), st->shard.count,
                              (float) decay);
}

void update_apply(const struct update *u, struct state *st, const float *gradients,
                  const struct settings *s, double rate) {
        const struct model *m = st->model;
        struct compute *c = st->compute;
        struct adamw a = {
                .beta1 = s->beta1, .beta2 = s->beta2, .epsilon = s->epsilon, .learning_rate = rate};

        state_begin_update(st);
        adjust_scale(u, st, s);
        st->nonfinite_run = u->is_finite ? 0 : st->nonfinite_run + 1;
        if (!u->is_finite) {
                st->skipped++;
                return;
        }
        for (size_t i = 0; i < m->tensor_count; i++) {
                const struct model_tensor *t = &m->tensor[i];
                struct shard_part p = shard_part(&st->shard, t->offset, t->count);
                uint16_t *narrow = state_is_narrow(st) ? state_own_parameters(st) : NULL;
                a.weight_decay = t->is_matrix ? s->weight_decay : 0.0;
                st->truths[i]++;
                c->ops->adamw(
                        c, state_weights(st) + p.in_shard, narrow ? narrow + p.in_shard : NULL,
                        st->dtype, st->moment1 + p.in_shard, st->moment2 + p.in_shard,
                        gradients + p.in_shard, p.count, &a, st->truths[i], u->gradient_scale);
        }
        if (st->has_ema)
                average_weights(st, s);
}

bool update_is_hopeless(const struct state *st, const struct settings *s) {
        return st->nonfinite_run >=
               (s->loss_scale < 0 ? NONFINITE_RUN_DYNAMIC_MAX : NONFINITE_RUN_MAX);
}
