/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/state.h"
#include "base/cleanup.h"
#include "kernels/cast.h"
#include <errno.h>
#include <math.h>

#define LOSS_SCALE_FIRST 65536.0

static int allocate(struct cairn *c, size_t count, size_t element_bytes, void *ret,
                    struct cairn_error *reterr) {
        void *p = NULL;
        int r = cairn_alloc(c, count * element_bytes, &p);

        if (r < 0)
                return error_set(reterr, r, "allocate state", "cairn_alloc", "%s",
                                 cairn_error_text(c));
        memcpy(ret, &p, sizeof(p));
        return 0;
}

static int allocate_blocks(struct state *st, struct cairn *c, bool has_running,
                           struct cairn_error *reterr) {
        size_t part = st->shard.count;

        TRY(allocate(c, st->shard.whole, state_element_bytes(st), &st->parameters, reterr));
        if (state_is_narrow(st))
                TRY(allocate(c, part, 4, &st->masters, reterr));
        TRY(allocate(c, part, 4, &st->moment1, reterr));
        TRY(allocate(c, part, 4, &st->moment2, reterr));
        if (st->has_ema)
                TRY(allocate(c, part, 4, &st->ema, reterr));
        TRY(allocate(c, st->model->tensor_count, 4, &st->steps, reterr));
        if (has_running)
                TRY(allocate(c, st->model->width, 4, &st->running, reterr));
        return 0;
}

static int make_working_weights(struct state *st, struct cairn_error *reterr) {
        struct compute *c = st->compute;

        st->working_is_own = st->dtype != c->type;
        st->working = st->parameters;
        if (!st->working_is_own)
                return 0;
        return c->ops->allocate(c, st->shard.whole * (c->type == CAIRN_F32 ? 4 : 2), &st->working,
                                reterr);
}

/* Tensor by tensor, made here and rounded to what the parameters are. */
static int set_first_values(struct state *st, uint64_t seed, struct cairn_error *reterr) {
        const struct model *m = st->model;
        struct compute *c = st->compute;
        size_t largest = 0;

        for (size_t i = 0; i < m->tensor_count; i++)
                largest = m->tensor[i].count > largest ? m->tensor[i].count : largest;
        _cleanup_free_ float *x = malloc(largest * sizeof(*x));
        if (!x)
                return error_set_errno(reterr, ENOMEM, "allocate state", "first values");
        for (size_t i = 0; i < m->tensor_count; i++) {
                const struct model_tensor *t = &m->tensor[i];
                size_t bytes = state_element_bytes(st);
                model_initialise(m, i, x, seed);
                if (state_is_narrow(st)) /* in place: what is written lies behind what is read */
                        for (size_t k = 0; k < t->count; k++)
                                ((uint16_t *) (void *) x)[k] = st->dtype == CAIRN_BF16
                                                                       ? cast_bf16_of_f32(x[k])
                                                                       : cast_f16_of_f32(x[k]);
                c->ops->upload(c, (char *) st->parameters + t->offset * bytes, x, t->count * bytes);
        }
        return 0;
}

static double first_scale(const struct settings *s) {
        return s->loss_scale < 0 ? LOSS_SCALE_FIRST : s->loss_scale == 0 ? 1.0 : s->loss_scale;
}

int state_init(struct state *st, struct cairn *c, struct compute *compute, const struct model *m,
               const struct settings *s, uint32_t rank, struct cairn_error *reterr) {
        int r;

        *st = (struct state){
                .model = m,
                .compute = compute,
                .dtype = settings_dtype(s),
                .has_ema = s->ema > 0,
                .is_sharded = s->zero > 0,
                .shard = s->zero > 0 ? shard_of(m->block_count, rank, (uint32_t) s->world)
                                     : shard_of(m->block_count, 0, 1),
                .running_is_wrong = s->batchnorm_wrong,
                .loss_scale = first_scale(s),
                .data_seed = (uint64_t) s->seed,
                .dropout_seed = (uint64_t) s->seed,
                .best_loss = INFINITY,
                .best_step = -1,
        };
        TRY_GOTO(allocate_blocks(st, c, s->batchnorm_demo, reterr), fail);
        TRY_GOTO(make_working_weights(st, reterr), fail);
        st->truths = calloc(m->tensor_count, sizeof(*st->truths));
        r = st->truths ? set_first_values(st, (uint64_t) s->seed, reterr)
                       : error_set_errno(reterr, ENOMEM, "allocate state", "steps");
        if (r < 0)
                goto fail;
        state_begin_update(st);
        state_restored(st);
        TRY_GOTO(compute->ops->finish(compute, reterr), fail);
        return 0;
fail:
        state_done(st);
        return r;
}

void state_done(struct state *st) {
        if (!st)
                return;
        free(st->truths);
        if (st->working_is_own && st->working)
                st->compute->ops->release(st->compute, st->working);
        st->truths = NULL;
        st->working = NULL;
}

void state_restored(struct state *st) {
        struct compute *c = st->compute;

        if (st->working_is_own)
                c->ops->cast(c, st->working, c->type, st->parameters, st->dtype, st->shard.whole);
}

void state_obey(struct state *st, const struct settings *s) {
        st->data_seed = st->dropout_seed = (uint64_t) s->seed;
        if (s->loss_scale >= 0)
                st->loss_scale = first_scale(s);
}

void state_begin_update(struct state *st) {
        struct compute *c = st->compute;

        if (st->truths[0] > 0)
                return;
        if (state_is_narrow(st))
                c->ops->cast(c, st->masters, CAIRN_F32, state_own_parameters(st), st->dtype,
                             st->shard.count);
        if (st->has_ema)
                c->ops->copy(c, st->ema, state_weights(st), st->shard.count * sizeof(float));
}

static int declare(struct cairn *c, const struct model_tensor *t, const char *suffix,
                   enum cairn_role role, struct cairn_tensor tensor) {
        char name[80];

        (void) snprintf(name, sizeof(name), "%s%s", t->name, suffix);
        tensor.size = sizeof(tensor);
        tensor.name = name;
        tensor.role = role;
        tensor.rank = t->rank;
        tensor.shape[0] = t->shape[0];
        tensor.shape[1] = t->shape[1];
        return cairn_register(c, &tensor);
}

/* A tensor of the optimizer's state: the same on all ranks, or a part on each. */
static int declare_part(const struct state *st, struct cairn *c, const struct model_tensor *t,
                        const char *suffix, enum cairn_role role, float *block) {
        struct shard_part p = shard_part(&st->shard, t->offset, t->count);

        if (!block)
                return 0;
        return declare(c, t, suffix, role,
                       (struct cairn_tensor){.dtype = CAIRN_F32,
                                             .data = p.count ? block + p.in_shard : NULL,
                                             .replicated = !st->is_sharded,
                                             .sharded = st->is_sharded,
                                             .flat_start = p.in_tensor,
                                             .flat_count = p.count});
}

static int declare_values(struct state *st, struct cairn *c) {
        TRY(cairn_state_i64(c, "data.samples", &st->samples));
        TRY(cairn_state_i64(c, "data.epoch", &st->epoch));
        TRY(cairn_state_u64(c, "data.seed", &st->data_seed));
        TRY(cairn_state_u64(c, "dropout.seed", &st->dropout_seed));
        TRY(cairn_state_i64(c, "batch.full", &st->batch_full));
        TRY(cairn_state_i64(c, "batch.micro", &st->batch_micro));
        TRY(cairn_state_i64(c, "accumulation.phase", &st->accumulation_phase));
        TRY(cairn_state_i64(c, "ema.updates", &st->ema_updates));
        TRY(cairn_state_f64(c, "loss_scale.value", &st->loss_scale));
        TRY(cairn_state_i64(c, "loss_scale.good_steps", &st->good_steps));
        TRY(cairn_state_i64(c, "updates.skipped", &st->skipped));
        TRY(cairn_state_i64(c, "updates.nonfinite_run", &st->nonfinite_run));
        TRY(cairn_state_f64(c, "early_stop.best_loss", &st->best_loss));
        TRY(cairn_state_i64(c, "early_stop.best_step", &st->best_step));
        TRY(cairn_state_i64(c, "early_stop.wait", &st->evaluations_without_gain));
        return cairn_state_f64(c, "time.seconds", &st->seconds);
}

int state_declare(struct state *st, struct cairn *c) {
        const struct model *m = st->model;
        char name[80];

        for (size_t i = 0; i < m->tensor_count; i++) {
                const struct model_tensor *t = &m->tensor[i];
                void *data = (char *) st->parameters + t->offset * state_element_bytes(st);
                TRY(declare(c, t, "", CAIRN_PARAMETER,
                            (struct cairn_tensor){
                                    .dtype = st->dtype, .data = data, .replicated = true}));
                TRY(declare_part(st, c, t, ".master", CAIRN_MASTER, st->masters));
                TRY(declare_part(st, c, t, ".moment1", CAIRN_MOMENT1, st->moment1));
                TRY(declare_part(st, c, t, ".moment2", CAIRN_MOMENT2, st->moment2));
                TRY(declare_part(st, c, t, ".ema", CAIRN_EMA, st->ema));
                (void) snprintf(name, sizeof(name), "%s.step", t->name);
                TRY(cairn_register_step(c, name, &st->steps[i], &st->truths[i]));
        }
        if (st->running)
                TRY(cairn_register(c, &(struct cairn_tensor){
                                              CAIRN_TENSOR_INIT, .name = "embedding.running_mean",
                                              .role = CAIRN_BUFFER, .dtype = CAIRN_F32,
                                              .mutates = st->running_is_wrong ? CAIRN_IN_UPDATE
                                                                              : CAIRN_ANYTIME,
                                              .rank = 1, .shape = {m->width}, .data = st->running,
                                              .replicated = true}));
        return declare_values(st, c);
}
