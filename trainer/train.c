/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/train.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "trainer/agreement.h"
#include "trainer/ending.h"
#include "trainer/gradient.h"
#include "trainer/stop.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>

enum { STALL_TURN_MS = 200 };

double train_seconds(const struct train *t) {
        return t->seconds_before + (double) (clock_now(&clock_system) - t->begin_ns) * 1e-9;
}

void train_stall(struct train *t, int64_t milliseconds) {
        while (milliseconds > 0) {
                int64_t turn = milliseconds < STALL_TURN_MS ? milliseconds : STALL_TURN_MS;
                clock_system.sleep_ns(clock_system.context, (uint64_t) turn * 1000000);
                group_keepalive(&t->group);
                milliseconds -= turn;
        }
}

/* ---- building ---- */

/* The average is evaluated where the state keeps it, unless a part is missing or it is wider than
 * what is computed in. */
static int make_average(struct train *t, struct cairn_error *reterr) {
        size_t elements = t->state.shard.whole;
        struct compute *c = t->compute;
        void *p = NULL;

        if (!t->state.has_ema)
                return 0;
        t->average_block = t->state.ema;
        if (t->state.is_sharded) {
                TRY(c->ops->allocate(c, elements * sizeof(float), &p, reterr));
                t->average_block = p;
        }
        t->average_working = t->average_block;
        if (c->type != CAIRN_F32)
                TRY(c->ops->allocate(c, elements * 2, &t->average_working, reterr));
        model_view(&t->model, &t->average, t->layer_views + 2 * t->model.layers, t->average_working,
                   c->type == CAIRN_F32 ? 4 : 2);
        return 0;
}

static int make_buffers(struct train *t, struct cairn_error *reterr) {
        size_t elements = t->state.shard.whole, layers = t->model.layers;
        struct compute *c = t->compute;
        void *p = NULL;

        t->layer_views = calloc(3 * layers, sizeof(*t->layer_views));
        t->sums = calloc(elements / SHARD_CHUNK, sizeof(*t->sums));
        if (!t->layer_views || !t->sums)
                return error_set_errno(reterr, ENOMEM, "make model", "views");
        TRY(c->ops->allocate(c, elements * sizeof(float), &p, reterr));
        t->gradient_block = p;
        if (t->state.running) {
                TRY(c->ops->allocate(c, t->model.width * sizeof(float), &p, reterr));
                t->running_before = p;
        }
        model_view(&t->model, &t->weights, t->layer_views, t->state.working,
                   c->type == CAIRN_F32 ? 4 : 2);
        model_view(&t->model, &t->gradients, t->layer_views + layers, t->gradient_block,
                   sizeof(float));
        return make_average(t, reterr);
}

int train_build(struct train *t, struct cairn_error *reterr) {
        const struct settings *s = &t->settings;

        schedule_init(&t->schedule, s);
        TRY(corpus_load(&t->corpus, s, reterr));
        TRY(model_init(&t->model, (size_t) s->layers, (size_t) s->heads, (size_t) s->width,
                       (size_t) s->positions, t->corpus.vocabulary_count, reterr));
        TRY(state_init(&t->state, t->checkpoint.cairn, t->compute, &t->model, s, t->group.rank,
                       reterr));
        batch_init(&t->batch, t->compute, &t->model, s, t->state.running);
        return make_buffers(t, reterr);
}

/* ---- all ranks begin with the same ---- */

static int add_setting(const char *key, const char *value, void *argument) {
        /* Where each one writes its log is its own matter. */
        if (strcmp(key, "free.log") != 0)
                agreement_add(argument, key, "%s", value);
        return 0;
}

static int agree_on_start(struct train *t, struct cairn_error *reterr) {
        const struct cairn_session *session = &t->checkpoint.session;
        struct agreement a = {0};

        agreement_add(&a, "restart", "%" PRIu64, session->generation);
        agreement_add(&a, "mode", "%d", (int) session->start);
        agreement_add(&a, "checkpoint", "%s", session->checkpoint);
        agreement_add(&a, "checkpoint_step", "%" PRId64, session->checkpoint_step);
        (void) settings_each(&t->settings, add_setting, &a);
        agreement_add(&a, "data.fingerprint", "%016" PRIx64, t->corpus.fingerprint);
        agreement_add(&a, "data.vocabulary", "%" PRIu32, t->corpus.vocabulary_count);
        int r = agreement_check(&a, &t->group, reterr);
        agreement_done(&a);
        return r;
}

/* An exchange that a gate may hold up has to wait longer than that. */
static int check_patience(const struct train *t, struct cairn_error *reterr) {
        struct cairn_statistics n = {.size = sizeof(n)};
        const double margin = 5.0;

        if (t->group.world == 1 || cairn_get_statistics(t->checkpoint.cairn, &n) < 0)
                return 0;
        double gate = (double) n.gate_deadline_ns * 1e-9;
        if (gate + margin <= t->settings.collective_timeout)
                return 0;
        return error_set(reterr, CAIRN_ERR_API, "start", "--collective-timeout",
                         "a snapshot may hold a rank up for %.1f s: give at least %.0f", gate,
                         gate + margin + 0.5);
}

static int weights_digest(const struct train *t, uint64_t *ret, struct cairn_error *reterr) {
        return t->compute->ops->digest(t->compute, ret, t->state.parameters,
                                       t->state.shard.whole * state_element_bytes(&t->state),
                                       reterr);
}

static int agree_on_step(struct train *t, uint64_t weights, struct cairn_error *reterr) {
        struct agreement a = {0};

        agreement_add(&a, "step", "%" PRId64, t->checkpoint.report.step);
        agreement_add(&a, "samples", "%" PRId64, t->state.samples);
        agreement_add(&a, "micro_batch", "%" PRId64 "/%" PRId64, t->state.batch_micro,
                      t->state.batch_full);
        agreement_add(&a, "weights", "%016" PRIx64, weights);
        int r = agreement_check(&a, &t->group, reterr);
        agreement_done(&a);
        return r;
}

/* ---- starting ---- */

static int open_log(struct train *t, struct cairn_error *reterr) {
        const struct cairn_session *session = &t->checkpoint.session;
        const char *path = t->settings.log;
        char in_run_dir[4096];
        int64_t last;

        TRY(sample_log_open(&t->sample_log, t->settings.sample_log, t->group.rank, reterr));
        if (t->group.rank > 0)
                return 0;
        if (!path && session->run_dir && session->run_dir[0]) {
                (void) snprintf(in_run_dir, sizeof(in_run_dir), "%s/log.jsonl", session->run_dir);
                path = in_run_dir;
        }
        TRY(training_log_open(&t->log, path, t->step, session->restart == 0, &last, reterr));
        if (path && last < t->step)
                progress_say(&t->progress,
                             "the log lacks steps %" PRId64 " to %" PRId64
                             ": it was moved, or lost with its machine",
                             last + 1, t->step);
        return 0;
}

/* Errors of libcairn keep their exit status and their text, which may list many mismatches and
 * would not fit a struct cairn_error: it is printed here, where the handle still is. */
static int session_failed(const struct train *t, int r, int *ret_code) {
        *ret_code = checkpoint_exit_code(&t->checkpoint);
        (void) fprintf(stderr, "cairn-train: %s\n", checkpoint_error_text(&t->checkpoint));
        return r;
}

static int meet_and_build(struct train *t, struct cairn_error *reterr) {
        struct checkpoint *cp = &t->checkpoint;

        t->group = (struct group){.rank = cp->session.rank, .world = cp->session.world};
        t->settings.world = cp->session.world;
        TRY(checkpoint_override(cp, &t->settings, reterr));
        settings_rehearse_on(&t->settings, t->group.rank);
        TRY(group_open(&t->group, cp->cairn, t->compute, cp->session.generation, &t->settings,
                       reterr));
        TRY(train_build(t, reterr));
        return agree_on_start(t, reterr);
}

static void announce(struct train *t, uint64_t weights) {
        const struct cairn_report *report = &t->checkpoint.report;

        progress_init(&t->progress, t->settings.steps, t->step, t->settings.quiet, t->begin_ns);
        t->progress.is_silent = t->group.rank > 0;
        if (t->group.world > 1)
                progress_say(&t->progress,
                             "%" PRIu32 " ranks by %s; weights equal, digest %016" PRIx64,
                             t->group.world, group_describe(&t->group), weights);
        if (report->text && report->text[0])
                progress_say(&t->progress, "%s", report->text);
        /* A person reads the line; whoever collects output finds the object. */
        if (!t->progress.is_terminal && report->json && report->json[0])
                progress_say(&t->progress, "%s", report->json);
}

/* What all ranks together read for the restore: other numbers of ranks cut the state elsewhere. */
static int announce_reading(struct train *t, struct cairn_error *reterr) {
        struct {
                uint64_t needed, read;
        } * all, sum = {0};
        _cleanup_free_ void *memory = all = calloc(t->group.world, sizeof(*all));

        if (!memory)
                return error_set_errno(reterr, ENOMEM, "start", "report");
        all[t->group.rank].needed = t->checkpoint.report.bytes;
        all[t->group.rank].read = t->checkpoint.report.bytes_read;
        TRY(group_spread(&t->group, all, sizeof(*all), reterr));
        for (uint32_t rank = 0; rank < t->group.world; rank++) {
                sum.needed += all[rank].needed;
                sum.read += all[rank].read;
        }
        if (sum.needed > 0)
                progress_say(&t->progress,
                             "%" PRIu32 " rank%s needed %" PRIu64 " bytes of the checkpoint and "
                             "read %" PRIu64,
                             t->group.world, t->group.world == 1 ? "" : "s", sum.needed, sum.read);
        return 0;
}

static int begin(struct train *t, struct cairn_error *reterr) {
        uint64_t weights;

        TRY(check_patience(t, reterr));
        TRY(weights_digest(t, &weights, reterr));
        TRY(agree_on_step(t, weights, reterr));
        train_restored(t, t->checkpoint.report.step);
        announce(t, weights);
        TRY(announce_reading(t, reterr));
        TRY(open_log(t, reterr));
        return gradient_prepare(t, reterr);
}

static int exit_code(const struct train *t, int status) {
        if (t->compute && t->compute->is_lost)
                return COMPUTE_EXIT_LOST;
        if (status == CAIRN_ERR_VOID)
                return stop_signal() == SIGTERM ? EXIT_PREEMPTED : 0;
        return status_exit_code(status);
}

/* What this build or machine lacks no restart brings; nor is a checkpoint bad. */
static int lacking_code(int status, int otherwise) {
        return status == CAIRN_ERR_UNSUPPORTED ? status_exit_code(CAIRN_ERR_API) : otherwise;
}

static int open_compute(struct train *t, int *ret_code, struct cairn_error *reterr) {
        const struct settings *s = &t->settings;
        struct compute_options o = {.dtype = settings_dtype(s),
                                    .threads = (int) s->threads,
                                    .tf32 = s->tf32,
                                    .limit_ns = (uint64_t) (s->device_timeout * 1e9)};
        int r = compute_open(s->device, &o, &t->compute, reterr);

        *ret_code =
                lacking_code(r, r == CAIRN_ERR_DEVICE ? COMPUTE_EXIT_LOST : status_exit_code(r));
        return r;
}

int train_init(struct train *t, const struct settings *settings, int *ret_code,
               struct cairn_error *reterr) {
        struct checkpoint *cp = &t->checkpoint;
        char sums[128];
        int r;

        *t = (struct train){.settings = *settings, .log = {.fd = -1}, .group.world = 1};
        TRY(open_compute(t, ret_code, reterr));
        r = checkpoint_open(cp, settings, t->compute);
        if (r < 0) {
                (void) session_failed(t, r, ret_code);
                *ret_code = lacking_code(r, *ret_code);
                return r;
        }
        r = meet_and_build(t, reterr);
        if (r < 0) {
                *ret_code = exit_code(t, r);
                return r;
        }
        r = checkpoint_restore(cp, &t->settings, &t->corpus, &t->state,
                               group_numerics(&t->group, sums, sizeof(sums)));
        if (r < 0)
                return session_failed(t, r, ret_code);
        r = begin(t, reterr);
        *ret_code = exit_code(t, r);
        return r;
}

void train_restored(struct train *t, int64_t step) {
        struct state *st = &t->state;

        t->step = step;
        state_obey(st, &t->settings);
        t->corpus.seed = st->data_seed;
        /* Where memory was short the run went on with smaller micro-batches. */
        while (st->batch_full == t->batch.full && t->batch.micro > st->batch_micro &&
               batch_shrink(&t->batch))
                ;
        t->seconds_before = st->seconds;
        t->begin_ns = clock_now(&clock_system);
}

static void buffers_done(struct train *t) {
        struct compute *c = t->compute;

        if (t->average_working != t->average_block)
                c->ops->release(c, t->average_working);
        if (t->average_block != t->state.ema)
                c->ops->release(c, t->average_block);
        c->ops->release(c, t->running_before);
        c->ops->release(c, t->gradient_block);
}

void train_done(struct train *t) {
        group_close(&t->group);
        training_log_close(&t->log);
        if (t->sample_log)
                (void) fclose(t->sample_log);
        free(t->layer_views);
        free(t->sums);
        batch_done(&t->batch);
        if (t->compute)
                buffers_done(t);
        state_done(&t->state);
        model_done(&t->model);
        corpus_done(&t->corpus);
        checkpoint_close(&t->checkpoint);
        compute_close(t->compute);
        settings_done(&t->settings);
}

/* ---- one step ---- */

static int examine(struct train *t, struct update *u, struct cairn_error *reterr) {
        const struct shard *shard = &t->state.shard;

        TRY(update_sums(&t->state, t->sums + shard->first / SHARD_CHUNK,
                        t->gradient_block + shard->first, shard->count, reterr));
        if (t->state.is_sharded)
                TRY(group_spread(&t->group, t->sums, shard->count / SHARD_CHUNK * sizeof(*t->sums),
                                 reterr));
        update_examine(u, &t->state, t->sums, shard->whole / SHARD_CHUNK, &t->settings);
        return 0;
}

/* Inside the update: the shard, and then what the other ranks made of theirs. */
static int apply(struct train *t, const struct update *u, double rate, struct cairn_error *reterr) {
        struct state *st = &t->state;

        update_apply(u, st, t->gradient_block + st->shard.first, &t->settings, rate);
        if (st->is_sharded && u->is_finite)
                TRY(group_gather(&t->group, st->parameters,
                                 st->shard.count * state_element_bytes(st), reterr));
        state_restored(st);
        return t->compute->ops->check(t->compute, reterr);
}

int train_step(struct train *t, float *ret_loss, struct cairn_error *reterr) {
        const struct settings *s = &t->settings;
        struct state *st = &t->state;
        int64_t step = t->step + 1, first = st->samples + t->group.rank * t->batch.local;
        struct update update;
        bool stalls = s->update_stall_step == 0 || s->update_stall_step == step;

        double rate = schedule_rate(&t->schedule, st->samples);
        train_stall(t, s->step_ms);
        TRY(gradient_compute(t, step, ret_loss, reterr));
        TRY(examine(t, &update, reterr));

        checkpoint_update_begin(&t->checkpoint);
        TRY(apply(t, &update, rate, reterr));
        st->samples += s->global_batch;
        st->epoch = (int64_t) corpus_epoch(&t->corpus, (uint64_t) st->samples);
        st->batch_full = t->batch.full;
        st->batch_micro = t->batch.micro;
        st->seconds = train_seconds(t);
        sample_log_write(t->sample_log, &t->corpus, (uint64_t) first, (uint64_t) t->batch.local);
        training_log_write_step(&t->log, &(struct training_log_step){.step = step,
                                                                     .samples = st->samples,
                                                                     .loss = *ret_loss,
                                                                     .rate = rate,
                                                                     .seconds = st->seconds});
        train_stall(t, stalls ? s->update_stall_ms : 0);
        checkpoint_update_end(&t->checkpoint, step);
        t->step = step;
        return 0;
}

static int evaluate_average(struct train *t, float *ret, struct cairn_error *reterr) {
        const struct shard *shard = &t->state.shard;
        struct compute *c = t->compute;

        if (t->state.is_sharded) {
                c->ops->copy(c, t->average_block + shard->first, t->state.ema,
                             shard->count * sizeof(float));
                TRY(group_gather(&t->group, t->average_block, shard->count * sizeof(float),
                                 reterr));
        }
        if (c->type != CAIRN_F32)
                c->ops->cast(c, t->average_working, c->type, t->average_block, CAIRN_F32,
                             shard->whole);
        return evaluate_loss(&t->group, &t->batch, &t->average, &t->corpus,
                             t->settings.eval_batches, ret, reterr);
}

int train_evaluate(struct train *t, struct cairn_error *reterr) {
        struct training_log_evaluation line = {.step = t->step, .has_ema = t->state.has_ema};

        train_stall(t, t->settings.eval_stall_ms);
        TRY(evaluate_loss(&t->group, &t->batch, &t->weights, &t->corpus, t->settings.eval_batches,
                          &line.loss, reterr));
        if (line.has_ema)
                TRY(evaluate_average(t, &line.ema_loss, reterr));
        evaluate_judge(&t->state, line.has_ema ? line.ema_loss : line.loss, t->step);
        line.seconds = train_seconds(t);
        training_log_write_evaluation(&t->log, &line);
        return 0;
}

/* ---- the loop ---- */

static int run(struct train *t, enum train_end *ret_end, struct cairn_error *reterr) {
        int64_t every = t->settings.eval_every;
        float loss;

        for (;;) {
                if (every > 0 && t->step > 0 && t->step % every == 0)
                        TRY(train_evaluate(t, reterr));
                TRY(ending_decide(t, ret_end, reterr));
                if (*ret_end != TRAIN_GOES_ON)
                        return 0;
                TRY(train_step(t, &loss, reterr));
                uint64_t now_ns = clock_now(&clock_system);
                if (progress_is_due(&t->progress, t->step, now_ns))
                        progress_step(&t->progress, t->step, loss,
                                      schedule_rate(&t->schedule, t->state.samples),
                                      checkpoint_saved_step(&t->checkpoint), now_ns);
        }
}

int train_run(struct train *t, struct cairn_error *reterr) {
        enum train_end end = TRAIN_GOES_ON;
        int r = run(t, &end, reterr);
        if (r >= 0 && reterr) /* what it got over is not why it ended */
                *reterr = (struct cairn_error) CAIRN_ERROR_INIT;
        int code = r < 0 ? exit_code(t, r) : ending_carry_out(t, end);

        if (t->checkpoint.failures > 0)
                (void) fprintf(stderr,
                               "cairn-train: %" PRIu64 " calls for checkpoints failed; training "
                               "was not affected\n",
                               t->checkpoint.failures);
        return code;
}
