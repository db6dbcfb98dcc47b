/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/state.h"
#include "kernels/cast.h"
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

        TRY(allocate(c, st->shard.whole, st->is_bf16 ? 2 : 4, &st->parameters, reterr));
        if (st->is_bf16)
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

int state_init(struct state *st, struct cairn *c, const struct model *m, const struct settings *s,
               uint32_t rank, struct cairn_error *reterr) {
        int r;

        *st = (struct state){
                .model = m,
                .is_bf16 = s->dtype == DTYPE_BF16,
                .has_ema = s->ema > 0,
                .is_sharded = s->zero > 0,
                .shard = s->zero > 0 ? shard_of(m->block_count, rank, (uint32_t) s->world)
                                     : shard_of(m->block_count, 0, 1),
                .running_is_wrong = s->batchnorm_wrong,
                .loss_scale = s->loss_scale < 0    ? LOSS_SCALE_FIRST
                              : s->loss_scale == 0 ? 1.0
                                                   : s->loss_scale,
                .data_seed = (uint64_t) s->seed,
                .dropout_seed = (uint64_t) s->seed,
                .best_loss = INFINITY,
                .best_step = -1,
        };
        TRY_GOTO(allocate_blocks(st, c, s->batchnorm_demo, reterr), fail);
        st->truths = calloc(m->tensor_count, sizeof(*st->truths));
        st->compute_is_own = st->is_bf16;
        st->compute = st->is_bf16 ? aligned_alloc(256, st->shard.whole * sizeof(float))
                                  : (float *) st->parameters;
        if (!st->truths || !st->compute) {
                r = error_set(reterr, CAIRN_ERR_NOMEM, "allocate state", "weights",
                              "%zu MiB of memory are not free; give a smaller --width",
                              m->block_count * sizeof(float) >> 20);
                goto fail;
        }
        memset(st->compute, 0,
               st->shard.whole * sizeof(float)); /* what lies between tensors, too */
        model_initialise(m, st->compute, (uint64_t) s->seed);
        if (st->is_bf16)
                cast_f32_to_bf16(st->parameters, st->compute, m->block_count);
        state_begin_update(st);
        state_restored(st);
        return 0;
fail:
        state_done(st);
        return r;
}

void state_done(struct state *st) {
        if (!st)
                return;
        free(st->truths);
        if (st->compute_is_own)
                free(st->compute);
        st->truths = NULL;
        st->compute = NULL;
}

void state_restored(struct state *st) {
        if (st->is_bf16)
                cast_bf16_to_f32(st->compute, st->parameters, st->shard.whole);
}

void state_begin_update(struct state *st) {
        if (st->truths[0] > 0)
                return;
        if (st->is_bf16)
                cast_bf16_to_f32(st->masters, (uint16_t *) st->parameters + st->shard.first,
                                 st->shard.count);
        if (st->has_ema)
                memcpy(st->ema, state_weights(st), st->shard.count * sizeof(float));
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
        enum cairn_dtype dtype = st->is_bf16 ? CAIRN_BF16 : CAIRN_F32;
        char name[80];

        for (size_t i = 0; i < m->tensor_count; i++) {
                const struct model_tensor *t = &m->tensor[i];
                void *data = (char *) st->parameters + t->offset * cairn_dtype_bytes(dtype);
                TRY(declare(
                        c, t, "", CAIRN_PARAMETER,
                        (struct cairn_tensor){.dtype = dtype, .data = data, .replicated = true}));
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
