/* SPDX-License-Identifier: Apache-2.0
 *
 * Starting, welcoming, stopping and ending a run. The attempts at checkpoints are in attempt.c,
 * demanded cuts in demand.c.
 */
#include "agent/run.h"
#include "agent/attempt.h"
#include "agent/demand.h"
#include "agent/hold.h"
#include "agent/postmortem.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/states.h"
#include "format/check.h"
#include "format/wire.h"
#include <errno.h>
#include <signal.h>

#define RUN_END_NS (30 * NSEC_PER_SEC)
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

static void set_state(struct run *run, enum run_state to) {
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
        *call = (struct run_store_call){
                .run = run, .reply = reply, .context = context, .next = run->store_calls};
        memcpy(m->run, run->name, sizeof m->run);
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

uint64_t run_bandwidth(const struct run *run) {
        uint64_t slowest = 0;
        for (uint32_t i = 0; i < run->world; i++)
                if (run->sessions[i] && run->sessions[i]->write_rate &&
                    (!slowest || run->sessions[i]->write_rate < slowest))
                        slowest = run->sessions[i]->write_rate;
        return slowest ? slowest : RUN_BANDWIDTH_ASSUMED;
}

struct session *run_session(const struct run *run, uint32_t rank) {
        return rank < run->world ? run->sessions[rank] : NULL;
}

bool run_sessions_ended(const struct run *run) {
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i] && !session_settled(run->sessions[i]))
                        return false;
        return true;
}

static void signal_all(struct run *run, int signal_number) {
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i])
                        session_signal(run->sessions[i], signal_number);
}

static void wish_stop(struct run *run) {
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i] && run->sessions[i]->page)
                        atomic_fetch_or(&run->sessions[i]->page->wishes, CUT_WISH_STOP);
}

/* ---- start ---- */

static void every_fired(void *context) {
        struct run *run = context;
        demand_periodic(run);
        loop_timer_set(&run->agent->loop, &run->every_timer,
                       loop_now(&run->agent->loop) + run->every_ns);
        run_pump(run);
}

static void kill_fired(void *context) {
        log_event(LOG_LEVEL_WARNING, "run=%s trainers=killed", ((struct run *) context)->name);
        signal_all(context, SIGKILL);
}

static struct run *run_new(struct agent *a, const char *name) {
        size_t slot = 0;
        while (slot < AGENT_RUN_COUNT_MAX && a->runs[slot])
                slot++;
        struct run *run = slot < AGENT_RUN_COUNT_MAX ? calloc(1, sizeof *run) : NULL;
        if (!run)
                return NULL;
        run->agent = a;
        run->runner_fd = -1;
        run->committed_step = run->checkpoint_step = -1;
        run->died_step = run->postmortem_step = run->flagged_step = -1;
        run->last_error = (struct cairn_error) CAIRN_ERROR_INIT;
        memcpy(run->name, name, strlen(name) + 1);
        loop_timer_init(&run->kill_timer, kill_fired, run);
        loop_timer_init(&run->every_timer, every_fired, run);
        loop_timer_init(&run->tick_timer, pump_timer, run);
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
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                wire_fds_done(&run->successors[i].fds);
        attempts_done(run);
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

static int copy_text(char *target, size_t bytes, const ProtobufCBinaryData *text, const char *what,
                     struct cairn_error *reterr) {
        if (text->len >= bytes || (text->len && memchr(text->data, 0, text->len)))
                return error_set(reterr, CAIRN_ERR_API, "start run", what,
                                 "longer than %zu bytes, or with a zero in it", bytes - 1);
        if (text->len)
                memcpy(target, text->data, text->len);
        target[text->len] = 0;
        return 0;
}

static int fill_overrides(struct start_request *q, const Cairn__Control__Start *m,
                          struct cairn_error *reterr) {
        size_t used = 0;
        for (size_t i = 0; i < m->n_overrides; i++) {
                const Cairn__Control__Pair *p = m->overrides[i];
                int n = snprintf(q->overrides + used, sizeof q->overrides - used, "%.*s=%.*s\n",
                                 (int) p->key.len, p->key.data, (int) p->value.len, p->value.data);
                if (n < 0 || (size_t) n >= sizeof q->overrides - used)
                        return error_set(reterr, CAIRN_ERR_API, "start run", "overrides",
                                         "together longer than %zu bytes", sizeof q->overrides);
                used += (size_t) n;
        }
        return 0;
}

/* Everything is checked and copied before anything of a living run changes. */
static int read_start(struct agent *a, const Cairn__Control__Start *m, char *name, char *store,
                      struct store_message *q, struct cairn_error *reterr) {
        TRY(copy_text(name, RUN_NAME_BYTES_MAX + 1, &m->run, "run", reterr));
        TRY(name_check_run(name, reterr));
        TRY(copy_text(store, STORE_PATH_BYTES, &m->store, "store", reterr));
        if (!*store)
                memcpy(store, a->config.store, strlen(a->config.store) + 1);
        if (*store != '/')
                return error_set(reterr, CAIRN_ERR_API, "start run", name,
                                 "the store must be given as an absolute path");
        if (m->world < 1 || m->world > SESSION_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "start run", name,
                                 "%u ranks; an agent serves 1 to %d", m->world, SESSION_COUNT_MAX);
        if (m->mode < START_FRESH || m->mode > START_AUTO)
                return error_set(reterr, CAIRN_ERR_API, "start run", name, "unknown mode %u",
                                 m->mode);
        /* A generation is named: this agent was restarted, the run goes on and nothing is made. */
        *q = (struct store_message){.verb = m->generation ? STORE_REOPEN : STORE_START,
                                    .error = CAIRN_ERROR_INIT,
                                    .world = m->world,
                                    .take_up = m->generation > 0,
                                    .generation = m->generation};
        if (m->generation)
                return 0;
        q->start.world = m->world;
        q->start.mode = (enum start_mode) m->mode;
        q->start.has_from_step = m->has_from_step;
        q->start.from_step = m->from_step;
        q->start.create_store = m->create_store;
        q->start.is_restart = m->restart > 0;
        q->start.restart = m->restart;
        q->start.skip_newest = m->skip_newest;
        q->start.before_step = m->before_step;
        memcpy(q->start.run, name, RUN_NAME_BYTES_MAX + 1);
        TRY(copy_text(q->start.init_from, sizeof q->start.init_from, &m->init_from, "init-from",
                      reterr));
        return fill_overrides(&q->start, m, reterr);
}

static Cairn__Control__Start *copy_start(const Cairn__Control__Start *m) {
        size_t bytes = cairn__control__start__get_packed_size(m);
        _cleanup_free_ uint8_t *packed = malloc(bytes ? bytes : 1);
        if (!packed)
                return NULL;
        (void) cairn__control__start__pack(m, packed);
        return cairn__control__start__unpack(NULL, bytes, packed);
}

static void runner_ended(void *context, uint32_t events) {
        (void) events;
        run_runner_gone(context);
}

static void answer_started(struct run *run, const struct start_reply *r) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Started m = CAIRN__CONTROL__STARTED__INIT;
        m.generation = r->generation;
        m.mode = r->decided;
        m.checkpoint = (ProtobufCBinaryData){strlen(r->checkpoint), (uint8_t *) r->checkpoint};
        m.checkpoint_step = r->checkpoint_step;
        m.finished_reason =
                (ProtobufCBinaryData){strlen(r->finished_reason), (uint8_t *) r->finished_reason};
        m.note = (ProtobufCBinaryData){strlen(r->note), (uint8_t *) r->note};
        m.run_dir = (ProtobufCBinaryData){strlen(run->run_dir), (uint8_t *) run->run_dir};
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_STARTED;
        e.started = &m;
        server_reply(&run->start_reply, &e, NULL, 0);
}

static void take_decision(struct run *run, const struct start_reply *r) {
        run->generation = r->generation;
        run->mode = r->decided;
        memcpy(run->checkpoint, r->checkpoint, sizeof run->checkpoint);
        run->checkpoint_step = *r->checkpoint ? r->checkpoint_step : -1;
        run->attempt_last = 0;
        run->fenced = false;
        run->open_failures = 0;
        run->open_after_ns = 0;
        run->committed_seq = 0;
        run->lost_last = 0;
        run->died_step = run->postmortem_step = run->flagged_step = -1;
        if (r->decided == START_RESUME) {
                run->committed_step = r->checkpoint_step;
                (void) snprintf(run->committed_name, sizeof run->committed_name, "%.63s",
                                r->checkpoint);
        } else if (r->decided == START_FRESH)
                run->committed_step = -1;
        if (run->every_ns)
                loop_timer_set(&run->agent->loop, &run->every_timer,
                               loop_now(&run->agent->loop) + run->every_ns);
}

/* What the agent before us had committed, or had written and is committed now. */
static void take_up(struct run *run, const struct start_reply *r) {
        run->expect_until_ns = loop_now(&run->agent->loop) + AGENT_REATTACH_NS;
        if (!*r->committed)
                return;
        run->committed_step = r->committed_step;
        run->committed_bytes = r->committed_bytes;
        (void) snprintf(run->committed_name, sizeof run->committed_name, "%.63s", r->committed);
}

static void started(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        (void) fds;
        if (reply->status < 0) {
                log_error(LOG_LEVEL_INFO, "start run", &reply->error);
                server_fail(&run->start_reply, &reply->error);
                run->last_error = reply->error;
                /* A restart that is refused leaves the run to its runner, who ends it. */
                set_state(run, run->generation ? RUN_LIVE : RUN_ENDED);
                agent_reap(run->agent);
                return;
        }
        struct start_reply r = reply->started;
        r.checkpoint[sizeof r.checkpoint - 1] = 0;
        r.finished_reason[sizeof r.finished_reason - 1] = 0;
        r.note[sizeof r.note - 1] = 0;
        r.committed[sizeof r.committed - 1] = 0;
        if (r.finished) {
                run->finish.done = true;
                memcpy(run->finish.reason, r.finished_reason, sizeof run->finish.reason);
        } else
                take_decision(run, &r);
        set_state(run, RUN_LIVE);
        if (reply->verb == STORE_REOPEN)
                take_up(run, &r);
        log_event(LOG_LEVEL_INFO,
                  "run=%s generation=%llu mode=%d checkpoint=\"%s\" step=%lld world=%u finished=%d",
                  run->name, (unsigned long long) run->generation, (int) r.decided, r.checkpoint,
                  (long long) r.checkpoint_step, run->world, r.finished);
        answer_started(run, &r);
        agent_release_held(run->agent, run);
}

static void begin_start(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        const Cairn__Control__Start *m = run->start;
        run->start_pending = false;
        attempts_doom_all(run, NULL);
        attempts_pump(run); /* discards go ahead of the new generation */
        run->world = m->world;
        run->restart = m->restart;
        run->every_steps = m->every_steps;
        run->every_ns = m->every_ns;
        run->keep_last = m->keep_last ? (uint32_t) m->keep_last : run->agent->config.keep_last;
        run->intent = m->init_from.len ? START_INIT_FROM : (enum start_mode) m->mode;
        memset(&run->finish, 0, sizeof run->finish);
        memset(&run->stop, 0, sizeof run->stop);
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                run->sessions[i] = NULL; /* ended; the agent frees them */
        int fd = wire_fds_take(&run->start_fds, 0);
        if (fd >= 0) {
                loop_unwatch(&run->agent->loop, &run->runner_source);
                if (run->runner_fd >= 0)
                        (void) close(run->runner_fd);
                run->runner_fd = fd;
                (void) loop_watch(&run->agent->loop, &run->runner_source, fd, EPOLLIN, runner_ended,
                                  run, NULL);
        }
        if (run_store_request(run, run->start_request, started, run, &error) < 0) {
                server_fail(&run->start_reply, &error);
                if (!run->generation)
                        set_state(run, RUN_ENDED);
                else
                        set_state(run, RUN_LIVE);
                agent_reap(run->agent);
        }
}

static int check_predecessor(struct run *run, struct connection *c, struct cairn_error *reterr) {
        const struct connection *runner = server_reach(&run->runner);
        if (run->uid != c->uid && c->uid != 0)
                return error_set(reterr, CAIRN_ERR_PERMISSION, "start run", run->name,
                                 "it belongs to user %u", (unsigned) run->uid);
        if ((runner && runner != c) || run->state == RUN_STARTING || run->start_pending)
                return error_set(reterr, CAIRN_ERR_EXISTS, "start run", run->name,
                                 "the run is living; a second 'cairn run' of it is refused");
        if (run->state != RUN_LIVE)
                return error_set(reterr, CAIRN_ERR_BUSY, "start run", run->name,
                                 "its former 'cairn run' is being wound up; try again");
        return 0;
}

/* Of a run that may start: the existing one or a new one. */
static int get_startable(struct agent *a, struct connection *c, const char *name, struct run **ret,
                         bool *ret_new, struct cairn_error *reterr) {
        struct run *run = agent_find_run(a, name);
        *ret_new = !run;
        if (run)
                TRY(check_predecessor(run, c, reterr));
        else
                run = run_new(a, name);
        *ret = run;
        return run ? 0
                   : error_set(reterr, CAIRN_ERR_NOMEM, "start run", name,
                               "out of memory, or more than %d runs", AGENT_RUN_COUNT_MAX);
}

static void accept_start(struct run *run, struct connection *c, const struct reply_to *to,
                         Cairn__Control__Start *start, struct store_message *request,
                         const char *store, struct wire_fds *fds) {
        if (run->start)
                cairn__control__start__free_unpacked(run->start, NULL);
        run->start = start;
        free(run->start_request);
        run->start_request = request;
        run->uid = c->uid;
        (void) snprintf(run->store, sizeof run->store, "%s", store);
        (void) snprintf(run->run_dir, sizeof run->run_dir, "%.4000s/%s", store, run->name);
        run->runner = run->start_reply = *to;
        c->run = run;
        wire_fds_done(&run->start_fds);
        run->start_fds = *fds;
        *fds = (struct wire_fds) WIRE_FDS_INIT;
        run->start_pending = true;
}

int run_start(struct agent *a, struct connection *c, const struct reply_to *to,
              const Cairn__Control__Start *m, struct wire_fds *fds, struct cairn_error *reterr) {
        char name[RUN_NAME_BYTES_MAX + 1] = "", store[STORE_PATH_BYTES] = "";
        struct run *run = NULL;
        bool is_new = false;
        if (a->stopping)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "start run", "",
                                 "this agent is shutting down");
        struct store_message *q = calloc(1, sizeof *q);
        Cairn__Control__Start *copy = q ? copy_start(m) : NULL;
        int r = copy ? read_start(a, m, name, store, q, reterr)
                     : error_set_errno(reterr, ENOMEM, "start run", "");
        if (r == 0)
                r = get_startable(a, c, name, &run, &is_new, reterr);
        if (r < 0 || !run) {
                if (copy)
                        cairn__control__start__free_unpacked(copy, NULL);
                free(q);
                return r;
        }
        accept_start(run, c, to, copy, q, store, fds);
        if (!is_new)
                set_state(run, RUN_STARTING);
        run_pump(run);
        return 0;
}

/* ---- trainers come ---- */

static void send_wait(struct run *run, const struct held_hello *h) {
        const struct session *s = run->sessions[h->rank];
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
        return session_open(run, &hello, &h->fds, &run->sessions[h->rank], reterr);
}

static int check_rank(const struct run *run, const struct held_hello *h,
                      struct cairn_error *reterr) {
        if (h->rank >= run->world)
                return error_set(reterr, CAIRN_ERR_API, "open session", run->name,
                                 "rank %u of a run with %u ranks", h->rank, run->world);
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
        struct session *s = run->sessions[h->rank];
        struct held_hello *next = &run->successors[h->rank];
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
        send_wait(run, next);
        run_pump(run);
        return 0;
}

static void answer_settled(struct run *run, const struct reply_to *to) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__RankSettled m = CAIRN__CONTROL__RANK_SETTLED__INIT;
        m.committed_step = run->committed_step;
        m.finished = run->finish.done;
        m.finished_reason =
                (ProtobufCBinaryData){strlen(run->finish.reason), (uint8_t *) run->finish.reason};
        m.stopped = run->stop.active || run->agent->stopping;
        m.died_step = run->died_step;
        m.post_mortem = run->postmortem_step >= 0 && run->postmortem_step == run->committed_step;
        m.flagged_step = run->flagged_step;
        m.lost_steps = run->lost_last;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_RANK_SETTLED;
        e.rank_settled = &m;
        server_reply(to, &e, NULL, 0);
}

int run_rank_exit(struct run *run, const struct reply_to *to, const Cairn__Control__RankExit *m,
                  struct cairn_error *reterr) {
        uint32_t rank = m->rank;
        if (rank >= run->world)
                return error_set(reterr, CAIRN_ERR_API, "settle rank", run->name,
                                 "rank %u of a run with %u ranks", rank, run->world);
        struct session *s = run->sessions[rank];
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
        struct held_hello *next = &run->successors[s->rank];
        if (run->sessions[s->rank] == s && server_reach(&next->to)) {
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

/* ---- stop, finish, end ---- */

/* A snapshot that failed is said together with what it loses: who stops a run for its last snapshot
 * must not take an older one for it. */
static void answer_stopped(struct run *run) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__StopReply m = CAIRN__CONTROL__STOP_REPLY__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        m.step = m.reached = run->committed_step;
        for (uint32_t i = 0; i < run->world; i++)
                if (run->sessions[i] && run->sessions[i]->page) {
                        int64_t step = atomic_load(&run->sessions[i]->page->last_step);
                        m.reached = step > m.reached ? step : m.reached;
                }
        if (m.reached > m.step && run->attempts_failed > run->failed_before && !run->finish.done) {
                wire_failure_fill(&failure, &run->last_error);
                m.failure = &failure;
        }
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_STOP_REPLY;
        e.stop_reply = &m;
        while (run->stop.reply_count > 0)
                server_reply(&run->stop.replies[--run->stop.reply_count], &e, NULL, 0);
}

int run_stop(struct run *run, const struct reply_to *to, uint64_t duration_ns,
             struct cairn_error *reterr) {
        if (to && run->stop.reply_count == sizeof run->stop.replies / sizeof *run->stop.replies)
                return error_set(reterr, CAIRN_ERR_BUSY, "stop run", run->name,
                                 "too many ask for it");
        uint64_t now_ns = loop_now(&run->agent->loop);
        if (!duration_ns)
                duration_ns = run->agent->config.stop_deadline_s * NSEC_PER_SEC;
        if (duration_ns > UINT64_MAX / 4)
                duration_ns = UINT64_MAX / 4;
        if (!run->stop.active || now_ns + duration_ns < run->stop.deadline_ns) {
                run->stop.half_ns = now_ns + duration_ns / 2;
                run->stop.deadline_ns = now_ns + duration_ns;
        }
        if (!run->stop.active)
                log_event(LOG_LEVEL_INFO, "run=%s stop=asked deadline_ms=%llu", run->name,
                          (unsigned long long) (duration_ns / NSEC_PER_MSEC));
        run->stop.active = true;
        if (to)
                run->stop.replies[run->stop.reply_count++] = *to;
        wish_stop(run);
        run_pump(run);
        return 0;
}

/* What is in flight is given up, too: storage that hangs must not hold up the stop. */
static void stop_by_force(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        signal_all(run, SIGKILL);
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++) {
                struct session *s = run->sessions[i];
                if (!s || !s->dead || s->state != SESSION_SETTLING)
                        continue;
                (void) error_set(&error, CAIRN_ERR_TIMEOUT, "write checkpoint", run->name,
                                 "the storage did not take it before the deadline of the stop");
                if (run_session_in_flight(run, s))
                        attempts_doom_all(run, &error);
                session_finish_settling(s);
        }
}

static void stop_check(struct run *run) {
        uint64_t now_ns = loop_now(&run->agent->loop);
        if (!run->stop.active)
                return;
        if (run_sessions_ended(run) && run->state != RUN_STARTING) {
                answer_stopped(run);
                return;
        }
        wish_stop(run);
        if (now_ns >= run->stop.half_ns && !run->stop.cut_demanded) {
                run->stop.cut_demanded = true;
                demand_internal(run, run->stop.deadline_ns);
        }
        /* SIGTERM once the state is safe, or when little time is left. */
        uint64_t last_ns = run->stop.half_ns + (run->stop.deadline_ns - run->stop.half_ns) / 2;
        if (run->stop.cut_demanded && !run->stop.termed &&
            (now_ns >= last_ns || !demand_pending(run))) {
                run->stop.termed = true;
                log_event(LOG_LEVEL_WARNING, "run=%s trainers=terminated reason=\"stop\"",
                          run->name);
                signal_all(run, SIGTERM);
        }
        if (now_ns >= run->stop.deadline_ns)
                stop_by_force(run);
}

int run_finish(struct run *run, struct session *s, const struct reply_to *to,
               const Cairn__Control__Finish *m, struct cairn_error *reterr) {
        if (run->finish.done) {
                server_done_reply(to);
                return 0;
        }
        if (s->finished || run->finish.count >= SESSION_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "finish run", run->name,
                                 "rank %u said so already", s->rank);
        const char *wrong = check_text(&m->reason, m->reason.len, false);
        if (wrong)
                return error_set(reterr, CAIRN_ERR_API, "finish run", run->name, "the reason %s",
                                 wrong);
        s->finished = true;
        size_t bytes = m->reason.len < sizeof run->finish.reason - 1
                               ? m->reason.len
                               : sizeof run->finish.reason - 1;
        while (bytes > 0 && bytes < m->reason.len && (m->reason.data[bytes] & 0xc0) == 0x80)
                bytes--; /* between two letters of UTF-8: half a one would not be written */
        memset(run->finish.reason, 0, sizeof run->finish.reason);
        memcpy(run->finish.reason, m->reason.data, bytes);
        run->finish.step = m->step;
        run->finish.replies[run->finish.count++] = *to;
        run_pump(run);
        return 0;
}

static void finished(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        (void) fds;
        for (uint32_t i = 0; i < run->finish.count; i++)
                if (reply->status < 0)
                        server_fail(&run->finish.replies[i], &reply->error);
                else
                        server_done_reply(&run->finish.replies[i]);
        run->finish.count = 0;
        run->finish.sent = false;
        run->finish.done = reply->status == 0;
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (run->sessions[i])
                        run->sessions[i]->finished = run->finish.done;
        log_event(LOG_LEVEL_INFO, "run=%s finished=%d step=%lld", run->name, run->finish.done,
                  (long long) run->finish.step);
}

/* All ranks said so, and what they had cut before is committed: then it is true. */
static void finish_check(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (run->finish.sent || run->finish.count < run->world || run->finish.count == 0)
                return;
        for (uint32_t i = 0; i < run->world; i++)
                if (run->sessions[i] && run_session_in_flight(run, run->sessions[i]))
                        return;
        struct store_message m = {.verb = STORE_FINISHED, .step = run->finish.step};
        memcpy(m.name, run->finish.reason, sizeof run->finish.reason);
        run->finish.sent = true;
        if (run_store_request(run, &m, finished, run, &error) < 0) {
                struct store_message failed = {.status = error.status, .error = error};
                finished(run, &failed, NULL);
        }
}

int run_end(struct run *run, const struct reply_to *to, const char *reason, int32_t code,
            struct cairn_error *reterr) {
        if (run->end.wanted) {
                if (to && run->end.reply.connection)
                        return error_set(reterr, CAIRN_ERR_API, "end run", run->name,
                                         "it is being ended");
        } else {
                run->end.wanted = true;
                run->end.code = code;
                run->end.deadline_ns = loop_now(&run->agent->loop) + RUN_END_NS;
                (void) snprintf(run->end.reason, sizeof run->end.reason, "%s", reason);
                loop_timer_clear(&run->agent->loop, &run->every_timer);
        }
        if (to)
                run->end.reply = *to;
        run_pump(run);
        return 0;
}

static void run_ended(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        (void) fds;
        if (reply->status < 0)
                log_error(LOG_LEVEL_WARNING, "end run", &reply->error);
        if (run->end.reply.connection)
                server_done_reply(&run->end.reply);
        set_state(run, RUN_ENDED);
}

static void exit_written(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        struct cairn_error error = CAIRN_ERROR_INIT;
        (void) fds;
        if (reply->status < 0)
                log_error(LOG_LEVEL_WARNING, "write exit.json", &reply->error);
        struct store_message m = {.verb = STORE_END_RUN};
        if (run_store_request(run, &m, run_ended, run, &error) < 0) {
                struct store_message failed = {.status = error.status, .error = error};
                run_ended(run, &failed, NULL);
        }
}

/* Trainers of an agent before us that are not back yet. */
static bool expects_trainers(const struct run *run) {
        if (loop_now(&run->agent->loop) >= run->expect_until_ns)
                return false;
        for (uint32_t i = 0; i < run->world; i++)
                if (!run->sessions[i])
                        return true;
        return false;
}

static void end_check(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        bool late = loop_now(&run->agent->loop) >= run->end.deadline_ns;
        if (!run->end.wanted || run->end.sent || run->state == RUN_STARTING)
                return;
        if (run->orphaned)
                wish_stop(run);
        if (expects_trainers(run))
                return;
        if (!run_sessions_ended(run)) {
                if (!late)
                        return;
                signal_all(run, SIGKILL);
                return; /* settling has a limit of its own */
        }
        attempts_doom_all(run, NULL);
        attempts_pump(run);
        if (attempts_open_count(run) > 0 && !late)
                return;
        run->end.sent = true;
        if (run->state == RUN_LIVE)
                set_state(run, RUN_ENDING);
        if (!run->generation) { /* nothing was started: there is nothing to record */
                exit_written(run, &(struct store_message){0}, NULL);
                return;
        }
        struct store_message m = {
                .verb = STORE_EXIT, .code = run->end.code, .step = run->committed_step};
        memcpy(m.name, run->end.reason, sizeof run->end.reason);
        if (run_store_request(run, &m, exit_written, run, &error) < 0) {
                struct store_message failed = {.status = error.status, .error = error};
                exit_written(run, &failed, NULL);
        }
}

/* Nobody would restart or reap the trainers: what they have is committed and they are stopped. */
void run_runner_gone(struct run *run) {
        struct agent *a = run->agent;
        loop_unwatch(&a->loop, &run->runner_source);
        if (run->end.wanted || run->state >= RUN_ENDING)
                return;
        log_event(LOG_LEVEL_WARNING, "run=%s runner=gone trainers=stopping", run->name);
        run->start_pending = false;
        run->orphaned = true;
        if (run_sessions_ended(run) && !expects_trainers(run)) {
                (void) run_end(run, NULL, "cairn run died", 70, NULL);
                return;
        }
        demand_internal(run, loop_now(&a->loop) + RUN_KILL_NS);
        wish_stop(run);
        signal_all(run, SIGTERM);
        loop_timer_set(&a->loop, &run->kill_timer, loop_now(&a->loop) + RUN_KILL_NS);
        (void) run_end(run, NULL, "cairn run died", 70, NULL);
        run->end.deadline_ns += RUN_KILL_NS;
}

/* ---- the pump ---- */

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
                        send_wait(run, next);
                }
        }
}

static bool needs_tick(const struct run *run) {
        if (run->stop.active || run->end.wanted || run->finish.count || run->start_pending ||
            demand_pending(run) || run->open_after_ns || hold_active(run) || attempts_uneven(run))
                return true;
        for (uint32_t i = 0; i < SESSION_COUNT_MAX; i++)
                if ((run->sessions[i] && (run->sessions[i]->state == SESSION_SETTLING ||
                                          run->sessions[i]->exit_reply.connection)) ||
                    run->successors[i].to.connection)
                        return true;
        return false;
}

static void pump_once(struct run *run) {
        postmortem_pump(run);
        attempts_pump(run);
        demand_pump(run);
        stop_check(run);
        finish_check(run);
        sessions_check(run);
        if (run->start_pending && run_sessions_ended(run))
                begin_start(run);
        end_check(run);
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
