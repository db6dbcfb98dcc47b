/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/attempt.h"
#include "agent/budget.h"
#include "agent/group.h"
#include "agent/hold.h"
#include "agent/run_parts.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "format/wire.h"
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

static int fill_overrides(struct start_request *q, const Cairn__Control__Start *m,
                          struct cairn_error *reterr) {
        size_t used = 0;
        for (size_t i = 0; i < m->n_overrides; i++) {
                const Cairn__Control__Pair *p = m->overrides[i];
                if (!text_is_plain((const char *) p->key.data, p->key.len) ||
                    !text_is_plain((const char *) p->value.data, p->value.len))
                        return error_set(reterr, CAIRN_ERR_API, "start run", "overrides",
                                         "number %zu is not text in UTF-8 without control "
                                         "characters",
                                         i + 1);
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
        TRY(wire_text_copy(name, RUN_NAME_BYTES_MAX + 1, &m->run, "start run", "run", reterr));
        TRY(name_check_run(name, reterr));
        TRY(wire_text_copy(store, STORE_PATH_BYTES, &m->store, "start run", "store", reterr));
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
        if (m->generation && m->rendezvous.len == 0)
                return 0;
        q->start.world = m->world;
        q->start.mode = (enum start_mode) m->mode;
        q->start.has_from_step = m->has_from_step;
        q->start.from_step = m->from_step;
        q->start.create_store = m->create_store;
        q->start.is_restart = m->restart > 0;
        q->start.again = m->again || m->restart > 0;
        q->start.restart = m->restart;
        q->start.skip_newest = m->skip_newest;
        q->start.before_step = m->before_step;
        memcpy(q->start.run, name, RUN_NAME_BYTES_MAX + 1);
        TRY(wire_text_copy(q->start.init_from, sizeof q->start.init_from, &m->init_from,
                           "start run", "init-from", reterr));
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

static ProtobufCBinaryData bytes_of(const char *text) {
        return (ProtobufCBinaryData){strlen(text), (uint8_t *) (uintptr_t) text};
}

/* Where this node and rank 0 are. */
static void fill_place(const struct run *run, Cairn__Control__Started *m) {
        const struct group *g = run->group;
        m->world = run->world;
        m->first_rank = run->first_rank;
        m->master_address = bytes_of(g ? g->master : "127.0.0.1");
        m->master_port = run->master_port;
        m->address = bytes_of(g ? g->host : "127.0.0.1");
        m->node_rank = g ? g->node_rank : 0;
        m->nodes = g ? g->node_count : 1;
}

static void answer_started(struct run *run, const struct start_reply *r) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Started m = CAIRN__CONTROL__STARTED__INIT;
        m.generation = r->generation;
        m.mode = r->decided;
        m.checkpoint = bytes_of(r->checkpoint);
        m.checkpoint_step = r->checkpoint_step;
        m.finished_reason = bytes_of(r->finished_reason);
        m.note = bytes_of(r->note);
        m.run_dir = bytes_of(run->run_dir);
        fill_place(run, &m);
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
        run->write_failures = 0;
        run->arm_after_ns = 0;
        run->committed_seq = 0;
        run->lost_last = 0;
        run->died_step = run->postmortem_step = run->flagged_step = -1;
        run->committed_flagged = false;
        if (r->decided == START_RESUME) {
                run->committed_step = run->resumable_step = r->checkpoint_step;
                (void) snprintf(run->committed_name, sizeof run->committed_name, "%.63s",
                                r->checkpoint);
        } else if (r->decided == START_FRESH)
                run->committed_step = run->resumable_step = -1;
        if (run->every_ns)
                loop_timer_set(&run->agent->loop, &run->every_timer,
                               loop_now(&run->agent->loop) + run->every_ns);
}

/* What the agent before us had committed, or had written and is committed now. */
static void take_up(struct run *run, const struct start_reply *r) {
        run->expect_until_ns = loop_now(&run->agent->loop) + AGENT_REATTACH_NS;
        if (!*r->committed)
                return;
        run->committed_step = run->resumable_step = r->committed_step;
        run->committed_bytes = r->committed_bytes;
        (void) snprintf(run->committed_name, sizeof run->committed_name, "%.63s", r->committed);
}

void run_start_failed(struct run *run, const struct cairn_error *error) {
        log_error(LOG_LEVEL_INFO, "start run", error);
        server_fail(&run->start_reply, error);
        struct agent *a = run->agent;
        run->last_error = *error;
        /* A lock is held for a moment, or a run could not be taken up: a private agent stays for
         * its runner, who asks again, and for the trainers, who come back. */
        if (error->status == CAIRN_ERR_BUSY || (run->start && run->start->generation)) {
                a->had_run = false;
                a->linger_until_ns = loop_now(&a->loop) + AGENT_REATTACH_NS;
        }
        /* A restart that is refused leaves the run to its runner, who ends it. */
        run_set_state(run, run->generation ? RUN_LIVE : RUN_ENDED);
        agent_refuse_orphans(a);
        agent_reap(a);
}

void run_started(struct run *run, const struct start_reply *decided) {
        struct start_reply r = *decided;
        r.checkpoint[sizeof r.checkpoint - 1] = 0;
        r.finished_reason[sizeof r.finished_reason - 1] = 0;
        r.note[sizeof r.note - 1] = 0;
        r.committed[sizeof r.committed - 1] = 0;
        if (r.finished) {
                run->finish.done = true;
                memcpy(run->finish.reason, r.finished_reason, sizeof run->finish.reason);
        } else
                take_decision(run, &r);
        run_set_state(run, RUN_LIVE);
        log_event(LOG_LEVEL_INFO,
                  "run=%s generation=%llu mode=%d checkpoint=\"%s\" step=%lld world=%u finished=%d",
                  run->name, (unsigned long long) run->generation, (int) r.decided, r.checkpoint,
                  (long long) r.checkpoint_step, run->world, r.finished);
        answer_started(run, &r);
        agent_release_held(run->agent, run);
}

static void decided(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct run *run = context;
        (void) fds;
        if (reply->status < 0 && run->group)
                group_claim_failed(run->group, &reply->error);
        if (reply->status < 0)
                run_start_failed(run, &reply->error);
        else if (run->group)
                group_claimed(run->group, &reply->started);
        else {
                run_started(run, &reply->started);
                if (reply->verb == STORE_REOPEN) {
                        take_up(run, &reply->started);
                        notice_take_up(run);
                }
        }
}

/* The operator's, or one that is free at this moment: whoever binds it first has it. */
static int choose_master_port(struct run *run, struct cairn_error *reterr) {
        struct sockaddr_in any = {.sin_family = AF_INET};
        socklen_t bytes = sizeof any;
        run->master_port = (uint16_t) run->start->master_port;
        if (run->master_port)
                return 0;
        _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *) &any, sizeof any) < 0 ||
            getsockname(fd, (struct sockaddr *) &any, &bytes) < 0)
                return error_set_errno(reterr, errno, "find a free port for", "MASTER_PORT");
        run->master_port = ntohs(any.sin_port);
        return 0;
}

void run_ask_store(struct run *run) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        run->start_request->world = run->start_request->start.world = run->world;
        int r = choose_master_port(run, &error);
        if (r == 0)
                r = run_store_request(run, run->start_request, decided, run, &error);
        if (r < 0 && run->group)
                group_claim_failed(run->group, &error);
        if (r < 0)
                run_start_failed(run, &error);
}

void run_begin_start(struct run *run) {
        const Cairn__Control__Start *m = run->start;
        run->start_pending = false;
        attempts_doom_all(run, NULL);
        attempts_pump(run); /* discards go ahead of the new generation */
        run->world = run->local_count = m->world;
        run->first_rank = 0;
        memset(run->open_wanted, 0, sizeof run->open_wanted);
        run->restart = m->restart;
        run->every_steps = m->every_steps;
        run->every_ns = m->every_ns;
        run->keep_last = m->keep_last ? (uint32_t) m->keep_last : run->agent->config.keep_last;
        run->intent = m->init_from.len ? START_INIT_FROM : (enum start_mode) m->mode;
        memset(&run->finish, 0, sizeof run->finish);
        if (m->restart == 0) /* else it was asked for between two lives, and holds for this one */
                memset(&run->stop, 0, sizeof run->stop);
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                run->sessions[i] = NULL; /* ended; the agent frees them */
        hold_done(run);
        exchange_clear(&run->exchange);
        int fd = wire_fds_take(&run->start_fds, 0);
        if (fd >= 0) {
                loop_unwatch(&run->agent->loop, &run->runner_source);
                if (run->runner_fd >= 0)
                        (void) close(run->runner_fd);
                run->runner_fd = fd;
                (void) loop_watch(&run->agent->loop, &run->runner_source, fd, EPOLLIN, runner_ended,
                                  run, NULL);
        }
        if (run->group)
                group_begin(run->group);
        else
                run_ask_store(run);
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

static int check_files(const struct agent *a, const char *name, uint32_t world,
                       struct cairn_error *reterr) {
        for (size_t i = 0; i < AGENT_RUN_COUNT_MAX; i++)
                if (a->runs[i] && strcmp(a->runs[i]->name, name) != 0)
                        world += a->runs[i]->local_count;
        return budget_check_files(world, reterr);
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
                r = check_files(a, name, m->world, reterr);
        if (r == 0)
                r = notice_check_start(a, name, m->generation > 0, reterr);
        if (r == 0)
                r = get_startable(a, c, name, &run, &is_new, reterr);
        if (r < 0 || !run) {
                if (copy)
                        cairn__control__start__free_unpacked(copy, NULL);
                free(q);
                return r;
        }
        if (!run->group)
                r = group_new(run, store, m, reterr);
        if (r < 0) {
                if (is_new)
                        run_free(run);
                cairn__control__start__free_unpacked(copy, NULL);
                free(q);
                return r;
        }
        accept_start(run, c, to, copy, q, store, fds);
        if (!is_new)
                run_set_state(run, RUN_STARTING);
        run_pump(run);
        return 0;
}
