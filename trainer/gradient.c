/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/gradient.h"
#include "base/cleanup.h"
#include "trainer/train.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>

/* What a rank says of its part; eight bytes each, so that nothing in between is undefined. */
struct report {
        double loss; /* sum of the micro-batches' means */
        int64_t is_short;
};

static bool is_short_on_purpose(const struct train *t, int64_t step) {
        return step == t->settings.oom_step && t->batch.micro == t->batch.full;
}

/* A rehearsal: the first element of the gradient becomes this. */
static void spoil(struct train *t, float value) {
        t->compute->ops->upload(t->compute, t->gradient_block, &value, sizeof(value));
}

static int short_of_memory(struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_NOMEM, "compute gradient", "micro-batch",
                         "memory is short");
}

static int compute_part(struct train *t, const struct network_pass *pass, float scale,
                        double *ret_loss, struct cairn_error *reterr) {
        struct batch *b = &t->batch;
        float loss;

        corpus_batch(&t->corpus, b->inputs, b->targets, pass->sample, (uint64_t) b->micro,
                     (uint64_t) b->context);
        network_forward(&b->network, &t->weights, b->inputs, b->targets, pass);
        network_backward(&b->network, &t->weights, &t->gradients, scale);
        TRY(network_loss(&b->network, &loss, reterr));
        *ret_loss += (double) loss;
        return 0;
}

/* NOMEM: memory is short for these micro-batches. */
static int compute(struct train *t, int64_t step, double *ret_loss, struct cairn_error *reterr) {
        const struct settings *s = &t->settings;
        struct batch *b = &t->batch;
        struct network_pass pass = {
                .training = true, .seed = t->state.dropout_seed, .step = (uint64_t) step};
        int64_t first = t->state.samples + t->group.rank * b->local;
        double parts = (double) (batch_count(b) * t->group.world);

        if (!b->is_ready)
                return short_of_memory(reterr);
        t->compute->ops->zero(t->compute, t->gradient_block, t->state.shard.whole * sizeof(float));
        *ret_loss = 0.0;
        for (int64_t done = 0; done < b->local; done += b->micro) {
                if (is_short_on_purpose(t, step) && done + b->micro == b->local)
                        return short_of_memory(reterr);
                pass.sample = (uint64_t) (first + done);
                if (done == 0 && step == s->stall_step)
                        train_stall(t, s->stall_ms);
                TRY(compute_part(t, &pass, (float) (t->state.loss_scale / parts), ret_loss,
                                 reterr));
        }
        if (step == s->overflow_step)
                spoil(t, INFINITY);
        if (s->nan_step > 0 && step >= s->nan_step)
                spoil(t, NAN);
        return 0;
}

/* Together: each rank heard the same, so each does the same. */
static int shrink(struct train *t, uint32_t short_rank, struct cairn_error *reterr) {
        int64_t before = t->batch.micro;

        if (!batch_shrink(&t->batch))
                return error_set(reterr, CAIRN_ERR_NOMEM, "compute gradient", "activations",
                                 "rank %" PRIu32 " has no memory for a single sample; give a "
                                 "smaller --width, --layers or --context",
                                 short_rank);
        if (t->group.rank == 0)
                progress_say(&t->progress,
                             "memory is short on rank %" PRIu32 " after step %" PRId64
                             ": micro-batches of %" PRId64 " instead of %" PRId64
                             ", the global batch stays",
                             short_rank, t->step, t->batch.micro, before);
        return 0;
}

/* All of the state that a forward pass changes; an attempt that is given up must leave no trace. */
static int keep_running(struct train *t, struct cairn_error *reterr) {
        struct compute *c = t->compute;

        if (!t->state.running)
                return 0;
        c->ops->copy(c, t->running_before, t->state.running, t->model.width * sizeof(float));
        /* Done before anything that may fail for memory, which may undo what is queued with it. */
        return c->ops->finish(c, reterr);
}

static void give_back_running(struct train *t) {
        struct compute *c = t->compute;

        if (t->state.running)
                c->ops->copy(c, t->state.running, t->running_before,
                             t->model.width * sizeof(float));
}

/* Until no rank is short of memory; `all` are the reports then. */
static int settle(struct train *t, int64_t step, bool computes, struct report *all,
                  struct cairn_error *reterr) {
        struct report *own = &all[t->group.rank];

        if (computes)
                TRY(keep_running(t, reterr));
        for (;;) {
                uint32_t rank = 0;
                *own = (struct report){0};
                int r = computes            ? compute(t, step, &own->loss, reterr)
                        : t->batch.is_ready ? 0
                                            : CAIRN_ERR_NOMEM;
                if (r < 0 && r != CAIRN_ERR_NOMEM)
                        return r;
                own->is_short = r == CAIRN_ERR_NOMEM;
                TRY(group_spread(&t->group, all, sizeof(*all), reterr));
                while (rank < t->group.world && !all[rank].is_short)
                        rank++;
                if (rank == t->group.world)
                        return 0;
                TRY(shrink(t, rank, reterr));
                if (computes)
                        give_back_running(t);
        }
}

static int make_reports(const struct train *t, struct report **ret, struct cairn_error *reterr) {
        *ret = calloc(t->group.world, sizeof(**ret));
        return *ret ? 0 : error_set_errno(reterr, ENOMEM, "compute gradient", "reports");
}

int gradient_prepare(struct train *t, struct cairn_error *reterr) {
        _cleanup_free_ struct report *all = NULL;

        TRY(make_reports(t, &all, reterr));
        return settle(t, 0, false, all, reterr);
}

int gradient_compute(struct train *t, int64_t step, float *ret_loss, struct cairn_error *reterr) {
        _cleanup_free_ struct report *all = NULL;
        const struct shard *shard = &t->state.shard;
        double loss = 0.0;

        TRY(make_reports(t, &all, reterr));
        TRY(settle(t, step, true, all, reterr));
        for (uint32_t rank = 0; rank < t->group.world; rank++)
                loss += all[rank].loss;
        *ret_loss = (float) (loss / (double) (batch_count(&t->batch) * t->group.world));
        return t->state.is_sharded
                       ? group_sum_part(&t->group, t->gradient_block, shard->count, reterr)
                       : group_sum(&t->group, t->gradient_block, shard->whole, reterr);
}
