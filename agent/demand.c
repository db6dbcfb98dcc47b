/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/demand.h"
#include "agent/attempt.h"
#include "agent/group.h"
#include "agent/hold.h"
#include "base/log.h"
#include "format/check.h"
#include "format/wire.h"

#define FORWARD_NS (2 * NSEC_PER_SEC) /* the leader's own time-out comes first */

static struct run_waiter *waiter_new(struct run *run) {
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++)
                if (!run->waiters[i].used) {
                        run->waiters[i] = (struct run_waiter){
                                .used = true, .run = run, .since_ns = loop_now(&run->agent->loop)};
                        return &run->waiters[i];
                }
        return NULL;
}

bool demand_pending(const struct run *run) {
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++)
                if (run->waiters[i].used)
                        return true;
        return false;
}

static bool session_cuttable(const struct session *s) {
        return s && s->page && s->state >= SESSION_SEALED && s->state <= SESSION_SETTLING;
}

/* Which seq each rank must be cut at or after; wakes the copier of a run of one rank. */
static void set_targets(struct run *run, struct run_waiter *w) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                bool updating;
                struct session *s = run->sessions[i];
                if (!session_cuttable(s))
                        continue;
                struct cut_word word = session_word(s);
                w->seq[i] = word.seq + (word.phase == CUT_UPDATING);
                if (run->world > 1)
                        continue; /* held first (hold.h) */
                w->seq[i] = cut_request(s->page, &updating);
                if (!updating)
                        session_ring(s);
        }
}

/* A pause after a failure spares the store where nobody waits. Somebody does: what made it fail may
 * be mended by now, and its time may be short. */
static void end_pause(struct run *run) {
        if (run->open_after_ns)
                run->open_after_ns = 1;
        run->arm_after_ns = 0;
}

/* The leader of the group takes it. */
static int forward(struct run *run, struct run_waiter *w, uint64_t timeout_ns,
                   struct cairn_error *reterr) {
        w->forwarded = true;
        w->peer_id = ++run->demand_last;
        w->deadline_ns += FORWARD_NS;
        int r = group_tell_demand(run, w, timeout_ns);
        if (r == 0)
                return 0;
        w->used = false;
        return error_set(reterr, r, "snapshot", run->name,
                         "the agent that leads the group cannot be asked at present; try again");
}

static void demand_own(struct run *run, uint64_t deadline_ns, bool notice) {
        uint64_t now_ns = loop_now(&run->agent->loop);
        struct run_waiter *w = waiter_new(run);
        if (!w)
                return;
        w->internal = w->wait = true;
        w->notice = notice;
        w->deadline_ns = deadline_ns;
        if (!group_leads(run)) {
                (void) forward(run, w, deadline_ns > now_ns ? deadline_ns - now_ns : 1, NULL);
                return;
        }
        end_pause(run);
        set_targets(run, w);
}

void demand_internal(struct run *run, uint64_t deadline_ns) {
        demand_own(run, deadline_ns, false);
}

/* Everything is committed as it stands. */
static bool committed_already(struct run *run) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                if (!session_cuttable(s))
                        return false;
                struct cut_word w = session_word(s);
                if (w.phase == CUT_UPDATING || w.seq == 0 ||
                    atomic_load(&s->page->committed_seq) != w.seq)
                        return false;
        }
        return run->committed_ns != 0 && *run->committed_name;
}

bool demand_notice(struct run *run, uint64_t deadline_ns) {
        if (committed_already(run))
                return false;
        demand_own(run, deadline_ns, true);
        return true;
}

bool demand_notice_pending(const struct run *run) {
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++)
                if (run->waiters[i].used && run->waiters[i].notice)
                        return true;
        return false;
}

void demand_periodic(struct run *run) {
        bool active = false;
        for (uint32_t i = 0; i < run->local_count; i++) {
                if (run->sessions[i]) /* nothing else may have looked since its first update */
                        session_refresh(run->sessions[i]);
                active = active || (run->sessions[i] && run->sessions[i]->state == SESSION_ACTIVE);
        }
        if (active && group_leads(run) && !demand_pending(run) && !committed_already(run))
                demand_internal(run, loop_now(&run->agent->loop) + run->every_ns);
}

static void answer(struct run_waiter *w, const char *name, int64_t step, uint64_t bytes,
                   bool existed, bool flagged) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__SnapshotReply m = CAIRN__CONTROL__SNAPSHOT_REPLY__INIT;
        m.checkpoint = (ProtobufCBinaryData){strlen(name), (uint8_t *) name};
        m.step = step;
        m.bytes = bytes;
        m.existed = existed;
        m.flagged = flagged;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SNAPSHOT_REPLY;
        e.snapshot_reply = &m;
        if (w->peer_nonce)
                group_tell_demanded(w->run, w, name, step, bytes, existed, flagged, NULL);
        else if (!w->internal)
                server_reply(&w->to, &e, NULL, 0);
        w->used = false;
}

static void fail(struct run_waiter *w, const struct cairn_error *error) {
        if (w->peer_nonce)
                group_tell_demanded(w->run, w, "", -1, 0, false, false, error);
        else if (!w->internal)
                server_fail(&w->to, error);
        w->used = false;
}

static void tagged(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run_waiter *w = context;
        (void) fds;
        if (reply->status < 0)
                fail(w, &reply->error);
        else
                answer(w, reply->committed.name, reply->committed.step, reply->committed.bytes,
                       true, reply->committed.flagged);
}

/* The checkpoint is there already; it is given the tag that was asked for. */
static int tag_existing(struct run *run, struct run_waiter *w, struct cairn_error *reterr) {
        struct store_message m = {.verb = STORE_TAG};
        m.committed.step = run->committed_step;
        m.committed.bytes = run->committed_bytes;
        m.committed.flagged = run->committed_flagged;
        memcpy(m.committed.name, run->committed_name, sizeof m.committed.name);
        memcpy(m.name, w->tag, sizeof w->tag);
        w->tagging = true;
        int r = run_store_request(run, &m, tagged, w, reterr);
        if (r < 0)
                w->used = false;
        return r;
}

/* `w` is filled; taken at once, or by and by. */
static int begin(struct run *run, struct run_waiter *w, struct cairn_error *reterr) {
        if (committed_already(run)) {
                if (*w->tag)
                        return tag_existing(run, w, reterr);
                answer(w, run->committed_name, run->committed_step, run->committed_bytes, true,
                       run->committed_flagged);
                return 0;
        }
        end_pause(run);
        set_targets(run, w);
        run_pump(run);
        return 0;
}

int run_snapshot(struct run *run, const struct reply_to *to,
                 const Cairn__Control__SnapshotRequest *m, struct cairn_error *reterr) {
        bool any = false;
        for (uint32_t i = 0; i < run->local_count; i++)
                any = any || session_cuttable(run->sessions[i]);
        if (!any)
                return error_set(reterr, CAIRN_ERR_BUSY, "snapshot", run->name,
                                 "no trainer has registered its tensors yet; try again");
        if (run->fenced)
                return error_set(reterr, CAIRN_ERR_STALE, "snapshot", run->name,
                                 "a newer generation of the run exists elsewhere");
        if (m->tag.len >= sizeof run->waiters[0].tag)
                return error_set(reterr, CAIRN_ERR_API, "snapshot", run->name,
                                 "a tag has at most %zu bytes", sizeof run->waiters[0].tag - 1);
        /* Found when it is written, it would cost the checkpoint, and whoever shares the cut. */
        const char *wrong = check_text(&m->tag, sizeof run->waiters[0].tag - 1, true);
        if (wrong)
                return error_set(reterr, CAIRN_ERR_API, "snapshot", run->name, "the tag %s", wrong);
        struct run_waiter *w = waiter_new(run);
        if (!w)
                return error_set(reterr, CAIRN_ERR_BUSY, "snapshot", run->name,
                                 "%d requests wait already", RUN_WAITER_COUNT_MAX);
        w->to = *to;
        w->wait = m->wait;
        if (m->tag.len)
                memcpy(w->tag, m->tag.data, m->tag.len);
        uint64_t timeout_ns = m->timeout_ns ? m->timeout_ns : 60 * NSEC_PER_SEC;
        w->deadline_ns = loop_now(&run->agent->loop) +
                         (timeout_ns < UINT64_MAX / 4 ? timeout_ns : UINT64_MAX / 4);
        return group_leads(run) ? begin(run, w, reterr) : forward(run, w, timeout_ns, reterr);
}

void demand_from(struct run *run, uint64_t nonce, const Cairn__Peer__Demand *m) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct run_waiter refused = {.run = run, .peer_nonce = nonce, .peer_id = m->id}, *w;
        uint64_t timeout_ns = m->timeout_ns < UINT64_MAX / 4 ? m->timeout_ns : UINT64_MAX / 4;
        uint64_t deadline_ns = loop_now(&run->agent->loop) + timeout_ns;
        w = m->tag.len < sizeof w->tag ? waiter_new(run) : NULL;
        if (!w) {
                (void) error_set(&error, CAIRN_ERR_BUSY, "snapshot", run->name,
                                 "%d requests wait already", RUN_WAITER_COUNT_MAX);
                fail(&refused, &error);
                return;
        }
        w->peer_nonce = nonce;
        w->peer_id = m->id;
        w->wait = m->wait;
        w->notice = m->notice;
        w->deadline_ns = deadline_ns;
        if (m->tag.len)
                memcpy(w->tag, m->tag.data, m->tag.len);
        if (begin(run, w, &error) < 0)
                fail(w, &error);
}

void demand_heard(struct run *run, const Cairn__Peer__Demanded *m) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        char name[NAME_BYTES] = "";
        if (m->checkpoint.len > 0 && m->checkpoint.len < sizeof name)
                memcpy(name, m->checkpoint.data, m->checkpoint.len);
        if (m->failure)
                wire_failure_read(m->failure, &error);
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++) {
                struct run_waiter *w = &run->waiters[i];
                if (!w->used || !w->forwarded || w->peer_id != m->id)
                        continue;
                if (m->failure)
                        fail(w, &error);
                else
                        answer(w, name, m->step, m->bytes, m->existed, m->flagged);
        }
}

/* ---- what became of it ---- */

/* No rank was cut before it was asked for. */
static bool is_later(const struct run *run, const struct run_attempt *a,
                     const struct run_waiter *w) {
        if (a->world != run->world)
                return false;
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct rank_cut *row = &a->ranks[run->first_rank + i];
                if (row->state >= RANK_CUT && row->seq < w->seq[i])
                        return false;
        }
        return true;
}

static bool covers(const struct run *run, const struct run_attempt *a, const struct run_waiter *w) {
        return is_later(run, a, w) && attempt_count(a, RANK_CUT) == run->world;
}

void demand_committed(struct run *run, const struct run_attempt *a,
                      const struct commit_result *committed) {
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++) {
                struct run_waiter *w = &run->waiters[i];
                if (w->used && !w->tagging && !w->forwarded && covers(run, a, w))
                        answer(w, committed->name, committed->step, committed->bytes,
                               committed->existed, committed->flagged);
        }
}

/* A rank may fail while others still copy: nobody waits in vain for what all were told to take. */
static bool would_cover(const struct run *run, const struct run_attempt *a,
                        const struct run_waiter *w) {
        return covers(run, a, w) || (is_later(run, a, w) && attempt_count(a, RANK_CUT) > 0 &&
                                     run->hold.attempt == a->number);
}

void demand_failed(struct run *run, const struct run_attempt *a, const struct cairn_error *error) {
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++) {
                struct run_waiter *w = &run->waiters[i];
                if (!w->used || w->tagging || w->forwarded || !would_cover(run, a, w))
                        continue;
                /* Nobody's fault, or ranks that were not level: asked again within its time. */
                if (error && error->status != CAIRN_ERR_BUSY && error->status != CAIRN_ERR_PEER)
                        fail(w, error);
                else
                        set_targets(run, w);
        }
}

void demand_not_opened(struct run *run, const struct run_attempt *a,
                       const struct cairn_error *error) {
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++) {
                struct run_waiter *w = &run->waiters[i];
                if (!w->used || w->tagging)
                        continue;
                if (w->since_ns > a->since_ns)
                        end_pause(run);
                else
                        fail(w, error);
        }
}

const char *demand_tag(const struct run *run, const struct run_attempt *a, uint32_t *ret_reason) {
        const char *tag = "";
        *ret_reason = 0;
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++) {
                const struct run_waiter *w = &run->waiters[i];
                if (!w->used || w->tagging || w->forwarded || !covers(run, a, w))
                        continue;
                *ret_reason = w->notice || *ret_reason == 2 ? 2 : 1;
                if (*w->tag)
                        tag = w->tag;
        }
        return tag;
}

static void say_timeout(struct run *run, struct run_waiter *w) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        uint64_t now_ns = loop_now(&run->agent->loop);
        double waited = (double) (now_ns - w->since_ns) / 1e9;
        for (uint32_t i = 0; i < run->local_count && !error.status; i++) {
                struct session *s = run->sessions[i];
                if (!session_cuttable(s))
                        continue;
                struct cut_word word = session_word(s);
                double since = (double) (now_ns - s->word_since_ns) / 1e9;
                if (word.phase == CUT_UPDATING && word.seq < w->seq[i])
                        (void) error_set(&error, CAIRN_ERR_TIMEOUT, "snapshot", run->name,
                                         "rank %u (process %d) is inside an update since at least "
                                         "%.1f s, and a cut can only be taken outside of one",
                                         s->rank, (int) s->pid, since);
                else if (s->no_room)
                        (void) error_set(&error, CAIRN_ERR_TIMEOUT, "snapshot", run->name,
                                         "there is no memory for a snapshot of rank %u yet: %s",
                                         s->rank, s->last_error.message);
                else if (!s->saver_sealed)
                        (void) error_set(&error, CAIRN_ERR_TIMEOUT, "snapshot", run->name,
                                         "the saver of rank %u is being restarted", s->rank);
                else if (attempts_in_flight(run, s->rank))
                        (void) error_set(&error, CAIRN_ERR_TIMEOUT, "snapshot", run->name,
                                         "the snapshot is still being written after %.1f s; it "
                                         "goes on",
                                         waited);
        }
        if (!error.status)
                (void) error_set(&error, CAIRN_ERR_TIMEOUT, "snapshot", run->name,
                                 "no cut was committed within %.1f s; 'cairn status' shows what "
                                 "the run waits for",
                                 waited);
        fail(w, &error);
}

/* Answer who only wanted the cut to be taken. */
static void answer_taken(struct run *run, struct run_waiter *w) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                if (a->state != ATTEMPT_EMPTY && !a->doomed && covers(run, a, w)) {
                        uint64_t bytes = 0;
                        for (uint32_t rank = 0; rank < a->world; rank++)
                                bytes += a->ranks[rank].bytes;
                        answer(w, "", a->step, bytes, false, false);
                        return;
                }
        }
}

static void take(struct run *run, const struct run_waiter *w) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                /* The last state of a dead trainer has its own order, which tells how it ended. */
                if (!session_cuttable(s) || s->dead || !s->armed_attempt || s->disarming ||
                    s->writing || attempts_cover(run, s->rank, w->seq[i]))
                        continue;
                session_take(s, w->seq[i] ? w->seq[i] : 1);
        }
}

static bool is_uncovered(const struct run *run, const struct run_waiter *w) {
        for (size_t i = 0; i < RUN_ATTEMPT_COUNT; i++) {
                const struct run_attempt *a = &run->attempts[i];
                if ((a->state == ATTEMPT_OPEN || a->state == ATTEMPT_COMMITTING) && !a->doomed &&
                    covers(run, a, w))
                        return false;
        }
        return true;
}

void demand_pump(struct run *run) {
        uint64_t now_ns = loop_now(&run->agent->loop);
        bool hold = false;
        for (size_t i = 0; i < RUN_WAITER_COUNT_MAX; i++) {
                struct run_waiter *w = &run->waiters[i];
                if (!w->used || w->tagging)
                        continue;
                for (uint32_t k = 0; k < run->local_count; k++)
                        if (session_cuttable(run->sessions[k]))
                                (void) session_word(run->sessions[k]);
                if (!w->internal && !w->peer_nonce && !server_reach(&w->to))
                        w->used = false; /* whoever asked hung up */
                else if (now_ns >= w->deadline_ns)
                        say_timeout(run, w);
                else if (!w->forwarded) {
                        if (run->world == 1)
                                take(run, w);
                        hold = hold || is_uncovered(run, w);
                        if (!w->wait && !w->internal)
                                answer_taken(run, w);
                }
        }
        if (run->world > 1 && group_leads(run))
                hold_pump(run, hold);
}
