/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/intent.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char operation[] = "start run";

struct judge {
        const struct start_request *request;
        const struct run_scan *scan;
        intent_verify verify;
        void *context;
        struct intent_verdict *verdict;
        /* what stood in the way, for the refusal */
        struct cairn_error damage; /* of the newest damaged one */
        size_t damaged, foreign;
        const struct scan_checkpoint *flagged; /* the newest */
};

void intent_note(char *note, const char *format, ...) {
        size_t used = strnlen(note, STORE_NOTE_BYTES);
        va_list arguments;

        if (used > 0 && used + 2 < STORE_NOTE_BYTES)
                used += (size_t) snprintf(note + used, STORE_NOTE_BYTES - used, "; ");
        if (used + 1 >= STORE_NOTE_BYTES)
                return;
        va_start(arguments, format);
        (void) vsnprintf(note + used, STORE_NOTE_BYTES - used, format, arguments);
        va_end(arguments);
}

bool intent_is_damage(const struct cairn_error *e) {
        /* A link, or a file where a folder should be, is a decoy and not storage that fails. */
        return e->status == CAIRN_ERR_CORRUPT || e->status == CAIRN_ERR_MISMATCH ||
               e->status == CAIRN_ERR_NOTFOUND || e->system_code == ELOOP ||
               e->system_code == EXDEV || e->system_code == ENOTDIR;
}

static bool is_fresh(enum start_mode mode) {
        return mode == START_FRESH || mode == START_INIT_FROM;
}

int intent_check(const struct start_request *q, struct cairn_error *reterr) {
        TRY(name_check_run(q->run, reterr));
        if (q->mode < START_FRESH || q->mode > START_INIT_FROM)
                return error_set(reterr, CAIRN_ERR_API, operation, q->run,
                                 "mode %d is unknown; use fresh, resume or auto", (int) q->mode);
        if (q->world == 0 || q->world > RANK_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, q->run,
                                 "%" PRIu32 " ranks are not 1 to %d", q->world, RANK_COUNT_MAX);
        if (q->mode == START_AUTO && q->has_from_step)
                return error_set(reterr, CAIRN_ERR_API, operation, q->run,
                                 "--from goes back on purpose and --mode auto decides by itself: "
                                 "leave one of them out");
        if (q->init_from[0] && (q->has_from_step || q->mode == START_RESUME))
                return error_set(reterr, CAIRN_ERR_API, operation, q->run,
                                 "--init-from begins a run; it goes with --mode fresh or auto, "
                                 "not with --mode resume or --from");
        if (q->mode == START_INIT_FROM && !q->init_from[0])
                return error_set(reterr, CAIRN_ERR_API, operation, q->run,
                                 "--init-from names no checkpoint");
        if (q->has_from_step && (q->from_step < 0 || q->from_step > STEP_MAX))
                return error_set(reterr, CAIRN_ERR_API, operation, q->run,
                                 "there is no step %" PRId64, q->from_step);
        return 0;
}

/* ---- candidates ---- */

static bool is_used(const struct run_scan *scan) {
        for (size_t i = 0; i < scan->checkpoint_count; i++)
                if (!scan->checkpoints[i].is_attempt ||
                    scan->checkpoints[i].validity == CHECKPOINT_ROLLABLE ||
                    scan->checkpoints[i].validity == CHECKPOINT_FLAGGED)
                        return true;
        return false;
}

static bool is_newer(const struct scan_checkpoint *a, const struct scan_checkpoint *b) {
        return !b ||
               (a->generation != b->generation ? a->generation > b->generation : a->step > b->step);
}

static void count_damage(struct judge *j, const struct scan_checkpoint *c,
                         const struct cairn_error *e) {
        char text[512];

        if (j->damaged == 0)
                j->damage = *e;
        j->damaged++;
        j->foreign += e->status == CAIRN_ERR_MISMATCH;
        intent_note(j->verdict->note, "%s is damaged (%s)", c->name,
                    error_format(e, text, sizeof text));
}

static bool must_pass_over(const struct start_request *q, const struct scan_checkpoint *c) {
        return q->before_step > 0 && c->step >= q->before_step;
}

/* The newest usable one of the lineage. 0 with verdict->choice NULL: there is none. */
static int choose_newest(struct judge *j, uint32_t *ret_skipped, struct cairn_error *reterr) {
        const struct scan_checkpoint *c, *oldest = NULL;

        *ret_skipped = 0;
        for (size_t i = 0; (c = scan_newest(j->scan, i)); i++) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                bool flagged = false;
                int r = j->verify(j->context, c, &flagged, &e);
                if (r < 0 && !intent_is_damage(&e)) {
                        if (reterr)
                                *reterr = e;
                        return r;
                }
                if (r < 0) {
                        count_damage(j, c, &e);
                } else if (flagged) {
                        if (is_newer(c, j->flagged))
                                j->flagged = c;
                } else if (*ret_skipped < j->request->skip_newest) {
                        ++*ret_skipped;
                        intent_note(j->verdict->note, "%s was passed over as asked", c->name);
                } else if (must_pass_over(j->request, c)) {
                        oldest = c;
                        intent_note(j->verdict->note, "%s was passed over: it failed before",
                                    c->name);
                } else {
                        j->verdict->choice = c;
                        return 0;
                }
        }
        if (oldest)
                intent_note(j->verdict->note, "%s is tried again, there is none older",
                            oldest->name);
        j->verdict->choice = oldest;
        return 0;
}

/* What the scan itself found wrong, newer than the choice. */
static int look_at_rest(struct judge *j, struct cairn_error *reterr) {
        const struct scan_checkpoint *choice = j->verdict->choice;

        for (size_t i = j->scan->checkpoint_count; i-- > 0;) {
                const struct scan_checkpoint *c = &j->scan->checkpoints[i];
                if (!c->on_lineage || (choice && !is_newer(c, choice)))
                        continue;
                if (c->validity == CHECKPOINT_FLAGGED) {
                        if (is_newer(c, j->flagged))
                                j->flagged = c;
                        intent_note(j->verdict->note,
                                    "%s is flagged (suspect ending or non-finite state) and was "
                                    "passed over",
                                    c->name);
                } else if (c->validity == CHECKPOINT_DAMAGED && !c->is_attempt) {
                        if (!intent_is_damage(&c->error)) {
                                if (reterr)
                                        *reterr = c->error;
                                return c->error.status;
                        }
                        count_damage(j, c, &c->error);
                }
        }
        if (choice && j->damaged > 0)
                intent_note(j->verdict->note, "fell back to %s", choice->name);
        return 0;
}

static int refuse_unusable(const struct judge *j, uint32_t skipped, struct cairn_error *reterr) {
        const char *run = j->request->run;
        char text[384];

        if (j->flagged)
                return error_set(
                        reterr, CAIRN_ERR_CORRUPT, operation, run,
                        "the only checkpoints are flagged: the trainer ended by a fault or "
                        "its state is not finite; look at `cairn list %s`, then take one "
                        "on purpose with --from %" PRId64,
                        run, j->flagged->step);
        if (skipped > 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, run,
                                 "the newest %" PRIu32 " checkpoints were passed over and there is "
                                 "none older; `cairn verify %s` says more",
                                 skipped, run);
        if (j->damaged > 0 && j->foreign == j->damaged)
                return error_set(reterr, CAIRN_ERR_MISMATCH, operation, run,
                                 "the checkpoints in this folder belong to another run: %s",
                                 error_format(&j->damage, text, sizeof text));
        if (j->damaged > 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, run,
                                 "no checkpoint is intact; the newest: %s; `cairn verify %s` "
                                 "checks all of them",
                                 error_format(&j->damage, text, sizeof text), run);
        return error_set(reterr, CAIRN_ERR_CORRUPT, operation, run,
                         "it has checkpoints, but none on the lineage of its last restart; look "
                         "at `cairn list %s` and name one with --from STEP",
                         run);
}

/* ---- --from STEP ---- */

static bool is_better_from(const struct scan_checkpoint *a, const struct scan_checkpoint *b) {
        if (!b || a->on_lineage != b->on_lineage)
                return !b || a->on_lineage;
        if (a->generation != b->generation)
                return a->generation > b->generation;
        return !a->is_attempt && b->is_attempt;
}

static const struct scan_checkpoint *find_from(const struct judge *j, uint64_t refused) {
        const struct scan_checkpoint *best = NULL;

        for (size_t i = 0; i < j->scan->checkpoint_count; i++) {
                const struct scan_checkpoint *c = &j->scan->checkpoints[i];
                bool usable = c->validity == CHECKPOINT_VALID ||
                              c->validity == CHECKPOINT_FLAGGED ||
                              c->validity == CHECKPOINT_ROLLABLE;
                if (c->step != j->request->from_step || !usable ||
                    (i < 64 && refused & (UINT64_C(1) << i)))
                        continue;
                if (is_better_from(c, best))
                        best = c;
        }
        return best;
}

static int refuse_from(const struct judge *j, struct cairn_error *reterr) {
        const struct start_request *q = j->request;
        char steps[256] = "", text[384];
        size_t used = 0;

        for (size_t i = 0; i < j->scan->checkpoint_count; i++) {
                const struct scan_checkpoint *c = &j->scan->checkpoints[i];
                bool damaged = c->validity == CHECKPOINT_DAMAGED && !c->is_attempt;
                if (c->step == q->from_step && (damaged || j->damaged > 0))
                        return error_set(
                                reterr, CAIRN_ERR_CORRUPT, operation, q->run,
                                "the checkpoint of step %" PRId64 " is damaged: %s", q->from_step,
                                error_format(damaged ? &c->error : &j->damage, text, sizeof text));
                if (!damaged && !c->is_attempt && used + 24 < sizeof steps)
                        used += (size_t) snprintf(steps + used, sizeof steps - used, "%s%" PRId64,
                                                  used ? ", " : "", c->step);
        }
        return error_set(reterr, CAIRN_ERR_NOTFOUND, operation, q->run,
                         "there is no checkpoint of step %" PRId64 "%s%s", q->from_step,
                         used ? "; there are steps " : ", nor any other", steps);
}

static int choose_step(struct judge *j, struct cairn_error *reterr) {
        const struct scan_checkpoint *c;
        uint64_t refused = 0;

        while ((c = find_from(j, refused))) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                size_t i = (size_t) (c - j->scan->checkpoints);
                bool flagged;
                int r = j->verify(j->context, c, &flagged, &e);
                if (r == 0) {
                        j->verdict->decided = START_RESUME;
                        j->verdict->choice = c;
                        return 0;
                }
                if (!intent_is_damage(&e)) {
                        if (reterr)
                                *reterr = e;
                        return r;
                }
                count_damage(j, c, &e);
                if (i >= 64)
                        break; /* more of one step than anybody has */
                refused |= UINT64_C(1) << i;
        }
        return refuse_from(j, reterr);
}

/* ---- the verdict ---- */

static enum start_mode begin_mode(const struct start_request *q) {
        return q->init_from[0] ? START_INIT_FROM : START_FRESH;
}

static int judge_finished(struct judge *j, struct cairn_error *reterr) {
        const struct start_request *q = j->request;
        const struct run_scan *scan = j->scan;

        if (q->mode == START_AUTO || q->is_restart) {
                j->verdict->finished = true;
                return 0;
        }
        if (q->mode == START_RESUME)
                return error_set(reterr, CAIRN_ERR_FINISHED, operation, q->run,
                                 "the run is finished (%s, step %" PRId64
                                 "); to go on from a step on purpose use --from STEP",
                                 scan->finished_reason, scan->finished_step);
        return error_set(reterr, CAIRN_ERR_EXISTS, operation, q->run,
                         "a run of this name is finished (%s, step %" PRId64
                         "); choose another name with --run, or go on from one of its steps with "
                         "--from STEP",
                         scan->finished_reason, scan->finished_step);
}

/* What a restart left behind that began anew for the like: fresh again is no loss. */
static bool only_flagged_elsewhere(const struct run_scan *scan) {
        for (size_t i = 0; i < scan->checkpoint_count; i++)
                if (scan->checkpoints[i].on_lineage ||
                    scan->checkpoints[i].validity != CHECKPOINT_FLAGGED)
                        return false;
        return true;
}

static int judge_resume(struct judge *j, bool used, struct cairn_error *reterr) {
        const struct start_request *q = j->request;
        uint32_t skipped = 0;

        if (used) {
                TRY(choose_newest(j, &skipped, reterr));
                TRY(look_at_rest(j, reterr));
                /* Nothing that counts was ever committed: the first intent holds still. */
                if (!j->verdict->choice && q->is_restart && q->mode != START_RESUME &&
                    (j->flagged || only_flagged_elsewhere(j->scan)) && j->damaged == 0 &&
                    skipped == 0) {
                        j->verdict->decided = begin_mode(q);
                        return 0;
                }
                if (!j->verdict->choice)
                        return refuse_unusable(j, skipped, reterr);
                j->verdict->decided = START_RESUME;
                return 0;
        }
        if (q->mode != START_RESUME) {
                j->verdict->decided = begin_mode(q);
                return 0;
        }
        return error_set(reterr, CAIRN_ERR_NOTFOUND, operation, q->run,
                         "there is nothing to resume: the run has no checkpoint; check --run and "
                         "--store, or begin it with --mode fresh");
}

int intent_judge(const struct start_request *request, const struct run_scan *scan,
                 intent_verify verify, void *context, struct intent_verdict *ret,
                 struct cairn_error *reterr) {
        struct judge j = {.request = request,
                          .scan = scan,
                          .verify = verify,
                          .context = context,
                          .verdict = ret,
                          .damage = CAIRN_ERROR_INIT};
        bool used = is_used(scan);

        *ret = (struct intent_verdict){0};
        /* A restart goes on where the last generation stood; that one may have come from --from. */
        if (request->has_from_step && !(request->is_restart && used && scan_newest(scan, 0)))
                return choose_step(&j, reterr);
        if (scan->finished)
                return judge_finished(&j, reterr);
        if (!is_fresh(request->mode) || request->is_restart)
                return judge_resume(&j, used, reterr);
        if (used)
                return error_set(reterr, CAIRN_ERR_EXISTS, operation, request->run,
                                 "the run has checkpoints; continue it with `--mode resume` or "
                                 "`--mode auto`, or choose another name with --run");
        ret->decided = begin_mode(request);
        return 0;
}
