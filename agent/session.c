/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/session.h"
#include "agent/group.h"
#include "agent/run.h"
#include "agent/session_parts.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/states.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>

#define SESSION_SETTLE_NS (60 * NSEC_PER_SEC)
#define ANY_TO_END (STATE_TO(SESSION_SETTLING) | STATE_TO(SESSION_ENDED))
static const struct state_row session_states[SESSION_STATE_COUNT] = {
        [SESSION_HELLO] = {"hello", STATE_TO(SESSION_WELCOMED) | ANY_TO_END},
        [SESSION_WELCOMED] = {"welcomed", STATE_TO(SESSION_SEALING) | ANY_TO_END},
        [SESSION_SEALING] = {"sealing", STATE_TO(SESSION_WELCOMED) | STATE_TO(SESSION_SEALED) |
                                                STATE_TO(SESSION_ACTIVE) | ANY_TO_END},
        [SESSION_SEALED] = {"sealed", STATE_TO(SESSION_RESTORING) | STATE_TO(SESSION_ACTIVE) |
                                              STATE_TO(SESSION_RESEALING) | ANY_TO_END},
        [SESSION_RESTORING] = {"restoring",
                               STATE_TO(SESSION_SEALED) | STATE_TO(SESSION_ACTIVE) | ANY_TO_END},
        [SESSION_ACTIVE] = {"active", STATE_TO(SESSION_RESEALING) | ANY_TO_END},
        [SESSION_RESEALING] = {"resealing",
                               STATE_TO(SESSION_ACTIVE) | STATE_TO(SESSION_SEALED) | ANY_TO_END},
        [SESSION_SETTLING] = {"settling", STATE_TO(SESSION_ENDED)},
        [SESSION_ENDED] = {"ended", 0},
};

const char *session_state_name(enum session_state state) {
        return session_states[state].name;
}

void session_set_state(struct session *s, enum session_state to) {
        const char *name = state_table_step(session_states, SESSION_STATE_COUNT, s->state, to);
        log_event(LOG_LEVEL_INFO, "run=%s session=%llu rank=%u pid=%d state=%s previous=%s",
                  s->run->name, (unsigned long long) s->id, s->rank, (int) s->pid, name,
                  session_states[s->state].name);
        s->state = to;
}

void session_close_fd(int *fd) {
        if (*fd >= 0)
                (void) close(*fd);
        *fd = -1;
}

/* The futexes, outcomes and words of a page are atomics; this is the shape of all notes. */
void session_note_error(struct session *s, const char *what, const struct cairn_error *error) {
        char text[700];
        s->last_error = *error;
        log_event(LOG_LEVEL_WARNING, "run=%s session=%llu rank=%u failed=\"%s\" error=\"%s\"",
                  s->run->name, (unsigned long long) s->id, s->rank, what,
                  error_format(error, text, sizeof text));
}

struct cut_word session_word(struct session *s) {
        struct cut_word w = cut_read(s->page);
        uint64_t packed = cut_word_pack(w);
        if (packed != s->word_seen || !s->word_since_ns) {
                s->word_seen = packed;
                s->word_since_ns = loop_now(&s->agent->loop);
        }
        return w;
}

void session_refresh(struct session *s) {
        if ((s->state == SESSION_SEALED || s->state == SESSION_RESTORING) &&
            cut_read(s->page).seq > 0)
                session_set_state(s, SESSION_ACTIVE);
}

void session_ring(struct session *s) {
        uint64_t one = 1;
        ssize_t n = write(s->event_fd, &one, sizeof one);
        (void) n; /* EAGAIN: it is ringing already */
}

/* ---- the end ---- */

void session_signal(struct session *s, int signal_number) {
        if (!s->dead && s->pidfd >= 0)
                (void) syscall(SYS_pidfd_send_signal, s->pidfd, signal_number, NULL, 0);
}

static bool dumps_core(pid_t pid) {
        char path[64], line[128];
        (void) snprintf(path, sizeof path, "/proc/%d/status", (int) pid);
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        static const char key[] = "CoreDumping:";
        while (f && fgets(line, sizeof line, f))
                if (!strncmp(line, key, sizeof key - 1))
                        return strtol(line + sizeof key - 1, NULL, 10) != 0;
        return false;
}

bool session_is_ending(const struct session *s) {
        struct pollfd p = {.fd = s->pidfd, .events = POLLIN};
        return s->dead || poll(&p, 1, 0) > 0 || dumps_core(s->pid);
}

bool session_settled(const struct session *s) {
        return s->state == SESSION_ENDED;
}

static void settle_late(void *context) {
        struct session *s = context;
        log_event(
                LOG_LEVEL_WARNING,
                "run=%s session=%llu rank=%u settling=late reason=\"what it had in flight is given "
                "up\"",
                s->run->name, (unsigned long long) s->id, s->rank);
        session_finish_settling(s);
}

void session_died(struct session *s) {
        loop_unwatch(&s->agent->loop, &s->pid_source);
        if (s->dead)
                return;
        s->dead = true;
        s->death_ns = loop_now(&s->agent->loop);
        if (s->state >= SESSION_SETTLING)
                return;
        session_fail_pending(s, &(struct cairn_error) CAIRN_ERROR_INIT);
        session_set_state(s, SESSION_SETTLING);
        s->limit_ns = loop_now(&s->agent->loop) + SESSION_SETTLE_NS +
                      (uint64_t) ((__uint128_t) 2 * s->image_bytes * NSEC_PER_SEC /
                                  run_bandwidth(s->run));
        loop_timer_set(&s->agent->loop, &s->timer, s->limit_ns);
        loop_timer_clear(&s->agent->loop, &s->respawn_timer);
        run_pump(s->run);
}

void session_finish_settling(struct session *s) {
        if (s->state != SESSION_SETTLING || s->saver_stopping)
                return;
        s->postmortem = POSTMORTEM_OVER;
        s->saver_stopping = true;
        if (s->saver.state != SAVER_LINK_NONE) {
                s->agent->ops->saver_stop(s);
                return;
        }
        session_saver_ended(s, true, 0);
}

/* ---- opening ---- */

static int make_page(struct session *s, struct cairn_error *reterr) {
        TRY(wire_memfd_create("cairn-page", CONTROL_PAGE_BYTES, &s->page_fd, reterr));
        TRY(wire_memfd_seal(s->page_fd, MEMORY_SEALS | F_SEAL_SEAL, reterr));
        s->page = mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->page_fd, 0);
        if (s->page == MAP_FAILED) {
                s->page = NULL;
                return error_set_errno(reterr, errno, "map control page", s->run->name);
        }
        control_page_init(s->page, s->id);
        return 0;
}

/* A page that a former cairnd made, brought back by its trainer. */
static int adopt_page(struct session *s, int fd, struct cairn_error *reterr) {
        uint64_t bytes;
        s->page_fd = fd;
        if (fd < 0)
                return error_set(reterr, CAIRN_ERR_API, "reattach session", s->run->name,
                                 "no control page came with it");
        TRY(wire_memfd_check(fd, MEMORY_SEALS, CONTROL_PAGE_BYTES, CONTROL_PAGE_BYTES, &bytes,
                             reterr));
        s->page = mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (s->page == MAP_FAILED) {
                s->page = NULL;
                return error_set_errno(reterr, errno, "map control page", s->run->name);
        }
        TRY(control_page_check(s->page, CONTROL_PAGE_BYTES, reterr));
        if (s->page->session_id != s->id)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "reattach session", s->run->name,
                                 "the control page is of another session");
        /* The saver of the agent before us died with it: what it had copied is lost. */
        bool revoked = cut_copy_revoke(s->page);
        unsigned lost = cut_claims_lost(s->page, atomic_load(&s->page->committed_seq) + 1);
        log_event(LOG_LEVEL_INFO, "run=%s rank=%u reattached=1 revoked=%d lost_cuts=%u",
                  s->run->name, s->rank, revoked, lost);
        return 0;
}

/* The descriptor must be a pidfd, and of the process that speaks; then its end is what we wait for.
 */
static int check_pidfd(int fd, pid_t pid, struct cairn_error *reterr) {
        char path[64], line[128];
        (void) snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
        _cleanup_fclose_ FILE *f = fd >= 0 ? fopen(path, "re") : NULL;
        while (f && fgets(line, sizeof line, f))
                if (!strncmp(line, "Pid:", 4)) {
                        long of = strtol(line + 4, NULL, 10);
                        if (of == pid || pid == 0)
                                return 0;
                        return error_set(reterr, CAIRN_ERR_API, "check process descriptor", "",
                                         "it is of process %ld, the peer is %d", of, (int) pid);
                }
        return error_set(reterr, CAIRN_ERR_API, "check process descriptor", "",
                         "a Hello must bring the sender's own pidfd");
}

static void pid_ready(void *context, uint32_t events) {
        (void) events;
        session_died(context);
}

static void welcome(struct session *s) {
        struct run *run = s->run;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Welcome m = CAIRN__CONTROL__WELCOME__INIT;
        static const char *const intents[] = {"", "fresh", "resume", "auto", "init-from"};
        m.protocol = WIRE_PROTOCOL;
        m.features = SERVER_FEATURES;
        m.software = (ProtobufCBinaryData){sizeof SERVER_SOFTWARE - 1, (uint8_t *) SERVER_SOFTWARE};
        m.session_id = s->id;
        m.secret = (ProtobufCBinaryData){sizeof s->secret, s->secret};
        m.run = (ProtobufCBinaryData){strlen(run->name), (uint8_t *) run->name};
        m.generation = run->generation;
        m.world = run->world;
        if (group_node_local(run)) {
                m.node_first = run->first_rank;
                m.node_ranks = run->local_count;
        }
        m.mode = run->mode;
        m.checkpoint = (ProtobufCBinaryData){strlen(run->checkpoint), (uint8_t *) run->checkpoint};
        m.checkpoint_step = run->checkpoint_step;
        m.every_steps = run->every_steps;
        m.restart = run->restart;
        if (run->start) {
                m.n_overrides = run->start->n_overrides;
                m.overrides = run->start->overrides;
                m.n_conversions = run->start->n_conversions;
                m.conversions = run->start->conversions;
        }
        m.run_dir = (ProtobufCBinaryData){strlen(run->run_dir), (uint8_t *) run->run_dir};
        m.reattached = s->reattached;
        const char *intent = intents[run->intent];
        m.intent = (ProtobufCBinaryData){strlen(intent), (uint8_t *) intent};
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_WELCOME;
        e.welcome = &m;
        const int fds[] = {s->page_fd, s->event_fd};
        server_reply(&s->hello, &e, fds, 2);
        if (server_reach(&s->hello))
                s->hello.connection->session = s;
}

static int open_parts(struct session *s, const struct session_hello *h, struct wire_fds *fds,
                      struct cairn_error *reterr) {
        s->pidfd = wire_fds_take(fds, 0);
        TRY(check_pidfd(s->pidfd, h->pid, reterr));
        if (s->reattached)
                TRY(adopt_page(s, wire_fds_take(fds, 1), reterr));
        else
                TRY(make_page(s, reterr));
        s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (s->event_fd < 0)
                return error_set_errno(reterr, errno, "create copier's event", s->run->name);
        if (h->secret)
                memcpy(s->secret, h->secret, sizeof s->secret);
        else if (getrandom(s->secret, sizeof s->secret, 0) != sizeof s->secret)
                return error_set_errno(reterr, errno, "make secret", s->run->name);
        return loop_watch(&s->agent->loop, &s->pid_source, s->pidfd, EPOLLIN, pid_ready, s, reterr);
}

static struct session *session_alloc(struct run *run, const struct session_hello *h) {
        struct session *s = calloc(1, sizeof *s);
        if (!s)
                return NULL;
        s->agent = run->agent;
        s->run = run;
        s->rank = h->rank;
        s->pid = h->pid;
        s->hello = h->to;
        s->reattached = h->session_id != 0;
        s->id = h->session_id ? h->session_id : ++run->agent->session_id_last;
        if (s->id > run->agent->session_id_last)
                run->agent->session_id_last = s->id;
        s->pidfd = s->page_fd = s->event_fd = s->inventory_fd = s->host_fd = s->staging_fd = -1;
        s->push_fd = -1;
        s->restore.plan_fd = -1;
        s->last_error = s->slab_error = (struct cairn_error) CAIRN_ERROR_INIT;
        for (size_t i = 0; i < SLAB_COUNT_MAX; i++)
                s->slab_fds[i] = -1;
        loop_timer_init(&s->timer, settle_late, s);
        loop_timer_init(&s->respawn_timer, session_respawn, s);
        return s;
}

/* One that only stands for what its stuck savers hold makes room. */
static size_t free_slot(struct agent *a) {
        size_t slot = 0;
        while (slot < SESSION_COUNT_MAX && a->sessions[slot])
                slot++;
        for (size_t i = 0; slot == SESSION_COUNT_MAX && i < SESSION_COUNT_MAX; i++) {
                struct session *s = a->sessions[i];
                if (!session_settled(s) || s->run->store_calls || run_session(s->run, s->rank) == s)
                        continue;
                session_free(s);
                a->sessions[i] = NULL;
                slot = i;
        }
        return slot;
}

int session_open(struct run *run, const struct session_hello *h, struct wire_fds *fds,
                 struct session **ret, struct cairn_error *reterr) {
        struct agent *a = run->agent;
        size_t slot = free_slot(a);
        if (slot == SESSION_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_BUSY, "open session", run->name,
                                 "%d sessions are open, which is the limit of an agent",
                                 SESSION_COUNT_MAX);
        struct session *s = session_alloc(run, h);
        if (!s)
                return error_set_errno(reterr, ENOMEM, "open session", run->name);
        int r = open_parts(s, h, fds, reterr);
        if (r < 0) {
                session_free(s);
                return r;
        }
        a->sessions[slot] = s;
        session_set_state(s, SESSION_WELCOMED);
        session_start_saver(s);
        welcome(s);
        *ret = s;
        return 0;
}

int session_rebind(struct session *s, const struct session_hello *h, struct cairn_error *reterr) {
        if (!h->secret || memcmp(h->secret, s->secret, sizeof s->secret) != 0)
                return error_set(reterr, CAIRN_ERR_PERMISSION, "reattach session", s->run->name,
                                 "the secret is not the one that this session was given");
        struct connection *old = server_reach(&s->hello);
        if (old && old->session == s)
                old->session = NULL;
        s->hello = h->to;
        s->reattached = true;
        s->closed = false;
        /* Answers to the old connection are void; the trainer asks again. */
        s->seal_reply = s->restore.reply = s->restore.inventory_reply = (struct reply_to){0};
        s->restore.wanted = false;
        welcome(s);
        return 0;
}

void session_free(struct session *s) {
        if (!s)
                return;
        struct loop *l = &s->agent->loop;
        s->agent->ops->saver_forget(s);
        loop_unwatch(l, &s->pid_source);
        loop_unwatch(l, &s->event_source);
        loop_timer_clear(l, &s->timer);
        loop_timer_clear(l, &s->respawn_timer);
        struct connection *c = server_reach(&s->hello);
        if (c && c->session == s)
                c->session = NULL;
        if (s->page)
                (void) munmap(s->page, CONTROL_PAGE_BYTES);
        for (size_t i = 0; i < SLAB_COUNT_MAX; i++)
                session_close_fd(&s->slab_fds[i]);
        session_close_fd(&s->pidfd);
        session_close_fd(&s->page_fd);
        session_close_fd(&s->event_fd);
        session_close_fd(&s->inventory_fd);
        session_close_fd(&s->host_fd);
        session_close_fd(&s->staging_fd);
        session_close_fd(&s->push_fd);
        session_close_fd(&s->restore.plan_fd);
        free(s);
}
