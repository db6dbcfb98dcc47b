/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/group.h"
#include "agent/postmortem.h"
#include "agent/run_parts.h"
#include "base/cleanup.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>

void run_send_wait(struct run *run, const struct held_hello *h) {
        const struct session *s = run_session(run, h->rank);
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Wait m = CAIRN__CONTROL__WAIT__INIT;
        static const char reason[] = "the predecessor's last snapshot is being written";
        uint64_t now_ns = loop_now(&run->agent->loop);
        m.reason = (ProtobufCBinaryData){sizeof reason - 1, (uint8_t *) reason};
        m.total_bytes = s ? s->image_bytes : 0;
        m.limit_ms = s && s->limit_ns > now_ns ? (s->limit_ns - now_ns) / NSEC_PER_MSEC : 0;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_WAIT;
        e.wait = &m;
        server_reply(&h->to, &e, NULL, 0);
}

static int welcome_new(struct run *run, struct held_hello *h, struct cairn_error *reterr) {
        struct session_hello hello = {.rank = h->rank,
                                      .session_id = h->session_id,
                                      .secret = h->has_secret ? h->secret : NULL,
                                      .to = h->to,
                                      .pid = h->to.connection->pid};
        return session_open(run, &hello, &h->fds, &run->sessions[h->rank - run->first_rank],
                            reterr);
}

static int check_local(const struct run *run, uint32_t rank, const char *operation,
                       struct cairn_error *reterr) {
        if (run_is_local(run, rank))
                return 0;
        if (rank >= run->world)
                return error_set(reterr, CAIRN_ERR_API, operation, run->name,
                                 "rank %u of a run with %u ranks", rank, run->world);
        return error_set(reterr, CAIRN_ERR_API, operation, run->name,
                         "rank %u is not one of this node's, %u to %u", rank, run->first_rank,
                         run->first_rank + run->local_count - 1);
}

static int check_rank(const struct run *run, const struct held_hello *h,
                      struct cairn_error *reterr) {
        TRY(check_local(run, h->rank, "open session", reterr));
        if (run->state == RUN_ENDING || run->state == RUN_ENDED)
                return error_set(reterr, CAIRN_ERR_STALE, "open session", run->name,
                                 "the run is ending");
        if (run->finish.done && !run->generation)
                return error_set(reterr, CAIRN_ERR_FINISHED, "open session", run->name,
                                 "the run is finished");
        if (h->to.connection->uid != run->uid && h->to.connection->uid != 0)
                return error_set(reterr, CAIRN_ERR_PERMISSION, "open session", run->name,
                                 "the run belongs to user %u", (unsigned) run->uid);
        if (h->session_id && h->generation != run->generation)
                return error_set(reterr, CAIRN_ERR_STALE, "reattach session", run->name,
                                 "it is of generation %llu, the run is in %llu",
                                 (unsigned long long) h->generation,
                                 (unsigned long long) run->generation);
        return 0;
}

int run_hello(struct run *run, struct held_hello *h, struct cairn_error *reterr) {
        TRY(check_rank(run, h, reterr));
        struct session *s = run_session(run, h->rank);
        struct held_hello *next = &run->successors[h->rank - run->first_rank];
        if (h->session_id && s && !s->dead && s->id == h->session_id) {
                struct session_hello hello = {.secret = h->has_secret ? h->secret : NULL,
                                              .to = h->to};
                return session_rebind(s, &hello, reterr);
        }
        if (h->session_id && s)
                return error_set(reterr, CAIRN_ERR_STALE, "reattach session", run->name,
                                 "rank %u has another session by now", h->rank);
        if (!s || session_settled(s))
                return welcome_new(run, h, reterr);
        /* The same process closed its session and opens another one. */
        if (!s->dead && s->pid == h->to.connection->pid && !server_reach(&s->hello)) {
                s->closed = true;
                session_died(s);
        }
        if (!s->dead)
                return error_set(reterr, CAIRN_ERR_BUSY, "open session", run->name,
                                 "rank %u is alive in process %d", h->rank, (int) s->pid);
        if (session_settled(s))
                return welcome_new(run, h, reterr);
        if (server_reach(&next->to))
                return error_set(reterr, CAIRN_ERR_BUSY, "open session", run->name,
                                 "process %d waits already to be rank %u",
                                 (int) next->to.connection->pid, h->rank);
        wire_fds_done(&next->fds);
        *next = *h;
        h->fds = (struct wire_fds) WIRE_FDS_INIT;
        next->since_ns = loop_now(&run->agent->loop);
        run_send_wait(run, next);
        run_pump(run);
        return 0;
}

void run_answer_ranks(const struct run *run, const struct reply_to *to) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangeRanks m = CAIRN__CONTROL__EXCHANGE_RANKS__INIT;
        _cleanup_free_ uint32_t *ranks = calloc(run->world, sizeof *ranks);
        if (!ranks) {
                struct cairn_error error = CAIRN_ERROR_INIT;
                (void) error_set_errno(&error, ENOMEM, "list ranks", run->name);
                server_fail(to, &error);
                return;
        }
        m.ranks = ranks;
        m.generation = run->generation;
        for (uint32_t i = 0; i < run->world; i++) {
                const struct session *s = run_session(run, i);
                /* Of other nodes: they live as long as the group does. */
                if (s ? !s->dead : group_has(run, i))
                        ranks[m.n_ranks++] = i;
        }
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_RANKS;
        e.exchange_ranks = &m;
        server_reply(to, &e, NULL, 0);
}

static void answer_settled(struct run *run, const struct reply_to *to) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__RankSettled m = CAIRN__CONTROL__RANK_SETTLED__INIT;
        m.committed_step = run->resumable_step;
        m.finished = run->finish.done;
        m.finished_reason =
                (ProtobufCBinaryData){strlen(run->finish.reason), (uint8_t *) run->finish.reason};
        m.stopped = run->stop.active || run->agent->stopping;
        m.preempted = run->notice.active || run->stop.preempted;
        m.leaves = run->notice.active;
        m.died_step = run->died_step;
        m.post_mortem = run->postmortem_step >= 0 && run->postmortem_step == run->resumable_step;
        m.flagged_step = run->flagged_step;
        m.lost_steps = run->lost_last;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_RANK_SETTLED;
        e.rank_settled = &m;
        server_reply(to, &e, NULL, 0);
}

/* The other nodes' ranks cannot go on without it. */
static void rank_failed(struct run *run, uint32_t rank, int status) {
        char what[200];
        if (WIFSIGNALED(status))
                (void) snprintf(what, sizeof what, "rank %u was killed by signal %d", rank,
                                WTERMSIG(status));
        else
                (void) snprintf(what, sizeof what, "rank %u ended with status %d", rank,
                                WEXITSTATUS(status));
        if (status != 0)
                group_rank_failed(run, what, WIFEXITED(status) ? WEXITSTATUS(status) : 0);
}

int run_rank_exit(struct run *run, const struct reply_to *to, const Cairn__Control__RankExit *m,
                  struct cairn_error *reterr) {
        uint32_t rank = m->rank;
        TRY(check_local(run, rank, "settle rank", reterr));
        rank_failed(run, rank, m->wait_status);
        struct session *s = run_session(run, rank);
        if (!s || session_settled(s)) {
                answer_settled(run, to);
                return 0;
        }
        postmortem_reaped(s, m->wait_status, (pid_t) m->pid);
        s->exit_reply = *to;
        s->exit_ns = loop_now(&run->agent->loop);
        run_pump(run);
        return 0;
}

void run_session_ended(struct run *run, struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        postmortem_settled(run, s);
        if (s->exit_reply.connection)
                answer_settled(run, &s->exit_reply);
        s->exit_reply = (struct reply_to){0};
        bool newest = run_session(run, s->rank) == s;
        struct held_hello *next = newest ? &run->successors[s->rank - run->first_rank] : NULL;
        if (next && server_reach(&next->to)) {
                struct held_hello h = *next;
                *next = (struct held_hello){0};
                struct reply_to to = h.to;
                if (welcome_new(run, &h, &error) < 0)
                        server_fail(&to, &error);
                wire_fds_done(&h.fds);
        }
        run_pump(run);
        agent_reap(run->agent);
}

int run_exchange_put(struct run *run, uint32_t rank, const Cairn__Control__ExchangePut *m,
                     const struct reply_to *to, struct cairn_error *reterr) {
        TRY(exchange_put(&run->exchange, rank, &m->key, &m->value, to, reterr));
        group_tell_exchange(run, rank, &m->key, &m->value);
        return 0;
}
