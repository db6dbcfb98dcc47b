/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/train.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "trainer/matmul.h"
#include "trainer/stop.h"
#include <inttypes.h>
#include <math.h>
#include <signal.h>

enum { EXIT_NONFINITE = 1, EXIT_PREEMPTED = 75 };

static double seconds_now(const struct train *t) {
        return t->seconds_before + (double) (clock_now(&clock_system) - t->begin_ns) * 1e-9;
}

static void stall(int64_t milliseconds) {
        if (milliseconds > 0)
                clock_system.sleep_ns(clock_system.context, (uint64_t) milliseconds * 1000000);
}

/* ---- building ---- */

static int make_buffers(struct train *t, struct cairn_error *reterr) {
        size_t rows = (size_t) (t->settings.batch * t->settings.context);
        size_t bytes = t->model.block_count * sizeof(float), layers = t->model.layers;

        t->layer_views = calloc(3 * layers, sizeof(*t->layer_views));
        t->gradient_block = aligned_alloc(256, bytes);
        t->inputs = malloc(rows * sizeof(*t->inputs));
        t->targets = malloc(rows * sizeof(*t->targets));
        if (!t->layer_views || !t->gradient_block || !t->inputs || !t->targets)
                return error_set(reterr, CAIRN_ERR_NOMEM, "make model", "gradients",
                                 "%zu MiB of memory are not free; give a smaller --width",
                                 bytes >> 20);
        model_view(&t->model, &t->weights, t->layer_views, t->state.compute);
        model_view(&t->model, &t->gradients, t->layer_views + layers, t->gradient_block);
        if (t->state.has_ema)
                model_view(&t->model, &t->average, t->layer_views + 2 * layers, t->state.ema);
        return 0;
}

int train_build(struct train *t, struct cairn_error *reterr) {
        const struct settings *s = &t->settings;

        matmul_set_threads((int) s->threads);
        schedule_init(&t->schedule, s);
        TRY(corpus_load(&t->corpus, s, reterr));
        TRY(model_init(&t->model, (size_t) s->layers, (size_t) s->heads, (size_t) s->width,
                       (size_t) s->positions, t->corpus.vocabulary_count, reterr));
        TRY(state_init(&t->state, t->checkpoint.cairn, &t->model, s, reterr));
        TRY(network_init(&t->network, &t->model, (size_t) s->batch, (size_t) s->context, s->dropout,
                         reterr));
        t->network.running = t->state.running;
        return make_buffers(t, reterr);
}

static int open_log(struct train *t, struct cairn_error *reterr) {
        const struct cairn_session *session = &t->checkpoint.session;
        const char *path = t->settings.log;
        char in_run_dir[4096];
        int64_t last;

        /* The operator's own links are meant; in the run's folder there may be others'. */
        _cleanup_free_ char *resolved = path ? realpath(path, NULL) : NULL;
        if (resolved)
                path = resolved;
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

int train_init(struct train *t, const struct settings *settings, int *ret_code,
               struct cairn_error *reterr) {
        struct checkpoint *cp = &t->checkpoint;
        int r;

        *t = (struct train){.settings = *settings, .log = {.fd = -1}};
        r = checkpoint_open(cp, settings);
        if (r < 0)
                return session_failed(t, r, ret_code);
        r = checkpoint_override(cp, &t->settings, reterr);
        if (r >= 0 && cp->session.world > 1)
                r = error_set(reterr, CAIRN_ERR_API, "start", "world",
                              "%u ranks were started, this trainer is one; give cairn run "
                              "--nproc-per-node 1",
                              cp->session.world);
        if (r >= 0)
                r = train_build(t, reterr);
        if (r < 0) {
                *ret_code = status_exit_code(r);
                return r;
        }
        r = checkpoint_restore(cp, &t->settings, &t->corpus, &t->state);
        if (r < 0)
                return session_failed(t, r, ret_code);
        train_restored(t, cp->report.step);
        progress_init(&t->progress, t->settings.steps, t->step, t->settings.quiet, t->begin_ns);
        if (cp->report.text && cp->report.text[0])
                progress_say(&t->progress, "%s", cp->report.text);
        /* A person reads the line; whoever collects output finds the object. */
        if (!t->progress.is_terminal && cp->report.json && cp->report.json[0])
                progress_say(&t->progress, "%s", cp->report.json);
        r = open_log(t, reterr);
        *ret_code = status_exit_code(r);
        return r;
}

void train_restored(struct train *t, int64_t step) {
        t->step = step;
        t->corpus.seed = t->state.data_seed;
        t->seconds_before = t->state.seconds;
        t->begin_ns = clock_now(&clock_system);
}

void train_done(struct train *t) {
        training_log_close(&t->log);
        free(t->layer_views);
        free(t->gradient_block);
        free(t->inputs);
        free(t->targets);
        network_done(&t->network);
        state_done(&t->state);
        model_done(&t->model);
        corpus_done(&t->corpus);
        checkpoint_close(&t->checkpoint);
        settings_done(&t->settings);
}

/* ---- one step ---- */

/* Gradients of the scaled mean loss over all micro-batches; returns the mean loss. */
static float accumulate(struct train *t, int64_t step) {
        const struct settings *s = &t->settings;
        double loss = 0.0;

        memset(t->gradient_block, 0, t->model.block_count * sizeof(float));
        for (int64_t micro = 0; micro < s->accumulate; micro++) {
                struct network_pass pass = {
                        .training = true,
                        .seed = t->state.dropout_seed,
                        .step = (uint64_t) step,
                        .sample = (uint64_t) (t->state.samples + micro * s->batch)};
                if (micro == 0 && step == s->stall_step)
                        stall(s->stall_ms);
                corpus_batch(&t->corpus, t->inputs, t->targets, pass.sample, (uint64_t) s->batch,
                             (uint64_t) s->context);
                loss += (double) network_forward(&t->network, &t->weights, t->inputs, t->targets,
                                                 &pass);
                network_backward(&t->network, &t->weights, &t->gradients, t->inputs, t->targets,
                                 (float) (t->state.loss_scale / (double) s->accumulate));
        }
        if (step == s->overflow_step)
                t->gradient_block[0] = INFINITY;
        if (s->nan_step > 0 && step >= s->nan_step)
                t->gradient_block[0] = NAN;
        return (float) (loss / (double) s->accumulate);
}

float train_step(struct train *t) {
        const struct settings *s = &t->settings;
        struct state *st = &t->state;
        int64_t step = t->step + 1;
        struct update update;
        bool stalls = s->update_stall_step == 0 || s->update_stall_step == step;

        double rate = schedule_rate(&t->schedule, st->samples);
        float loss = accumulate(t, step);
        update_examine(&update, st, t->gradient_block, s);
        stall(s->step_ms);

        checkpoint_update_begin(&t->checkpoint);
        update_apply(&update, st, t->gradient_block, s, rate);
        stall(stalls ? s->update_stall_ms : 0);
        st->samples += s->global_batch;
        st->epoch = (int64_t) corpus_epoch(&t->corpus, (uint64_t) st->samples);
        st->seconds = seconds_now(t);
        training_log_write_step(&t->log, &(struct training_log_step){.step = step,
                                                                     .samples = st->samples,
                                                                     .loss = loss,
                                                                     .rate = rate,
                                                                     .seconds = st->seconds});
        checkpoint_update_end(&t->checkpoint, step);
        t->step = step;
        return loss;
}

void train_evaluate(struct train *t) {
        struct training_log_evaluation line = {.step = t->step, .has_ema = t->state.has_ema};
        int64_t batches = t->settings.eval_batches;

        stall(t->settings.eval_stall_ms);
        line.loss =
                evaluate_loss(&t->network, &t->weights, &t->corpus, batches, t->inputs, t->targets);
        if (line.has_ema)
                line.ema_loss = evaluate_loss(&t->network, &t->average, &t->corpus, batches,
                                              t->inputs, t->targets);
        evaluate_judge(&t->state, line.has_ema ? line.ema_loss : line.loss, t->step);
        line.seconds = seconds_now(t);
        training_log_write_evaluation(&t->log, &line);
}

/* ---- the end ---- */

static enum train_end why_end(const struct train *t) {
        const struct settings *s = &t->settings;
        int signal_number = stop_signal();

        if (t->state.samples >= t->schedule.total_samples)
                return TRAIN_COMPLETED;
        if (s->patience > 0 && t->state.evaluations_without_gain >= s->patience)
                return TRAIN_EARLY_STOP;
        if (s->max_seconds > 0 && t->state.seconds >= s->max_seconds)
                return TRAIN_TIME_IS_UP;
        if (update_is_hopeless(&t->state, s))
                return TRAIN_HOPELESS;
        if (signal_number == SIGTERM)
                return TRAIN_TERMINATED;
        if (signal_number || checkpoint_should_stop(&t->checkpoint))
                return TRAIN_STOP_ASKED;
        if (s->stop_at > 0 && t->step >= s->stop_at)
                return TRAIN_STOP_AT;
        return TRAIN_GOES_ON;
}

static void show_waiting(double seconds, void *argument) {
        progress_wait(argument, "saving the last step", seconds);
}

/* Exit status. reason: how the run is finished, NULL where it is not. */
static int save_and_end(struct train *t, const char *reason, int code) {
        struct checkpoint *cp = &t->checkpoint;
        const char *what = "the last snapshot was not committed";
        int64_t saved;

        if (t->settings.without_checkpoints) {
                progress_say(&t->progress, "ended at step %" PRId64 ", nothing is saved", t->step);
                return code;
        }
        int r = checkpoint_last(cp, t->settings.save_timeout, show_waiting, &t->progress, &saved);
        if (r >= 0) {
                progress_say(&t->progress, "saved step %" PRId64 "%s%s", saved,
                             reason ? ", the run is finished: " : ", the run can be resumed",
                             reason ? reason : "");
                what = "the end of the run was not recorded";
                r = reason ? checkpoint_finish(cp, reason) : 0;
        }
        if (r < 0) {
                progress_say(&t->progress, "ended at step %" PRId64, t->step);
                (void) fprintf(stderr, "cairn-train: %s: %s\n", what, checkpoint_error_text(cp));
                return checkpoint_exit_code(cp);
        }
        return code;
}

static int end_run(struct train *t, enum train_end end) {
        switch (end) {
        case TRAIN_COMPLETED:
                return save_and_end(t, "completed", 0);
        case TRAIN_EARLY_STOP:
                return save_and_end(t, "early stop", 0);
        case TRAIN_TIME_IS_UP:
                return save_and_end(t, "time is up", 0);
        case TRAIN_TERMINATED:
                return save_and_end(t, NULL, EXIT_PREEMPTED);
        case TRAIN_HOPELESS:
                (void) fprintf(stderr,
                               "cairn-train: gradients were not finite %" PRId64
                               " times in a row at step %" PRId64
                               "; lower --lr, or go back with --from\n",
                               t->state.nonfinite_run, t->step);
                return EXIT_NONFINITE;
        case TRAIN_STOP_AT:
        case TRAIN_STOP_ASKED:
        case TRAIN_GOES_ON:
                break;
        }
        return save_and_end(t, NULL, 0);
}

int train_run(struct train *t) {
        int64_t every = t->settings.eval_every;
        enum train_end end;

        for (;;) {
                if (every > 0 && t->step > 0 && t->step % every == 0)
                        train_evaluate(t);
                end = why_end(t);
                if (end != TRAIN_GOES_ON)
                        break;
                float loss = train_step(t);
                uint64_t now_ns = clock_now(&clock_system);
                if (progress_is_due(&t->progress, t->step, now_ns))
                        progress_step(&t->progress, t->step, loss,
                                      schedule_rate(&t->schedule, t->state.samples),
                                      checkpoint_saved_step(&t->checkpoint), now_ns);
        }
        int code = end_run(t, end);
        if (t->checkpoint.failures > 0)
                (void) fprintf(stderr,
                               "cairn-train: %" PRIu64 " calls for checkpoints failed; training "
                               "was not affected\n",
                               t->checkpoint.failures);
        return code;
}
