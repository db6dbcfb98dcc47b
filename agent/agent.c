/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/agent.h"
#include "agent/run.h"
#include "agent/session.h"
#include "agent/status.h"
#include "agent/upkeep.h"
#include "base/log.h"
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

#define AGENT_GRACE_NS (5 * NSEC_PER_SEC) /* for the runner's End after the last trainer */

struct run *agent_find_run(struct agent *a, const char *name) {
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++)
                if (a->runs[i] && a->runs[i]->state != RUN_ENDED && !strcmp(a->runs[i]->name, name))
                        return a->runs[i];
        return NULL;
}

static int get_run(struct agent *a, const ProtobufCBinaryData *name, const char *operation,
                   struct run **ret, struct cairn_error *reterr) {
        char text[RUN_NAME_BYTES_MAX + 1] = "", escaped[4 * RUN_NAME_BYTES_MAX + 8];
        if (name->len > 0 && name->len <= RUN_NAME_BYTES_MAX)
                memcpy(text, name->data, name->len);
        *ret = agent_find_run(a, text);
        if (*ret)
                return 0;
        return error_set(reterr, CAIRN_ERR_NOTFOUND, operation,
                         text_escape(escaped, sizeof escaped, (const char *) name->data,
                                     name->len <= RUN_NAME_BYTES_MAX ? name->len : 0),
                         "this agent serves no such run; 'cairn run' starts one");
}

/* ---- Hello ---- */

static void welcome_other(const struct reply_to *to, struct connection *c) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Welcome m = CAIRN__CONTROL__WELCOME__INIT;
        (void) c;
        m.protocol = WIRE_PROTOCOL;
        m.features = SERVER_FEATURES;
        m.software = (ProtobufCBinaryData){sizeof SERVER_SOFTWARE - 1, (uint8_t *) SERVER_SOFTWARE};
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_WELCOME;
        e.welcome = &m;
        server_reply(to, &e, NULL, 0);
}

static void held_clear(struct held_hello *h) {
        wire_fds_done(&h->fds);
        *h = (struct held_hello){0};
}

static void hold_timer(struct agent *a) {
        uint64_t first = UINT64_MAX;
        for (size_t i = 0; i < AGENT_HELD_COUNT_MAX; i++)
                if (a->held[i].to.connection && a->held[i].deadline_ns < first)
                        first = a->held[i].deadline_ns;
        if (first != UINT64_MAX)
                loop_timer_set(&a->loop, &a->held_timer, first);
}

/* The agent was restarted and its runner has not said Start yet. */
static int hold(struct agent *a, struct held_hello *h, struct cairn_error *reterr) {
        for (size_t i = 0; i < AGENT_HELD_COUNT_MAX; i++)
                if (!server_reach(&a->held[i].to)) {
                        held_clear(&a->held[i]);
                        h->deadline_ns = loop_now(&a->loop) + AGENT_HELD_NS;
                        a->held[i] = *h;
                        h->fds = (struct wire_fds) WIRE_FDS_INIT;
                        hold_timer(a);
                        return 0;
                }
        return error_set(reterr, CAIRN_ERR_BUSY, "open session", h->run, "too many trainers wait");
}

static void held_late(void *context) {
        struct agent *a = context;
        for (size_t i = 0; i < AGENT_HELD_COUNT_MAX; i++) {
                struct held_hello *h = &a->held[i];
                struct cairn_error error = CAIRN_ERROR_INIT;
                if (!h->to.connection || loop_now(&a->loop) < h->deadline_ns)
                        continue;
                (void) error_set(&error, CAIRN_ERR_NOTFOUND, "open session", h->run,
                                 "this agent serves no such run; 'cairn run' starts one");
                server_fail(&h->to, &error);
                held_clear(h);
        }
        hold_timer(a);
}

void agent_release_held(struct agent *a, struct run *run) {
        for (size_t i = 0; i < AGENT_HELD_COUNT_MAX; i++) {
                struct held_hello *h = &a->held[i];
                struct cairn_error error = CAIRN_ERROR_INIT;
                if (!h->to.connection || strcmp(h->run, run->name) != 0)
                        continue;
                struct held_hello taken = *h;
                *h = (struct held_hello){0};
                struct reply_to to = taken.to;
                if (server_reach(&to) && run_hello(run, &taken, &error) < 0)
                        server_fail(&to, &error);
                wire_fds_done(&taken.fds);
        }
}

/* Final for libcairn: the trainer need not wait for an agent that will not come. */
static int orphan_error(const char *run, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_STALE, "open session", run,
                         "the 'cairn run' that started it is gone");
}

static int handle_hello(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                        struct wire_fds *fds, struct cairn_error *reterr) {
        struct agent *a = context;
        const Cairn__Control__Hello *m = e->hello;
        struct held_hello h = {.to = server_later(c, e->id),
                               .rank = m->rank,
                               .session_id = m->session_id,
                               .generation = m->generation};
        if (c->kind == CAIRN__CONTROL__PEER_KIND__PEER_RUNNER && a->runner_gone)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "start run", "",
                                 "this agent is another `cairn run`'s, and ends as that did");
        if (c->kind != CAIRN__CONTROL__PEER_KIND__PEER_CLIENT) {
                welcome_other(&h.to, c);
                return 0;
        }
        if (m->run.len > RUN_NAME_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "open session", "", "run name too long");
        if (m->run.len)
                memcpy(h.run, m->run.data, m->run.len);
        TRY(name_check_run(h.run, reterr));
        if (m->session_id && m->secret.len != sizeof h.secret)
                return error_set(reterr, CAIRN_ERR_API, "reattach session", h.run,
                                 "the secret has %zu bytes", m->secret.len);
        h.has_secret = m->session_id != 0;
        if (h.has_secret)
                memcpy(h.secret, m->secret.data, sizeof h.secret);
        if (a->stopping)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "open session", h.run,
                                 "this agent is shutting down");
        h.fds = *fds;
        *fds = (struct wire_fds) WIRE_FDS_INIT;
        struct run *run = agent_find_run(a, h.run);
        int r;
        if (run && run->state == RUN_LIVE)
                r = run_hello(run, &h, reterr);
        else if (a->runner_gone)
                r = orphan_error(h.run, reterr);
        else if (run || m->session_id || a->config.runner)
                r = hold(a, &h, reterr);
        else
                r = error_set(reterr, CAIRN_ERR_NOTFOUND, "open session", h.run,
                              "this agent serves no such run; 'cairn run' starts one");
        wire_fds_done(&h.fds);
        return r;
}

/* ---- the trainer's messages ---- */

static int get_session(struct connection *c, struct session **ret, struct cairn_error *reterr) {
        *ret = c->session;
        if (!c->session || c->session->state >= SESSION_SETTLING)
                return error_set(reterr, CAIRN_ERR_STALE, "use session", "",
                                 "the session was not welcomed or has ended");
        return 0;
}

#define CLIENT_HANDLER(name, call)                                                        \
        static int handle_##name(void *context, struct connection *c,                     \
                                 const Cairn__Control__Envelope *e, struct wire_fds *fds, \
                                 struct cairn_error *reterr) {                            \
                struct reply_to to = server_later(c, e->id);                              \
                struct session *s;                                                        \
                (void) context;                                                           \
                (void) fds;                                                               \
                (void) to;                                                                \
                TRY(get_session(c, &s, reterr));                                          \
                return call;                                                              \
        }
CLIENT_HANDLER(slab_batch, session_slabs(s, &to, e->slab_batch, fds, reterr))
CLIENT_HANDLER(seal, session_seal(s, &to, e->seal, fds, reterr))
CLIENT_HANDLER(inventory, session_inventory(s, &to, reterr))
CLIENT_HANDLER(restore, session_restore(s, &to, e->restore, fds, reterr))
CLIENT_HANDLER(restore_done, session_restore_done(s, &to, e->restore_done->status, reterr))
CLIENT_HANDLER(finish, run_finish(s->run, s, &to, e->finish, reterr))
CLIENT_HANDLER(exchange_put, run_exchange_put(s->run, s->rank, e->exchange_put, &to, reterr))
CLIENT_HANDLER(exchange_get,
               exchange_get(&s->run->exchange, s->rank - s->run->first_rank, &e->exchange_get->key,
                            e->exchange_get->wait_ns, &to, reterr))
CLIENT_HANDLER(exchange_list, exchange_list(&s->run->exchange, &e->exchange_list->prefix,
                                            &e->exchange_list->after, &to, reterr))
CLIENT_HANDLER(exchange_ranks, (run_answer_ranks(s->run, &to), 0))

/* ---- runner and tools ---- */

static int handle_start(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                        struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        return run_start(context, c, &to, e->start, fds, reterr);
}

/* Ranks and the end are told by the `cairn run` that started the run; operators have `cairn stop`.
 */
static int get_own_run(struct agent *a, const struct connection *c, const ProtobufCBinaryData *name,
                       const char *operation, struct run **ret, struct cairn_error *reterr) {
        TRY(get_run(a, name, operation, ret, reterr));
        if (server_reach(&(*ret)->runner) != c)
                return error_set(reterr, CAIRN_ERR_PERMISSION, operation, (*ret)->name,
                                 "only the 'cairn run' that started it may");
        return 0;
}

static int handle_rank_exit(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                            struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        struct run *run;
        (void) fds;
        TRY(get_own_run(context, c, &e->rank_exit->run, "settle rank", &run, reterr));
        return run_rank_exit(run, &to, e->rank_exit, reterr);
}

static int handle_end(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                      struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        struct run *run;
        char reason[256];
        (void) fds;
        TRY(get_own_run(context, c, &e->end->run, "end run", &run, reterr));
        (void) text_escape(reason, sizeof reason, (const char *) e->end->reason.data,
                           e->end->reason.len);
        return run_end(run, &to, reason, e->end->code, reterr);
}

static int handle_status(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                         struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        struct run *run = NULL;
        char *json;
        (void) fds;
        if (e->status_request->run.len)
                TRY(get_run(context, &e->status_request->run, "show status", &run, reterr));
        TRY(status_json(context, run ? run->name : "", &json, reterr));
        status_send(&to, json);
        free(json);
        return 0;
}

static int handle_snapshot(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                           struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        struct run *run;
        (void) fds;
        TRY(get_run(context, &e->snapshot_request->run, "snapshot", &run, reterr));
        if (c->kind == CAIRN__CONTROL__PEER_KIND__PEER_CLIENT &&
            (!c->session || c->session->run != run))
                return error_set(reterr, CAIRN_ERR_PERMISSION, "snapshot", run->name,
                                 "a trainer asks for its own run only");
        return run_snapshot(run, &to, e->snapshot_request, reterr);
}

static int handle_stop(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                       struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        struct run *run;
        (void) fds;
        TRY(get_run(context, &e->stop_request->run, "stop run", &run, reterr));
        run->stop.preempted = run->stop.preempted || e->stop_request->preempted;
        return run_stop(run, &to, e->stop_request->deadline_ns, reterr);
}

static int handle_notice(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                         struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        struct run *run;
        (void) fds;
        TRY(get_run(context, &e->notice_request->run, "notify", &run, reterr));
        return run_notice(run, &to, e->notice_request, reterr);
}

static int handle_prune(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                        struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        (void) fds;
        return upkeep_prune(context, &to, e->prune_request, reterr);
}

static int handle_pin(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                      struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        (void) fds;
        return upkeep_pin(context, &to, e->pin_request, reterr);
}

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define CLIENT (1u << CAIRN__CONTROL__PEER_KIND__PEER_CLIENT)
#define RUNNER (1u << CAIRN__CONTROL__PEER_KIND__PEER_RUNNER)
#define TOOL (1u << CAIRN__CONTROL__PEER_KIND__PEER_TOOL)
static const struct server_row rows[] = {
        {BODY(HELLO), CLIENT | RUNNER | TOOL, handle_hello},
        {BODY(SLAB_BATCH), CLIENT, handle_slab_batch},
        {BODY(SEAL), CLIENT, handle_seal},
        {BODY(INVENTORY_REQUEST), CLIENT, handle_inventory},
        {BODY(RESTORE), CLIENT, handle_restore},
        {BODY(RESTORE_DONE), CLIENT, handle_restore_done},
        {BODY(FINISH), CLIENT, handle_finish},
        {BODY(EXCHANGE_PUT), CLIENT, handle_exchange_put},
        {BODY(EXCHANGE_GET), CLIENT, handle_exchange_get},
        {BODY(EXCHANGE_LIST), CLIENT, handle_exchange_list},
        {BODY(EXCHANGE_RANKS_REQUEST), CLIENT, handle_exchange_ranks},
        {BODY(START), RUNNER, handle_start},
        {BODY(RANK_EXIT), RUNNER, handle_rank_exit},
        {BODY(END), RUNNER, handle_end},
        {BODY(STATUS_REQUEST), RUNNER | TOOL, handle_status},
        {BODY(SNAPSHOT_REQUEST), CLIENT | RUNNER | TOOL, handle_snapshot},
        {BODY(STOP_REQUEST), RUNNER | TOOL, handle_stop},
        {BODY(NOTICE_REQUEST), TOOL, handle_notice},
        {BODY(PRUNE_REQUEST), TOOL, handle_prune},
        {BODY(PIN_REQUEST), TOOL, handle_pin},
};

/* A trainer that hung up may live on, or come back: only its pidfd ends its session. */
static void connection_closed(void *context, struct connection *c) {
        struct agent *a = context;
        for (size_t i = 0; i < AGENT_HELD_COUNT_MAX; i++)
                if (a->held[i].to.connection && !server_reach(&a->held[i].to))
                        held_clear(&a->held[i]);
        if (c->run && c->run->runner_fd < 0 && c->run->state < RUN_ENDING)
                run_runner_gone(c->run);
        if (c->session)
                run_pump(c->session->run);
        agent_reap(a);
}

/* ---- the end ---- */

static bool session_of_run(const struct agent *a, const struct run *run) {
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (a->sessions[i] && a->sessions[i]->run == run)
                        return true;
        return false;
}

static void reap(void *context) {
        struct agent *a = context;
        bool any_run = false, any_session = false, any_telling = false;
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++) {
                struct session *s = a->sessions[i];
                if (!s)
                        continue;
                bool gone = session_settled(s) && !s->run->store_calls;
                bool newest = run_session(s->run, s->rank) == s;
                /* Its stuck savers' memory is counted as long as they have it. */
                bool counts = saver_link_lost_count(&s->saver) > 0;
                if (gone && ((!newest && !counts) || s->run->state == RUN_ENDED)) {
                        if (newest)
                                s->run->sessions[s->rank - s->run->first_rank] = NULL;
                        session_free(s);
                        a->sessions[i] = NULL;
                } else
                        any_session = any_session || !session_settled(s);
        }
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++) {
                struct run *run = a->runs[i];
                bool telling = run && run_is_telling(run);
                any_telling = any_telling || telling;
                if (run && run->state == RUN_ENDED && !run->store_calls && !telling &&
                    !session_of_run(a, run)) {
                        a->had_run = a->had_run || run->end.wanted; /* also before it was LIVE */
                        run_free(run);
                }
                any_run = any_run || a->runs[i];
        }
        uint64_t now_ns = loop_now(&a->loop);
        /* One that was restarted just before its runner died tells the trainers that come back. */
        bool lingers = !a->had_run && now_ns < a->linger_until_ns;
        bool embedded_over =
                a->config.runner && !any_run && (a->had_run || (a->runner_gone && !lingers));
        bool late = a->stopping && now_ns >= a->stop_deadline_ns;
        if (a->stopping && !any_session && !any_telling &&
            a->stop_deadline_ns > now_ns + AGENT_GRACE_NS)
                a->stop_deadline_ns = now_ns + AGENT_GRACE_NS;
        if ((embedded_over && server_idle(&a->server)) || late ||
            (a->stopping && !any_run && server_idle(&a->server))) {
                loop_stop(&a->loop);
                return;
        }
        a->had_run = a->had_run || any_run;
        if (a->stopping || embedded_over || a->runner_gone)
                loop_timer_set(&a->loop, &a->end_timer, now_ns + 50 * NSEC_PER_MSEC);
}

void agent_reap(struct agent *a) {
        /* Later, from the loop: callers still use what may go. */
        loop_timer_set(&a->loop, &a->end_timer, loop_now(&a->loop));
}

static void stop_agent(struct agent *a, const char *why) {
        uint64_t now_ns = loop_now(&a->loop);
        log_event(LOG_LEVEL_INFO, "agent=stopping reason=\"%s\"", why);
        if (a->stopping) { /* a second signal: at once */
                loop_stop(&a->loop);
                return;
        }
        a->stopping = true;
        uint64_t duration_ns = a->config.stop_deadline_s * NSEC_PER_SEC;
        a->stop_deadline_ns = now_ns + duration_ns + AGENT_GRACE_NS;
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++)
                if (a->runs[i] && a->runs[i]->state < RUN_ENDING)
                        (void) run_stop(a->runs[i], NULL, duration_ns, NULL);
        agent_reap(a);
}

static void signal_ready(void *context, uint32_t events) {
        struct agent *a = context;
        struct signalfd_siginfo info;
        (void) events;
        if (read(a->signal_fd, &info, sizeof info) == sizeof info)
                stop_agent(a, info.ssi_signo == SIGINT ? "interrupt" : "terminated");
}

void agent_refuse_orphans(struct agent *a) {
        for (size_t i = 0; i < AGENT_HELD_COUNT_MAX; i++) {
                struct held_hello *h = &a->held[i];
                struct cairn_error error = CAIRN_ERROR_INIT;
                const struct run *run = h->to.connection ? agent_find_run(a, h->run) : NULL;
                if (!a->runner_gone || !h->to.connection || (run && run->state != RUN_ENDED))
                        continue;
                (void) orphan_error(h->run, &error);
                server_fail(&h->to, &error);
                held_clear(h);
        }
}

static void runner_gone(void *context, uint32_t events) {
        struct agent *a = context;
        (void) events;
        loop_unwatch(&a->loop, &a->runner_source);
        a->runner_gone = true;
        agent_refuse_orphans(a);
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++)
                if (a->runs[i])
                        run_runner_gone(a->runs[i]);
        agent_reap(a);
}

/* ---- life ---- */

static gid_t find_group(const struct config *config) {
        if (config->runner || !*config->group)
                return (gid_t) -1;
        const struct group *g = getgrnam(config->group);
        return g ? g->gr_gid : (gid_t) -1;
}

/* Signals that a scheduler sends to all processes of a job are the trainers' and `cairn run`'s. A
 * terminal that goes away ends an agent that was started in it, unless by nohup. */
static int watch_signals(struct agent *a, struct cairn_error *reterr) {
        struct sigaction hang_up;
        sigset_t set;
        (void) sigemptyset(&set);
        (void) sigaddset(&set, SIGTERM);
        (void) sigaddset(&set, SIGINT);
        if (a->config.runner)
                (void) signal(SIGHUP, SIG_IGN);
        else if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
                (void) sigaddset(&set, SIGHUP);
        (void) sigprocmask(SIG_BLOCK, &set, NULL);
        (void) signal(SIGPIPE, SIG_IGN);
        (void) signal(SIGUSR1, SIG_IGN);
        (void) signal(SIGUSR2, SIG_IGN);
        a->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        if (a->signal_fd < 0)
                return error_set_errno(reterr, errno, "watch signals", "");
        return loop_watch(&a->loop, &a->signal_source, a->signal_fd, EPOLLIN, signal_ready, a,
                          reterr);
}

/* It may be gone already: then another process is this one's parent. While it is the parent its
 * number cannot be another's. */
static int watch_runner(struct agent *a, struct cairn_error *reterr) {
        a->runner_fd = (int) syscall(SYS_pidfd_open, a->config.runner, 0);
        if (a->runner_fd < 0 && errno != ESRCH)
                return error_set_errno(reterr, errno, "watch runner", "");
        if (a->runner_fd < 0 || getppid() != a->config.runner) {
                runner_gone(a, 0);
                return 0;
        }
        return loop_watch(&a->loop, &a->runner_source, a->runner_fd, EPOLLIN, runner_gone, a,
                          reterr);
}

int agent_init(struct agent *a, const struct config *config, const struct agent_ops *ops,
               const char *program, struct cairn_error *reterr) {
        *a = (struct agent){.config = *config,
                            .ops = ops,
                            .program = program,
                            .signal_fd = -1,
                            .runner_fd = -1};
        TRY(loop_init(&a->loop, &clock_system, reterr));
        a->linger_until_ns = loop_now(&a->loop) + AGENT_REATTACH_NS;
        loop_timer_init(&a->held_timer, held_late, a);
        loop_timer_init(&a->end_timer, reap, a);
        struct server_options options = {.socket_path = *config->socket ? a->config.socket : NULL,
                                         .listen_fd = config->listen_fd,
                                         .group_id = find_group(config),
                                         .rows = rows,
                                         .row_count = sizeof rows / sizeof *rows,
                                         .context = a,
                                         .closed = connection_closed};
        TRY(watch_signals(a, reterr)); /* before anybody can see the socket and signal its owner */
        TRY(server_init(&a->server, &a->loop, &options, reterr));
        return config->runner ? watch_runner(a, reterr) : 0;
}

int agent_run(struct agent *a, struct cairn_error *reterr) {
        log_event(LOG_LEVEL_INFO, "agent=ready version=%s socket=%s embedded=%d", CAIRN_VERSION,
                  a->config.socket, a->config.runner != 0);
        TRY(loop_run(&a->loop, reterr));
        log_event(LOG_LEVEL_INFO, "agent=ended");
        return 0;
}

void agent_done(struct agent *a) {
        a->server.options.closed = NULL;
        for (size_t i = 0; i < AGENT_HELD_COUNT_MAX; i++)
                held_clear(&a->held[i]);
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++) {
                session_free(a->sessions[i]);
                a->sessions[i] = NULL;
        }
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++)
                run_free(a->runs[i]);
        if (a->ops->store_done)
                a->ops->store_done(a);
        upkeep_done(a);
        server_done(&a->server);
        loop_unwatch(&a->loop, &a->signal_source);
        loop_unwatch(&a->loop, &a->runner_source);
        if (a->signal_fd >= 0)
                (void) close(a->signal_fd);
        if (a->runner_fd >= 0)
                (void) close(a->runner_fd);
        loop_done(&a->loop);
}
