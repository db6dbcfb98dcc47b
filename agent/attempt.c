/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/attempt.h"
#include "agent/demand.h"
#include "agent/group_local.h"
#include "agent/hold.h"
#include "agent/postmortem.h"
#include "base/log.h"
#include <errno.h>
#include <stdlib.h>

#define PAUSE_NS_MIN (500 * NSEC_PER_MSEC)
#define RETAIN_COMMITS_MAX 4
#define RETAIN_TOLD 2 /* failures in a row */
#define FOLLOW_NS NSEC_PER_SEC
#define PAUSE_NS_MAX (5 * NSEC_PER_SEC) /* the first commit after an outage waits so long */

enum commit_reason {
        REASON_SCHEDULED = 0,
        REASON_DEMANDED = 1,
        REASON_ENDING = 3,
        REASON_POST_MORTEM = 4
};

static void close_files(struct rank_cut *row) {
        if (row->parcel >= 0)
                (void) close(row->parcel);
        row->parcel = -1;
}

static void close_all(struct run_attempt *a) {
        for (uint32_t i = 0; i < a->local_count; i++)
                close_files(&a->ranks[a->first_rank + i]);
}

static void attempt_clear(struct run *run, struct run_attempt *a) {
        close_all(a);
        free(a->ranks);
        *a = (struct run_attempt){.run = run, .error = CAIRN_ERROR_INIT};
}

void attempts_init(struct run *run) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                attempt_clear(run, &run->attempts[i]);
}

void attempts_done(struct run *run) {
        attempts_init(run);
}

/* It has a place for every rank of the world as it is now. */
static int attempt_begin(struct run *run, struct run_attempt *a, uint32_t number,
                         struct cairn_error *reterr) {
        a->number = number;
        a->since_ns = loop_now(&run->agent->loop);
        a->state = ATTEMPT_OPENING;
        a->ranks = calloc(run->world, sizeof *a->ranks);
        if (!a->ranks)
                return error_set_errno(reterr, ENOMEM, "open attempt", run->name);
        a->world = a->counts[RANK_NONE] = run->world;
        a->first_rank = run->first_rank;
        a->local_count = run->local_count;
        for (uint32_t i = 0; i < a->local_count; i++)
                a->ranks[a->first_rank + i].parcel = -1;
        return 0;
}

static void set_rank(struct run_attempt *a, uint32_t rank, enum rank_state state) {
        struct rank_cut *row = &a->ranks[rank];
        a->counts[row->state]--;
        a->counts[state]++;
        row->state = state;
}

uint32_t attempt_count(const struct run_attempt *a, enum rank_state least) {
        uint32_t count = 0;
        for (size_t state = least; state < RANK_STATE_COUNT; state++)
                count += a->counts[state];
        return count;
}

size_t attempts_open_count(const struct run *run) {
        size_t count = 0;
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                count += run->attempts[i].state != ATTEMPT_EMPTY;
        return count;
}

static bool row_in_flight(const struct run_attempt *a, uint32_t rank) {
        return (a->state == ATTEMPT_OPEN || a->state == ATTEMPT_COMMITTING) && !a->doomed &&
               rank < a->world && a->ranks[rank].state >= RANK_CUT;
}

bool attempts_cover(const struct run *run, uint32_t rank, uint64_t seq) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (row_in_flight(&run->attempts[i], rank) &&
                    run->attempts[i].ranks[rank].seq >= seq)
                        return true;
        return false;
}

bool attempts_in_flight(const struct run *run, uint32_t rank) {
        return attempts_cover(run, rank, 0);
}

bool run_session_in_flight(const struct run *run, const struct session *s) {
        return session_copying(s) || attempts_in_flight(run, s->rank);
}

/* Of this world: one that is being committed may be of the start before this one. */
static struct run_attempt *find(struct run *run, uint32_t number) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (run->attempts[i].state != ATTEMPT_EMPTY && run->attempts[i].number == number &&
                    run->attempts[i].world == run->world)
                        return &run->attempts[i];
        return NULL;
}

bool attempts_untouched(const struct run *run, uint32_t number) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                if (a->state == ATTEMPT_OPEN && a->number == number)
                        return !a->doomed && attempt_count(a, RANK_ARMED) == run->world &&
                               attempt_count(a, RANK_CUT) == 0;
        }
        return false;
}

uint32_t attempts_cut_count(const struct run *run, uint32_t number) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                if (a->state == ATTEMPT_OPEN && a->number == number && !a->doomed)
                        return attempt_count(a, RANK_CUT);
        }
        return run->world;
}

bool attempts_uneven(const struct run *run) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                uint32_t cut = a->state == ATTEMPT_OPEN ? attempt_count(a, RANK_CUT) : 0;
                if (cut > 0 && cut < run->world)
                        return true;
        }
        return false;
}

/* ---- giving up ---- */

static uint64_t pause_after(unsigned failures) {
        uint64_t pause = PAUSE_NS_MIN << (failures < 7 ? failures : 7);
        return pause < PAUSE_NS_MAX ? pause : PAUSE_NS_MAX;
}

/* A fast schedule would write one checkpoint after another on storage that takes none. What is
 * demanded, and the last state of a dead trainer, does not wait; savers that died are no matter of
 * storage. */
static void pause_writing(struct run *run, const struct cairn_error *error) {
        if (error->status == CAIRN_ERR_PEER || demand_pending(run) || ++run->write_failures < 2)
                return;
        run->arm_after_ns = loop_now(&run->agent->loop) + pause_after(run->write_failures - 2);
}

static bool is_over(const struct run_attempt *a) {
        return a->doomed || a->state == ATTEMPT_EMPTY || a->state == ATTEMPT_DISCARDING;
}

static void tell_trainer_failed(const struct run_attempt *a, uint32_t rank) {
        const struct session *s = run_session(a->run, rank);
        if (s && s->page)
                cut_outcome_set(s->page, a->ranks[rank].seq, CUT_FAILED,
                                a->error.status ? a->error.status : CAIRN_ERR_STALE);
}

/* The ranks were not level: nothing failed, there is no cut at this step. */
static void note_skipped(const struct run_attempt *a, const struct cairn_error *error) {
        char text[700];
        a->run->cuts_skipped++;
        log_event(LOG_LEVEL_INFO, "run=%s generation=%llu attempt=%u cut=skipped reason=\"%s\"",
                  a->run->name, (unsigned long long) a->run->generation, a->number,
                  error_format(error, text, sizeof text));
}

/* Once an attempt: one count, and everybody who waits for it hears. No `error`: nobody's fault. */
static void give_up(struct run_attempt *a, const struct cairn_error *error) {
        struct run *run = a->run;
        if (is_over(a))
                return;
        a->doomed = true;
        if (error)
                a->error = *error;
        for (uint32_t i = 0; i < a->local_count; i++)
                if (a->ranks[a->first_rank + i].state >= RANK_CUT)
                        tell_trainer_failed(a, a->first_rank + i);
        demand_failed(run, a, error);
        if (!error)
                return;
        if (error->status == CAIRN_ERR_BUSY) {
                note_skipped(a, error);
                return;
        }
        run->last_error = *error;
        run->attempts_failed++;
        outage_failed(run, a->number, error);
        pause_writing(run, error);
}

/* Here, and so on all nodes. Where no rank was cut nothing is lost. */
static void doom(struct run_attempt *a, const struct cairn_error *error) {
        if (is_over(a))
                return;
        bool is_lost = attempt_count(a, RANK_CUT) > 0 || a->follow_heard;
        if (error && (!error->status || !is_lost))
                error = NULL;
        group_tell_doom(a->run, a->number, error);
        give_up(a, error);
}

/* Who could not go along. */
static struct cairn_error named(const char *who, const struct cairn_error *error) {
        struct cairn_error e = *error;
        if (*who)
                (void) snprintf(e.message, sizeof e.message, "%s%s%.400s", who,
                                *error->message ? ": " : "", error->message);
        return e;
}

/* Of a group the others hear it, too, whose stores have other paths or are others. */
static const char *name_place(const struct run *run, char *text, size_t bytes) {
        char store[200] = "";
        *text = 0;
        if (run->group)
                (void) snprintf(text, bytes, "node %.64s (store %s)", group_node_name(run),
                                text_escape(store, sizeof store, run->store, strlen(run->store)));
        return text;
}

static void doom_by(struct run_attempt *a, uint32_t rank, const struct cairn_error *error) {
        char who[320] = "", place[280];
        if (a->run->world > 1)
                (void) snprintf(who, sizeof who, "rank %u%s%s", rank, a->run->group ? " on " : "",
                                name_place(a->run, place, sizeof place));
        struct cairn_error e = named(who, error);
        doom(a, &e);
}

static void doom_here(struct run_attempt *a, const struct cairn_error *error) {
        char place[280];
        struct cairn_error e = named(name_place(a->run, place, sizeof place), error);
        doom(a, &e);
}

void attempts_doom_all(struct run *run, const struct cairn_error *error) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (run->attempts[i].state != ATTEMPT_COMMITTING)
                        doom(&run->attempts[i], error);
}

static void discarded(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run_attempt *a = context;
        (void) fds;
        /* With its folder, its run or its store it is gone, too. */
        if (reply->status < 0 && reply->status != CAIRN_ERR_NOTFOUND &&
            reply->status != CAIRN_ERR_MISMATCH)
                log_error(outage_level(a->run), "discard attempt", &reply->error);
        attempt_clear(a->run, a);
}

static void discard(struct run_attempt *a) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_DISCARD, .attempt = a->number};
        close_all(a);
        /* The folder is the leader's; in a node-local store it is this node's, who keeps its part
         * until the leader says that the attempt is given up: one that was lost may have committed
         * it. After a loss it is the next generation's to set aside. */
        if (!group_leads(a->run) && !group_discards(a->run)) {
                attempt_clear(a->run, a);
                return;
        }
        a->state = ATTEMPT_DISCARDING;
        if (run_store_request(a->run, &m, discarded, a, &error) < 0) {
                log_error(outage_level(a->run), "discard attempt", &error);
                attempt_clear(a->run, a);
        }
}

/* Files come back from the savers first: none may be written to once it is unlinked and its number
 * free. A saver that copies or writes for this attempt stops, so that its staging is free for the
 * next one. */
static void wind_up(struct run_attempt *a) {
        bool busy = false;
        for (uint32_t i = 0; i < a->local_count; i++) {
                uint32_t rank = a->first_rank + i;
                const struct rank_cut *row = &a->ranks[rank];
                struct session *s = run_session(a->run, rank);
                bool saver_has_it = s && s->armed_attempt == a->number && !session_settled(s);
                if ((row->state == RANK_ARMED || row->state == RANK_CUT) && !saver_has_it)
                        set_rank(a, rank, RANK_NONE);
                if (row->state != RANK_ARMED && row->state != RANK_CUT)
                        continue;
                session_disarm(s);
                /* A dying trainer's saver is ended anyway. */
                busy = busy || s->state < SESSION_SETTLING || postmortem_pending(s);
        }
        if (!busy)
                discard(a);
}

/* ---- committing ---- */

static void commit(struct run_attempt *a);

static void retained(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        (void) fds;
        run->retaining = false;
        /* It is tried again after the next commit. Where there is none, that is what is told. */
        run->retain_failures = reply->status < 0 ? run->retain_failures + 1 : 0;
        if (reply->status == 0 && reply->more)
                run->unretained++;
        if (reply->status < 0)
                log_error(run->retain_failures == RETAIN_TOLD ? LOG_LEVEL_WARNING : LOG_LEVEL_DEBUG,
                          "prune old checkpoints", &reply->error);
        if (reply->status == 0 && reply->count)
                log_event(LOG_LEVEL_INFO, "run=%s pruned=%u keep_last=%u", run->name, reply->count,
                          run->keep_last);
}

/* Attempts below this number are over: what is still there of them could not be deleted. */
static uint32_t first_unsettled(const struct run *run) {
        uint32_t first = run->attempt_last + 1;
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (run->attempts[i].state != ATTEMPT_EMPTY && run->attempts[i].number < first)
                        first = run->attempts[i].number;
        return first;
}

/* Pruning takes its time, and the store process does one thing after another: it waits until
 * nothing else is to be done, but not for ever. */
static void retain(struct run *run) {
        struct store_message m = {
                .verb = STORE_RETAIN, .keep_last = run->keep_last, .attempt = first_unsettled(run)};
        if (!run->unretained || run->retaining ||
            (run->store_calls && run->unretained < RETAIN_COMMITS_MAX))
                return;
        run->unretained = 0;
        run->retaining = run_store_request(run, &m, retained, run, NULL) == 0;
}

static bool is_post_mortem(const struct run_attempt *a) {
        for (uint32_t i = 0; i < a->local_count; i++)
                if (a->ranks[a->first_rank + i].ending.kind != ENDING_ALIVE)
                        return true;
        return false;
}

static void publish_outcome(struct run_attempt *a, const struct commit_result *c) {
        struct run *run = a->run;
        for (uint32_t i = 0; i < a->local_count; i++) {
                const struct rank_cut *row = &a->ranks[a->first_rank + i];
                struct session *s = run_session(run, a->first_rank + i);
                if (i == 0)
                        run->committed_seq = row->seq;
                if (!s || !s->page)
                        continue;
                if (row->seq > atomic_load(&s->page->committed_seq)) {
                        atomic_store(&s->page->committed_step, c->step);
                        atomic_store(&s->page->committed_seq, row->seq);
                }
                cut_outcome_set(s->page, row->seq, CUT_COMMITTED, 0);
        }
        run->checkpoints_committed++;
        run->write_failures = 0;
        run->arm_after_ns = 0;
        run->failed_before = run->attempts_failed;
        if (is_post_mortem(a))
                run->postmortem_step = c->step;
        run->flagged_step = c->flagged ? c->step : -1;
        if (!c->flagged)
                run->resumable_step = c->step;
        if (is_post_mortem(a) && c->flagged) {
                /* Kept for whoever wants it, but nothing resumes from it. */
                log_event(LOG_LEVEL_WARNING, "run=%s checkpoint=%.63s step=%lld flagged=1",
                          run->name, c->name, (long long) c->step);
                return;
        }
        memcpy(run->committed_name, c->name, sizeof run->committed_name);
        run->committed_name[sizeof run->committed_name - 1] = 0;
        run->committed_step = c->step;
        run->committed_flagged = c->flagged;
        run->committed_bytes = c->bytes;
        run->committed_ns = loop_now(&run->agent->loop);
        run->commit_ns = run->committed_ns - a->first_ns;
        log_event(LOG_LEVEL_INFO,
                  "run=%s generation=%llu attempt=%u checkpoint=%s step=%lld bytes=%llu existed=%d "
                  "cut_to_commit_ms=%llu",
                  run->name, (unsigned long long) run->generation, a->number, run->committed_name,
                  (long long) c->step, (unsigned long long) c->bytes, c->existed,
                  (unsigned long long) (run->commit_ns / NSEC_PER_MSEC));
        outage_over(run);
}

static void committed(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run_attempt *a = context;
        struct run *run = a->run;
        (void) fds;
        if (reply->status < 0) {
                a->state = ATTEMPT_OPEN;
                /* Unknown outcome: every verb reports what happened when it is asked again. */
                if ((reply->status == CAIRN_ERR_TIMEOUT || reply->status == CAIRN_ERR_PEER) &&
                    ++a->tries < RUN_STORE_TRIES) {
                        commit(a);
                        return;
                }
                run->fenced = run->fenced || reply->status == CAIRN_ERR_STALE;
                doom_here(a, &reply->error);
                return;
        }
        struct commit_result c = reply->committed;
        publish_outcome(a, &c);
        demand_committed(run, a, &c);
        group_tell_committed(run, a->number, &c);
        attempt_clear(run, a);
        run->unretained++;
}

static void commit(struct run_attempt *a) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_COMMIT, .attempt = a->number, .step = a->step};
        const char *tag = demand_tag(a->run, a, &m.reason);
        (void) snprintf(m.name, sizeof m.name, "%s", tag);
        if (a->run->stop.active || a->run->end.wanted)
                m.reason = REASON_ENDING;
        if (is_post_mortem(a))
                m.reason = REASON_POST_MORTEM;
        if (group_node_local(a->run) && !a->recorded) {
                group_local_commit(a->run, a->number, m.reason, tag);
                return;
        }
        if (group_node_local(a->run))
                m.verb = STORE_RENAME;
        a->state = ATTEMPT_COMMITTING;
        if (run_store_request(a->run, &m, committed, a, &error) < 0) {
                a->state = ATTEMPT_OPEN;
                doom(a, &error);
        }
}

static void publish(struct run_attempt *a, uint32_t rank);

/* The leader of a group hears what becomes of this node's ranks. */
static void tell_rank(const struct run_attempt *a, uint32_t rank, Cairn__Peer__RankEvent event) {
        group_tell_rank(a->run, a->number, rank, (int) event, a->ranks[rank].step,
                        a->ranks[rank].bytes);
}

static void published(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        struct run_attempt *a = find(run, reply->attempt);
        (void) fds;
        if (!a || a->state != ATTEMPT_OPEN || a->doomed || reply->rank >= run->world)
                return;
        struct rank_cut *row = &a->ranks[reply->rank];
        if (reply->status == 0) {
                set_rank(a, reply->rank, RANK_PUBLISHED);
                tell_rank(a, reply->rank, CAIRN__PEER__RANK_EVENT__RANK_PUBLISHED);
        } else if ((reply->status == CAIRN_ERR_TIMEOUT || reply->status == CAIRN_ERR_PEER) &&
                   ++row->tries < RUN_STORE_TRIES)
                publish(a, reply->rank);
        else
                doom_by(a, reply->rank, &reply->error);
}

static void publish(struct run_attempt *a, uint32_t rank) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {
                .verb = STORE_PUBLISH_MANIFEST, .attempt = a->number, .rank = rank};
        if (run_store_request(a->run, &m, published, a->run, &error) < 0)
                doom_by(a, rank, &error);
}

/* ---- what sessions report ---- */

static void note_cut(struct run_attempt *a, uint32_t rank, int64_t step, uint64_t bytes) {
        struct rank_cut *row = &a->ranks[rank];
        set_rank(a, rank, RANK_CUT);
        row->step = step;
        row->bytes = bytes;
        row->cut_ns = a->newest_ns = loop_now(&a->run->agent->loop);
        if (attempt_count(a, RANK_CUT) == 1) {
                a->step = step;
                a->first_ns = row->cut_ns;
        } else if (step != a->step) {
                a->is_uneven = true;
                a->other_step = step;
        }
}

/* A cut that was asked for in its trainer's life and copied in part after its end says nothing of
 * how that came, and a fault may have scribbled on what was copied. It is not kept: the same state
 * is taken again, as that of a dead trainer. */
void run_session_cut(struct run *run, struct session *s, const struct saver_message *m) {
        struct run_attempt *a = find(run, m->attempt ? m->attempt : s->armed_attempt);
        if (!a || a->ranks[s->rank].state != RANK_ARMED)
                return;
        struct rank_cut *row = &a->ranks[s->rank];
        row->seq = m->seq;
        row->ending = m->ending;
        note_cut(a, s->rank, m->step, m->bytes ? m->bytes : s->image_bytes);
        if (a->doomed)
                tell_trainer_failed(a, s->rank);
        tell_rank(a, s->rank, CAIRN__PEER__RANK_EVENT__RANK_CUT);
        log_event(LOG_LEVEL_DEBUG, "run=%s rank=%u attempt=%u cut=%llu step=%lld", run->name,
                  s->rank, a->number, (unsigned long long) m->seq, (long long) m->step);
        if (m->ending.kind == ENDING_ALIVE && session_is_ending(s)) {
                log_event(
                        LOG_LEVEL_WARNING,
                        "run=%s rank=%u cut=void seq=%llu reason=\"the trainer ended while it was "
                        "copied\"",
                        run->name, s->rank, (unsigned long long) m->seq);
                doom(a, NULL);
        }
}

void run_session_held(struct run *run, struct session *s, const struct saver_message *m) {
        if (group_leads(run))
                hold_held(run, s->rank, m->attempt, m->step);
        else
                group_tell_rank(run, m->attempt, s->rank, CAIRN__PEER__RANK_EVENT__RANK_HELD,
                                m->step, 0);
}

void run_session_void(struct run *run, struct session *s, const struct saver_message *m) {
        if (group_leads(run))
                hold_void(run, s->rank);
        else
                group_tell_rank(run, s->armed_attempt, s->rank, CAIRN__PEER__RANK_EVENT__RANK_VOID,
                                0, 0);
        char text[700];
        bool told_to = m->hold || s->disarming; /* it was let go of, or given up */
        log_event(told_to ? LOG_LEVEL_DEBUG : LOG_LEVEL_WARNING,
                  "run=%s rank=%u cut=void seq=%llu status=%s error=\"%s\"", run->name, s->rank,
                  (unsigned long long) m->seq, status_name(m->status),
                  error_format(&m->error, text, sizeof text));
        if (m->status < 0 && m->error.status && !told_to)
                s->last_error = m->error;
}

static void note_given_up(const struct run_attempt *a, uint32_t rank,
                          const struct cairn_error *error) {
        char text[700];
        log_event(LOG_LEVEL_DEBUG, "run=%s rank=%u attempt=%u write=given_up error=\"%s\"",
                  a->run->name, rank, a->number, error_format(error, text, sizeof text));
}

void run_session_written(struct run *run, struct session *s, const struct saver_message *m) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                struct run_attempt *a = &run->attempts[i];
                if (a->state != ATTEMPT_OPEN || a->ranks[s->rank].state != RANK_CUT ||
                    (m->attempt && m->attempt != a->number))
                        continue;
                set_rank(a, s->rank, RANK_WRITTEN);
                if (m->bytes)
                        a->ranks[s->rank].bytes = m->bytes;
                if (m->status == CAIRN_ERR_VOID && a->doomed)
                        note_given_up(a, s->rank, &m->error);
                else if (m->status < 0) {
                        s->last_error = m->error;
                        doom_by(a, s->rank, &m->error);
                } else if (!a->doomed)
                        publish(a, s->rank);
                return;
        }
}

void run_session_disarmed(struct run *run, struct session *s, uint32_t attempt) {
        struct run_attempt *a = find(run, attempt);
        if (!a || a->ranks[s->rank].state != RANK_ARMED)
                return;
        set_rank(a, s->rank, RANK_NONE);
        tell_rank(a, s->rank, CAIRN__PEER__RANK_EVENT__RANK_DISARMED);
}

void run_session_saver_lost(struct run *run, struct session *s, const struct cairn_error *error) {
        uint64_t untold = s->page ? atomic_load(&s->page->committed_seq) + 1 : 0;
        hold_void(run, s->rank);
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                struct run_attempt *a = &run->attempts[i];
                enum rank_state state =
                        a->state == ATTEMPT_OPEN ? a->ranks[s->rank].state : RANK_NONE;
                if (state == RANK_ARMED || state == RANK_CUT) {
                        if (state == RANK_CUT)
                                doom_by(a, s->rank, error);
                        else
                                doom(a, NULL);
                        set_rank(a, s->rank, RANK_NONE);
                }
                if (row_in_flight(a, s->rank) && a->ranks[s->rank].seq >= untold)
                        untold = a->ranks[s->rank].seq + 1;
        }
        /* It may have copied a later state, and died before it said so. */
        if (s->page)
                (void) cut_claims_lost(s->page, untold);
}

/* ---- opening ---- */

/* Files could not be made, here or on another node: nobody waits for what cannot come. */
static void note_not_opened(struct run_attempt *a, const struct cairn_error *error) {
        struct run *run = a->run;
        run->open_after_ns = loop_now(&run->agent->loop) + pause_after(run->open_failures++);
        run->fenced = run->fenced || error->status == CAIRN_ERR_STALE;
        run->last_error = *error;
        run->attempts_failed++;
        outage_failed(run, a->number, error);
        group_tell_doom(run, a->number, error);
        demand_not_opened(run, a, error);
}

static void open_failed(struct run_attempt *a, const struct cairn_error *error) {
        struct run *run = a->run;
        char place[280];
        /* A number that is taken: an agent before us got that far in this generation. */
        if (error->status == CAIRN_ERR_EXISTS && run->open_failures < 1000) {
                attempt_clear(run, a);
                run->open_failures++;
                return;
        }
        struct cairn_error e = named(name_place(run, place, sizeof place), error);
        note_not_opened(a, &e);
        /* Its folder may be there, or part of its files. */
        discard(a);
}

static void ask_files(struct run_attempt *a, uint32_t first);

/* The run's folder was removed: nobody is told of a checkpoint that went with it. */
static void forget_committed(struct run *run) {
        log_event(LOG_LEVEL_WARNING,
                  "run=%s generation=%llu folder=made_again reason=\"it was removed\"", run->name,
                  (unsigned long long) run->generation);
        run->committed_step = run->resumable_step = -1;
        run->committed_bytes = run->committed_ns = 0;
        run->committed_name[0] = 0;
}

static void opened(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run_attempt *a = context;
        struct cairn_error error = reply->error;
        uint32_t first = reply->first, count = (uint32_t) fds->count;
        if (reply->status == 0 &&
            (count == 0 || first < a->first_rank || first - a->first_rank >= a->local_count ||
             count > a->local_count - (first - a->first_rank)))
                (void) error_set(&error, CAIRN_ERR_FATAL, "open attempt", a->run->name,
                                 "the store process answered with %u files for rank %u", count,
                                 first);
        if (error.status < 0) {
                open_failed(a, &error);
                return;
        }
        for (uint32_t i = 0; i < count; i++)
                a->ranks[first + i].parcel = wire_fds_take(fds, i);
        if (first + count < a->first_rank + a->local_count) {
                ask_files(a, first + count);
                return;
        }
        if (reply->remade)
                forget_committed(a->run);
        a->run->open_failures = 0;
        a->run->open_after_ns = 0;
        a->state = ATTEMPT_OPEN;
}

/* As many ranks as one message carries descriptors for. */
static void ask_files(struct run_attempt *a, uint32_t first) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        uint32_t left = a->first_rank + a->local_count - first;
        struct store_message m = {.verb = STORE_ATTEMPT_OPEN,
                                  .attempt = a->number,
                                  .first = first,
                                  .count = left < WIRE_FDS_MAX ? left : WIRE_FDS_MAX};
        if (run_store_request(a->run, &m, opened, a, &error) < 0)
                open_failed(a, &error);
}

static void open_files(struct run_attempt *a, uint32_t number) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (attempt_begin(a->run, a, number, &error) < 0)
                open_failed(a, &error);
        else
                ask_files(a, a->first_rank);
}

static bool wants_attempt(const struct run *run) {
        if (run->state != RUN_LIVE || run->fenced || run->finish.done || !group_leads(run) ||
            loop_now(&run->agent->loop) < run->open_after_ns)
                return false;
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                if (a->state == ATTEMPT_OPENING)
                        return false;
                if (a->state == ATTEMPT_OPEN && !a->doomed && attempt_count(a, RANK_CUT) == 0)
                        return false; /* a spare one */
        }
        /* Before the trainers are there: a fast one asks for a cut milliseconds after its seal.
         * And as long as one lives, for it may be saving its last step while the run ends. */
        bool any = false;
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct session *s = run->sessions[i];
                if (s && (!s->dead || s->postmortem == POSTMORTEM_WANTED))
                        return true;
                any = any || s;
        }
        return !any && run->generation > 0 && !run->end.wanted;
}

static void open_next(struct run *run) {
        struct run_attempt *a = NULL;
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT && !a; i++)
                if (run->attempts[i].state == ATTEMPT_EMPTY)
                        a = &run->attempts[i];
        if (!a)
                return;
        open_files(a, ++run->attempt_last);
}

/* An earlier one is cut on some ranks and not on others. Whoever went on to a later one meanwhile
 * would stay ahead of the others by one cut for ever. A member of a group sees its own ranks only;
 * the leader tells it of the later one when that is due. */
static bool is_too_early(const struct run *run, const struct run_attempt *a) {
        uint32_t heard_of = group_leads(run) ? run->world : run->local_count;
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *b = &run->attempts[i];
                if (b->state == ATTEMPT_OPEN && !b->doomed && b->number < a->number &&
                    attempt_count(b, RANK_CUT) < heard_of)
                        return true;
        }
        return false;
}

static void arm(struct run *run, uint32_t rank) {
        struct session *s = run_session(run, rank);
        struct run_attempt *a = NULL;
        if (!s || !session_can_arm(s) ||
            (!s->dead && loop_now(&run->agent->loop) < run->arm_after_ns))
                return;
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                struct run_attempt *b = &run->attempts[i];
                if (b->state == ATTEMPT_OPEN && !b->doomed && b->ranks[rank].state == RANK_NONE &&
                    b->ranks[rank].parcel >= 0 && (!a || b->number < a->number))
                        a = b;
        }
        if (!a || is_too_early(run, a))
                return;
        struct rank_cut *row = &a->ranks[rank];
        /* One that is dead already takes nothing: these files are its successor's. */
        if (session_arm(s, a->number, row->parcel) < 0)
                return;
        set_rank(a, rank, RANK_ARMED);
        tell_rank(a, rank, CAIRN__PEER__RANK_EVENT__RANK_ARMED);
        close_files(row);
}

/* ---- a group ---- */

static void tell_open(struct run *run) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                struct run_attempt *a = &run->attempts[i];
                if (a->state != ATTEMPT_OPEN || a->doomed || a->told || is_too_early(run, a))
                        continue;
                a->told = true;
                group_tell_open(run, a->number, NULL);
        }
}

void attempts_tell_newcomer(struct run *run, struct peer_link *link) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                if (a->state != ATTEMPT_OPEN || a->doomed || !a->told)
                        continue;
                group_tell_open(run, a->number, link);
                if (a->follow_told)
                        group_tell_follow(run, a->number, a->step, link);
        }
}

void attempts_heard_open(struct run *run, uint32_t number) {
        if (find(run, number) || number <= run->attempt_last)
                return; /* told twice */
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (!run->open_wanted[i]) {
                        run->open_wanted[i] = number;
                        run->attempt_last = number;
                        return;
                }
}

/* As soon as there is room: what is over here may still be in a saver's hands. */
static void open_told(struct run *run) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                struct run_attempt *a = NULL;
                for (size_t k = 0; k < RUN_ATTEMPT_COUNT && !a; k++)
                        if (run->attempts[k].state == ATTEMPT_EMPTY)
                                a = &run->attempts[k];
                if (!run->open_wanted[i] || !a)
                        continue;
                uint32_t number = run->open_wanted[i];
                run->open_wanted[i] = 0;
                open_files(a, number);
        }
}

void attempts_heard_doom(struct run *run, uint32_t number, const struct cairn_error *error) {
        struct run_attempt *a = find(run, number);
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (run->open_wanted[i] == number)
                        run->open_wanted[i] = 0;
        if (!a || a->state == ATTEMPT_COMMITTING || is_over(a))
                return;
        if (group_leads(run) && error && attempt_count(a, RANK_CUT) == 0) {
                note_not_opened(a, error);
                give_up(a, NULL);
        } else
                (group_leads(run) ? doom : give_up)(a, error);
}

static void take_name(struct run_attempt *a);

/* It is complete without its name, too: the next start gives it one where this one could not. */
static void name_taken(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run_attempt *a = context;
        struct run *run = a->run;
        (void) fds;
        if ((reply->status == CAIRN_ERR_TIMEOUT || reply->status == CAIRN_ERR_PEER) &&
            ++a->tries < RUN_STORE_TRIES) {
                take_name(a);
                return;
        }
        if (reply->status < 0)
                log_error(LOG_LEVEL_WARNING, "commit", &reply->error);
        publish_outcome(a, &a->heard);
        attempt_clear(run, a);
        run->unretained++;
}

/* Node-local stores: what the leader has done in its store is done in this one. */
static void take_name(struct run_attempt *a) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = a->heard.existed ? STORE_DISCARD : STORE_RENAME,
                                  .attempt = a->number};
        a->state = ATTEMPT_COMMITTING;
        if (run_store_request(a->run, &m, name_taken, a, &error) == 0)
                return;
        log_error(LOG_LEVEL_WARNING, "commit", &error);
        publish_outcome(a, &a->heard);
        attempt_clear(a->run, a);
}

void attempts_recorded(struct run *run, uint32_t number) {
        struct run_attempt *a = find(run, number);
        if (!a || a->state != ATTEMPT_OPEN || a->doomed)
                return;
        a->recorded = true;
        commit(a);
}

void attempts_failed(struct run *run, uint32_t number, const struct cairn_error *error) {
        struct run_attempt *a = find(run, number);
        if (a && a->state == ATTEMPT_OPEN)
                doom(a, error);
}

void attempts_heard_committed(struct run *run, uint32_t number, const struct commit_result *c) {
        struct run_attempt *a = find(run, number);
        if (!a || a->state != ATTEMPT_OPEN)
                return;
        if (group_node_local(run)) {
                a->heard = *c;
                take_name(a);
                return;
        }
        publish_outcome(a, c);
        attempt_clear(run, a);
}

void attempts_heard_follow(struct run *run, uint32_t number, int64_t step) {
        struct run_attempt *a = find(run, number);
        if (!a || a->follow_heard)
                return;
        a->follow_heard = true;
        a->follow_step = step;
        a->follow_ns = loop_now(&run->agent->loop);
}

void attempts_heard_rank(struct run *run, const Cairn__Peer__Rank *m) {
        struct run_attempt *a = find(run, m->attempt);
        if (m->event == CAIRN__PEER__RANK_EVENT__RANK_HELD)
                hold_held(run, m->rank, m->attempt, m->step);
        if (m->event == CAIRN__PEER__RANK_EVENT__RANK_VOID)
                hold_void(run, m->rank);
        if (!a || a->state != ATTEMPT_OPEN || a->doomed)
                return;
        enum rank_state state = a->ranks[m->rank].state;
        switch (m->event) {
        case CAIRN__PEER__RANK_EVENT__RANK_ARMED:
                if (state == RANK_NONE)
                        set_rank(a, m->rank, RANK_ARMED);
                break;
        case CAIRN__PEER__RANK_EVENT__RANK_DISARMED:
                if (state == RANK_ARMED)
                        set_rank(a, m->rank, RANK_NONE);
                break;
        case CAIRN__PEER__RANK_EVENT__RANK_CUT:
                if (state < RANK_CUT)
                        note_cut(a, m->rank, m->step, m->bytes);
                break;
        case CAIRN__PEER__RANK_EVENT__RANK_PUBLISHED:
                if (state == RANK_CUT)
                        set_rank(a, m->rank, RANK_PUBLISHED);
                break;
        default:
                break;
        }
}

/* ---- the pump ---- */

/* A rank was cut and this one was not. It stands at the same step: it is told to follow. It went
 * on, because its files or its staging were not free in time: there is no such cut. A moment passes
 * first, for its saver's word that it was cut may be under way. */
static void follow(struct run_attempt *a, uint32_t rank, int64_t first_step, uint64_t first_ns) {
        struct run *run = a->run;
        struct session *s = run_session(run, rank);
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (!s || !s->page || s->dead)
                return;
        int64_t step = atomic_load(&s->page->last_step);
        struct cut_word word = session_word(s);
        if (step < first_step)
                return;
        if (step == first_step && word.phase != CUT_UPDATING) {
                if (s->armed_attempt == a->number && !s->disarming && !s->writing)
                        session_take(s, word.seq);
                return;
        }
        if (loop_now(&run->agent->loop) < first_ns + FOLLOW_NS)
                return;
        (void) error_set(&error, CAIRN_ERR_BUSY, "take snapshot", run->name,
                         "rank %u went on from step %lld before it could be cut there, as other "
                         "ranks were: its last snapshot is still being written, or its saver is "
                         "new",
                         rank, (long long) first_step);
        doom(a, &error);
}

/* One rank was cut, here or on another node: all are to be. */
static void follow_all(struct run_attempt *a) {
        struct run *run = a->run;
        uint32_t cut = attempt_count(a, RANK_CUT);
        bool any = cut > 0;
        if (cut == a->world || (hold_active(run) && run->hold.attempt == a->number))
                return;
        if (any && !a->follow_told) {
                a->follow_told = true;
                group_tell_follow(run, a->number, a->step, NULL);
        }
        if (!any && !a->follow_heard)
                return;
        for (uint32_t i = 0; i < a->local_count && !a->doomed; i++)
                if (a->ranks[a->first_rank + i].state < RANK_CUT)
                        follow(a, a->first_rank + i, any ? a->step : a->follow_step,
                               any ? a->newest_ns : a->follow_ns);
}

static void check_open(struct run_attempt *a) {
        struct run *run = a->run;
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (a->is_uneven && !a->doomed) {
                (void) error_set(&error, CAIRN_ERR_BUSY, "take snapshot", run->name,
                                 "ranks were cut at steps %lld and %lld", (long long) a->step,
                                 (long long) a->other_step);
                doom(a, &error);
        }
        follow_all(a);
        if (a->doomed)
                wind_up(a);
        else if (a->counts[RANK_PUBLISHED] == run->world && group_leads(run))
                commit(a);
}

void attempts_pump(struct run *run) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++)
                if (run->attempts[i].state == ATTEMPT_OPEN)
                        check_open(&run->attempts[i]);
        if (wants_attempt(run))
                open_next(run);
        open_told(run);
        if (run->group && group_leads(run))
                tell_open(run);
        for (uint32_t i = 0; i < run->local_count; i++)
                arm(run, run->first_rank + i);
        retain(run);
}
