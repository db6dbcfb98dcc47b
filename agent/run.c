/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/run.h"
#include "agent/attempt.h"
#include "agent/demand.h"
#include "agent/group.h"
#include "agent/hold.h"
#include "agent/park.h"
#include "agent/postmortem.h"
#include "agent/run_parts.h"
#include "base/log.h"
#include "base/states.h"
#include <errno.h>
#include <signal.h>

#define RUN_REAP_NS (10 * NSEC_PER_SEC)

static const struct state_row run_states[RUN_STATE_COUNT] = {
        [RUN_STARTING] = {"starting", STATE_TO(RUN_LIVE) | STATE_TO(RUN_ENDED)},
        [RUN_LIVE] = {"live", STATE_TO(RUN_STARTING) | STATE_TO(RUN_ENDING)},
        [RUN_ENDING] = {"ending", STATE_TO(RUN_ENDED)},
        [RUN_ENDED] = {"ended", 0},
};

const char *run_state_name(enum run_state state) {
        return run_states[state].name;
}

void run_set_state(struct run *run, enum run_state to) {
        const char *name = state_table_step(run_states, RUN_STATE_COUNT, run->state, to);
        log_event(LOG_LEVEL_INFO, "run=%s generation=%llu state=%s previous=%s", run->name,
                  (unsigned long long) run->generation, name, run_states[run->state].name);
        run->state = to;
}

static void pump_timer(void *context) {
        run_pump(context);
}

/* ---- the store ---- */

struct run_store_call {
        struct run *run;
        agent_store_fn reply;
        void *context;
        uint64_t asked_ns;
        struct run_store_call *next;
};

static void store_replied(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run_store_call *call = context, **p;
        struct run *run = call->run;
        call->reply(call->context, reply, fds);
        for (p = &run->store_calls; *p != call; p = &(*p)->next)
                ;
        *p = call->next;
        free(call);
        run_pump(run);
        agent_reap(run->agent);
}

int run_store_request(struct run *run, struct store_message *m, agent_store_fn reply, void *context,
                      struct cairn_error *reterr) {
        struct run_store_call *call = malloc(sizeof *call);
        if (!call)
                return error_set_errno(reterr, ENOMEM, "ask store", run->store);
        *call = (struct run_store_call){.run = run,
                                        .reply = reply,
                                        .context = context,
                                        .asked_ns = loop_now(&run->agent->loop),
                                        .next = run->store_calls};
        memcpy(m->run, run->name, sizeof m->run);
        m->grouped = run->group != NULL;
        if (m->verb == STORE_START)
                m->start.grouped = m->grouped;
        if (!m->generation)
                m->generation = run->generation;
        if (!m->world)
                m->world = run->world;
        int r = run->agent->ops->store_request(run->agent, run->store, m, store_replied, call,
                                               reterr);
        if (r < 0)
                free(call);
        else
                run->store_calls = call;
        return r;
}

uint64_t run_store_asked_ns(const struct run *run) {
        uint64_t oldest_ns = 0;
        for (const struct run_store_call *c = run->store_calls; c; c = c->next)
                oldest_ns = c->asked_ns; /* the newest comes first */
        return oldest_ns;
}

uint64_t run_bandwidth(const struct run *run) {
        uint64_t slowest = 0;
        for (uint32_t i = 0; i < run->local_count; i++)
                if (run->sessions[i] && run->sessions[i]->write_rate &&
                    (!slowest || run->sessions[i]->write_rate < slowest))
                        slowest = run->sessions[i]->write_rate;
        return slowest ? slowest : RUN_BANDWIDTH_ASSUMED;
}

struct session *run_session(const struct run *run, uint32_t rank) {
        return run_is_local(run, rank) ? run->sessions[rank - run->first_rank] : NULL;
}

bool run_sessions_ended(const struct run *run) {
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i] && !session_settled(run->sessions[i]))
                        return false;
        return true;
}

void run_signal_all(struct run *run, int signal_number) {
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i])
                        session_signal(run->sessions[i], signal_number);
}

void run_wish_stop(struct run *run) {
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i] && run->sessions[i]->page)
                        atomic_fetch_or(&run->sessions[i]->page->wishes, CUT_WISH_STOP);
}

static void every_fired(void *context) {
        struct run *run = context;
        demand_periodic(run);
        loop_timer_set(&run->agent->loop, &run->every_timer,
                       loop_now(&run->agent->loop) + run->every_ns);
        run_pump(run);
}

static void kill_fired(void *context) {
        log_event(LOG_LEVEL_WARNING, "run=%s trainers=killed", ((struct run *) context)->name);
        run_signal_all(context, SIGKILL);
}

struct run *run_new(struct agent *a, const char *name) {
        size_t slot = 0;
        while (slot < AGENT_RUN_COUNT_MAX && a->runs[slot])
                slot++;
        struct run *run = slot < AGENT_RUN_COUNT_MAX ? calloc(1, sizeof *run) : NULL;
        if (!run)
                return NULL;
        run->agent = a;
        run->runner_fd = -1;
        run->committed_step = run->resumable_step = run->checkpoint_step = -1;
        run->died_step = run->postmortem_step = run->flagged_step = -1;
        run->last_error = (struct cairn_error) CAIRN_ERROR_INIT;
        memcpy(run->name, name, strlen(name) + 1);
        loop_timer_init(&run->kill_timer, kill_fired, run);
        loop_timer_init(&run->every_timer, every_fired, run);
        loop_timer_init(&run->tick_timer, pump_timer, run);
        exchange_init(&run->exchange, &a->loop);
        outage_init(run);
        attempts_init(run);
        a->runs[slot] = run;
        return run;
}

void run_free(struct run *run) {
        if (!run)
                return;
        struct agent *a = run->agent;
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++)
                if (a->runs[i] == run)
                        a->runs[i] = NULL;
        struct connection *c = server_reach(&run->runner);
        if (c && c->run == run)
                c->run = NULL;
        loop_unwatch(&a->loop, &run->runner_source);
        if (run->runner_fd >= 0)
                (void) close(run->runner_fd);
        loop_timer_clear(&a->loop, &run->kill_timer);
        loop_timer_clear(&a->loop, &run->every_timer);
        loop_timer_clear(&a->loop, &run->tick_timer);
        outage_done(run);
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                wire_fds_done(&run->successors[i].fds);
        exchange_clear(&run->exchange);
        attempts_done(run);
        hold_done(run);
        group_free(run->group);
        wire_fds_done(&run->start_fds);
        if (run->start)
                cairn__control__start__free_unpacked(run->start, NULL);
        while (run->store_calls) { /* only when the agent ends: their answers will not come */
                struct run_store_call *call = run->store_calls;
                run->store_calls = call->next;
                free(call);
        }
        free(run->start_request);
        free(run);
}

static void sessions_check(struct run *run) {
        uint64_t now_ns = loop_now(&run->agent->loop);
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++) {
                struct session *s = run->sessions[i];
                if (!s)
                        continue;
                session_refresh(s);
                if (s->state == SESSION_SETTLING && !postmortem_pending(s) &&
                    !run_session_in_flight(run, s))
                        session_finish_settling(s);
                /* Its launcher reaped a wrapper and the trainer lives on. */
                if (s->exit_reply.connection && !s->dead && now_ns > s->exit_ns + RUN_REAP_NS)
                        session_signal(s, SIGKILL);
                struct held_hello *next = &run->successors[i];
                if (server_reach(&next->to) && now_ns > next->since_ns + NSEC_PER_SEC) {
                        next->since_ns = now_ns;
                        run_send_wait(run, next);
                }
        }
}

static bool needs_tick(const struct run *run) {
        if (run->stop.active || run->end.wanted || run->finish.count || run->start_pending ||
            notice_pending(run) || demand_pending(run) || run->open_after_ns || run->arm_after_ns ||
            hold_active(run) || attempts_uneven(run))
                return true;
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if ((run->sessions[i] && (run->sessions[i]->state == SESSION_SETTLING ||
                                          run->sessions[i]->exit_reply.connection)) ||
                    run->successors[i].to.connection)
                        return true;
        return false;
}

static void pump_once(struct run *run) {
        park_pump(run);
        postmortem_pump(run);
        attempts_pump(run);
        demand_pump(run);
        run_notice_check(run);
        run_stop_check(run);
        run_finish_check(run);
        sessions_check(run);
        if (run->start_pending && run_sessions_ended(run))
                run_begin_start(run);
        run_end_check(run);
        outage_pump(run);
}

void run_pump(struct run *run) {
        if (run->pumping) {
                run->pump_again = true;
                return;
        }
        run->pumping = true;
        do {
                run->pump_again = false;
                pump_once(run);
        } while (run->pump_again);
        run->pumping = false;
        if (run->state == RUN_ENDED)
                agent_reap(run->agent);
        else if (needs_tick(run))
                loop_timer_set(&run->agent->loop, &run->tick_timer,
                               loop_now(&run->agent->loop) + RUN_TICK_NS);
}
