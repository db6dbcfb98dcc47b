/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/ending.h"
#include "base/cleanup.h"
#include "trainer/stop.h"
#include "trainer/train.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>

enum { EXIT_NONFINITE = 1 };

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

int ending_decide(struct train *t, enum train_end *ret, struct cairn_error *reterr) {
        _cleanup_free_ int64_t *all = calloc(t->group.world, sizeof(*all));

        if (!all)
                return error_set_errno(reterr, ENOMEM, "decide", "reasons");
        all[t->group.rank] = why_end(t);
        TRY(group_spread(&t->group, all, sizeof(*all), reterr));
        *ret = TRAIN_GOES_ON;
        for (uint32_t rank = 0; rank < t->group.world; rank++)
                if (all[rank] != TRAIN_GOES_ON && (*ret == TRAIN_GOES_ON || all[rank] < (int) *ret))
                        *ret = (enum train_end) all[rank];
        return 0;
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

int ending_carry_out(struct train *t, enum train_end end) {
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
                if (t->group.rank == 0)
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
