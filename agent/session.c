/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/session.h"
#include "agent/budget.h"
#include "agent/run.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/states.h"
#include "format/layout.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>

#define MEMORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define SESSION_SETTLE_NS (60 * NSEC_PER_SEC)
#define SESSION_RESPAWN_NS_MIN (200 * NSEC_PER_MSEC)
#define SESSION_RESPAWN_NS_MAX (30 * NSEC_PER_SEC)
#define SESSION_DEATHS_MAX 5 /* of savers while the trainer waits for an answer */
#define SESSION_INVENTORY_ARENA (4 * GiB)
#define SLABS_PER_MESSAGE 8

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

static void set_state(struct session *s, enum session_state to) {
        const char *name = state_table_step(session_states, SESSION_STATE_COUNT, s->state, to);
        log_event(LOG_LEVEL_INFO, "run=%s session=%llu rank=%u pid=%d state=%s previous=%s",
                  s->run->name, (unsigned long long) s->id, s->rank, (int) s->pid, name,
                  session_states[s->state].name);
        s->state = to;
}

static void close_fd(int *fd) {
        if (*fd >= 0)
                (void) close(*fd);
        *fd = -1;
}

/* The futexes, outcomes and words of a page are atomics; this is the shape of all notes. */
static void note_error(struct session *s, const char *what, const struct cairn_error *error) {
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
                set_state(s, SESSION_ACTIVE);
}

void session_ring(struct session *s) {
        uint64_t one = 1;
        ssize_t n = write(s->event_fd, &one, sizeof one);
        (void) n; /* EAGAIN: it is ringing already */
}

/* ---- the saver ---- */

static struct saver_message message_new(const struct session *s, enum saver_verb verb) {
        struct saver_message m = {.verb = verb,
                                  .error = CAIRN_ERROR_INIT,
                                  .generation = s->run->generation,
                                  .session_id = s->id,
                                  .seal = s->seal,
                                  .bytes = s->staging_bytes,
                                  .rank = s->rank,
                                  .world = s->run->world};
        memcpy(m.run, s->run->name, sizeof m.run);
        return m;
}

static int send_slabs(struct session *s, uint32_t first) {
        while (first < s->slab_count) {
                struct saver_message m = message_new(s, SAVER_SLABS);
                m.first = first;
                for (; m.count < SLABS_PER_MESSAGE && first < s->slab_count; m.count++, first++) {
                        m.slab_bytes[m.count] = s->slab_bytes[first];
                        m.slab_kind[m.count] = s->slab_kinds[first];
                }
                TRY(s->agent->ops->saver_send(s, &m, s->slab_fds + m.first, m.count));
        }
        return 0;
}

static int send_seal(struct session *s) {
        struct saver_message m = message_new(s, SAVER_SEAL);
        const int fds[] = {s->inventory_fd, s->host_fd, s->staging_fd};
        s->saver_sealed = false;
        return s->agent->ops->saver_send(s, &m, fds, 3);
}

static int send_setup(struct session *s) {
        struct saver_message m = message_new(s, SAVER_SETUP);
        const int fds[] = {s->page_fd, s->event_fd};
        return s->agent->ops->saver_send(s, &m, fds, 2);
}

static void decline_rings(struct session *s) {
        if (atomic_load(&s->page->wanted_seq) > atomic_load(&s->page->answered_seq))
                cut_decline(s->page, CAIRN_ERR_BUSY);
}

/* While there is no saver nobody else answers, and a gate would wait for its whole deadline. */
static void event_ready(void *context, uint32_t events) {
        struct session *s = context;
        uint64_t count;
        (void) events;
        ssize_t n = read(s->event_fd, &count, sizeof count);
        (void) n;
        decline_rings(s);
}

static void watch_rings(struct session *s, bool on) {
        if (!on) {
                loop_unwatch(&s->agent->loop, &s->event_source);
                return;
        }
        if (!s->event_source.watched)
                (void) loop_watch(&s->agent->loop, &s->event_source, s->event_fd, EPOLLIN,
                                  event_ready, s, NULL);
        decline_rings(s);
}

static void start_saver(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        s->saver_ready = s->saver_sealed = s->saver_stopping = false;
        s->armed_attempt = 0;
        s->disarming = s->writing = false;
        s->respawn_ns = loop_now(&s->agent->loop);
        int r = s->agent->ops->saver_start(s, &error);
        if (r == 0)
                r = send_setup(s);
        if (r == 0)
                return;
        if (!error.status)
                (void) error_set(&error, r, "set up saver", s->run->name, "it did not take it");
        note_error(s, "start saver", &error);
        /* saver_ended was not called for one that did not start. */
        if (!saver_link_running(&s->saver))
                loop_timer_set(&s->agent->loop, &s->respawn_timer,
                               s->respawn_ns + SESSION_RESPAWN_NS_MAX / 8);
}

static void respawn(void *context) {
        struct session *s = context;
        if (s->state < SESSION_SETTLING)
                start_saver(s);
}

static void fail_pending(struct session *s, const struct cairn_error *error) {
        if (s->seal_reply.connection)
                server_fail(&s->seal_reply, error);
        s->seal_reply = (struct reply_to){0};
        if (s->restore.reply.connection)
                server_fail(&s->restore.reply, error);
        s->restore.reply = (struct reply_to){0};
        s->restore.wanted = false;
        if (s->state == SESSION_SEALING)
                set_state(s, SESSION_WELCOMED);
        else if (s->state == SESSION_RESEALING)
                set_state(s, SESSION_ACTIVE);
        else if (s->state == SESSION_RESTORING)
                set_state(s, SESSION_SEALED);
}

static int make_staging(struct session *s, uint64_t bytes, struct cairn_error *reterr);

void session_saver_ended(struct session *s, bool reaped, int wait_status) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        bool expected = s->saver_stopping;
        s->saver_ready = s->saver_sealed = false;
        if (!expected || !reaped) {
                s->saver_deaths++;
                (void) error_set(&error, CAIRN_ERR_PEER, "run saver", s->run->name,
                                 reaped ? "it ended with wait status %d; another one is started"
                                        : "it cannot be ended (wait status %d): it and its staging "
                                          "are abandoned",
                                 wait_status);
                note_error(s, "saver", &error);
        }
        s->staging_abandoned = s->staging_abandoned || !reaped;
        if (cut_copy_revoke(s->page))
                log_event(LOG_LEVEL_WARNING, "run=%s rank=%u cut=void reason=\"saver ended\"",
                          s->run->name, s->rank);
        s->armed_attempt = 0;
        s->disarming = s->writing = false;
        run_session_saver_lost(s->run, s, &error);
        if (s->postmortem == POSTMORTEM_ORDERED)
                s->postmortem = POSTMORTEM_WANTED;
        /* Its staging may still be written to, or is half written: a new one. */
        close_fd(&s->staging_fd);
        if (s->state >= SESSION_SETTLING) {
                if (s->state == SESSION_SETTLING && expected) {
                        loop_timer_clear(&s->agent->loop, &s->timer);
                        s->staging_bytes = 0;
                        set_state(s, SESSION_ENDED);
                        run_session_ended(s->run, s);
                        return;
                }
                run_pump(s->run);
                return;
        }
        if (s->saver_deaths > SESSION_DEATHS_MAX)
                fail_pending(s, &error);
        watch_rings(s, true);
        uint64_t pause = SESSION_RESPAWN_NS_MIN << (s->saver_deaths < 8 ? s->saver_deaths : 8);
        pause = pause < SESSION_RESPAWN_NS_MAX ? pause : SESSION_RESPAWN_NS_MAX;
        loop_timer_set(&s->agent->loop, &s->respawn_timer, loop_now(&s->agent->loop) + pause);
        run_pump(s->run);
}

/* A new saver introduced itself: hand everything over again. */
static void saver_ready(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        s->saver_ready = true;
        watch_rings(s, false);
        int r = send_slabs(s, 0);
        if (r == 0 && s->inventory_fd >= 0) {
                if (s->staging_fd < 0)
                        r = make_staging(s, s->staging_bytes, &error);
                if (r == 0)
                        r = send_seal(s);
        }
        if (r < 0) {
                if (!error.status)
                        (void) error_set(&error, r, "hand over to saver", s->run->name,
                                         "the saver took nothing");
                note_error(s, "set up saver", &error);
        }
}

static void answer_sealed(struct session *s) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Sealed m = CAIRN__CONTROL__SEALED__INIT;
        m.seal = s->seal;
        m.staging_bytes = s->staging_bytes;
        m.gate_deadline_ns = s->gate_deadline_ns;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SEALED;
        e.sealed = &m;
        server_reply(&s->seal_reply, &e, NULL, 0);
        s->seal_reply = (struct reply_to){0};
}

static void restore_begin(struct session *s);

static void saver_sealed(struct session *s, const struct saver_message *m) {
        if (m->seal != s->seal)
                return;
        if (m->status < 0) {
                note_error(s, "seal", &m->error);
                fail_pending(s, &m->error);
                if (s->dead)
                        s->postmortem = POSTMORTEM_OVER;
                return;
        }
        s->saver_sealed = true;
        s->copy_rate = m->rate_bytes_per_sec ? m->rate_bytes_per_sec : s->copy_rate;
        s->gate_deadline_ns = GATE_DEADLINE_NS_MIN;
        if (s->copy_rate) {
                __uint128_t wait = (__uint128_t) 2 * s->image_bytes * NSEC_PER_SEC / s->copy_rate;
                if (wait > s->gate_deadline_ns)
                        s->gate_deadline_ns =
                                wait < UINT64_MAX / 4 ? (uint64_t) wait : UINT64_MAX / 4;
        }
        log_event(LOG_LEVEL_INFO,
                  "run=%s rank=%u sealed=%llu tensors=%llu image_bytes=%llu staging_bytes=%llu "
                  "gate_deadline_ms=%llu copy_bytes_per_sec=%llu",
                  s->run->name, s->rank, (unsigned long long) s->seal,
                  (unsigned long long) s->tensor_count, (unsigned long long) s->image_bytes,
                  (unsigned long long) s->staging_bytes,
                  (unsigned long long) (s->gate_deadline_ns / NSEC_PER_MSEC),
                  (unsigned long long) s->copy_rate);
        if (s->state == SESSION_SEALING)
                set_state(s, s->reattached && cut_read(s->page).seq > 0 ? SESSION_ACTIVE
                                                                        : SESSION_SEALED);
        else if (s->state == SESSION_RESEALING)
                set_state(s, SESSION_ACTIVE);
        if (s->seal_reply.connection)
                answer_sealed(s);
        if (s->restore.wanted)
                restore_begin(s);
}

static void saver_restored(struct session *s, const struct saver_message *m);

/* What was ordered was taken or was not; that is judged anew. */
static void answered(struct session *s) {
        if (s->postmortem == POSTMORTEM_ORDERED)
                s->postmortem = POSTMORTEM_WANTED;
}

void session_saver_message(struct session *s, const struct saver_message *m, struct wire_fds *fds) {
        (void) fds;
        switch (m->verb) {
        case SAVER_READY:
                if (m->status < 0) {
                        note_error(s, "set up saver", &m->error);
                        s->agent->ops->saver_stop(s);
                } else
                        saver_ready(s);
                break;
        case SAVER_SEALED:
                saver_sealed(s, m);
                break;
        case SAVER_CUT:
                s->writing = true;
                answered(s);
                run_session_cut(s->run, s, m);
                break;
        case SAVER_HELD:
                run_session_held(s->run, s, m);
                break;
        case SAVER_VOID:
                s->take_seq = 0;
                answered(s);
                run_session_void(s->run, s, m);
                break;
        case SAVER_WRITTEN:
                s->writing = false;
                s->armed_attempt = 0;
                s->disarming = false;
                if (m->status == 0) {
                        s->saver_deaths = 0;
                        if (m->duration_ns && m->bytes)
                                s->write_rate = (uint64_t) ((__uint128_t) m->bytes * NSEC_PER_SEC /
                                                            m->duration_ns);
                }
                if (m->warned)
                        note_error(s, "fast path", &m->error);
                run_session_written(s->run, s, m);
                break;
        case SAVER_DISARMED: {
                uint32_t attempt = s->armed_attempt;
                s->armed_attempt = 0;
                s->disarming = false;
                if (attempt)
                        run_session_disarmed(s->run, s, attempt);
                break;
        }
        case SAVER_RESTORED:
                saver_restored(s, m);
                break;
        default:
                log_event(LOG_LEVEL_WARNING, "run=%s rank=%u saver_message=%d ignored=1",
                          s->run->name, s->rank, (int) m->verb);
        }
        run_pump(s->run);
}

bool session_can_arm(const struct session *s) {
        bool alive = s->state >= SESSION_SEALED && s->state <= SESSION_RESEALING && !s->dead;
        return s->saver_sealed && !s->saver_stopping && !s->armed_attempt && !s->writing &&
               (alive || s->postmortem == POSTMORTEM_WANTED);
}

int session_arm(struct session *s, uint32_t attempt, int data_fd, int manifest_fd) {
        struct saver_message m = message_new(s, SAVER_ARM);
        m.attempt = attempt;
        const int fds[] = {data_fd, manifest_fd};
        int r = s->agent->ops->saver_send(s, &m, fds, 2);
        if (r == 0) {
                s->armed_attempt = attempt;
                s->take_seq = 0;
        }
        return r;
}

void session_disarm(struct session *s) {
        struct saver_message m = message_new(s, SAVER_DISARM);
        m.attempt = s->armed_attempt;
        if (!s->armed_attempt || s->disarming || s->writing)
                return;
        if (s->agent->ops->saver_send(s, &m, NULL, 0) == 0)
                s->disarming = true;
}

void session_take(struct session *s, uint64_t seq) {
        struct saver_message m = message_new(s, SAVER_TAKE);
        m.seq = seq;
        if (s->take_seq >= seq && s->take_seq)
                return;
        if (s->agent->ops->saver_send(s, &m, NULL, 0) == 0)
                s->take_seq = seq ? seq : 1;
}

int session_hold(struct session *s, int64_t step) {
        struct saver_message m = message_new(s, SAVER_TAKE);
        m.hold = true;
        m.step = step;
        s->take_seq = 0;
        return s->agent->ops->saver_send(s, &m, NULL, 0);
}

void session_go(struct session *s) {
        struct saver_message m = message_new(s, SAVER_GO);
        (void) s->agent->ops->saver_send(s, &m, NULL, 0); /* lost with its saver: void */
}

void session_release(struct session *s) {
        struct saver_message m = message_new(s, SAVER_RELEASE);
        (void) s->agent->ops->saver_send(s, &m, NULL, 0);
}

void session_take_last(struct session *s) {
        struct saver_message m = message_new(s, SAVER_TAKE);
        m.seq = cut_read(s->page).seq;
        m.ending = s->ending;
        if (s->saver.state == SAVER_LINK_NONE && !s->saver_stopping)
                start_saver(s);
        if (!s->armed_attempt || s->disarming || s->writing ||
            s->agent->ops->saver_send(s, &m, NULL, 0) < 0)
                return;
        s->postmortem = POSTMORTEM_ORDERED;
        s->postmortem_tries++;
}

bool session_copying(const struct session *s) {
        if (!saver_link_running(&s->saver) || !s->armed_attempt || s->disarming)
                return false;
        struct cut_word w = cut_read(s->page);
        uint64_t wanted = atomic_load(&s->page->wanted_seq);
        return w.phase == CUT_COPYING || (w.phase == CUT_STABLE && wanted <= w.seq &&
                                          wanted > atomic_load(&s->page->answered_seq));
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
        unsigned lost = 0;
        uint64_t seq = atomic_load(&s->page->committed_seq) + 1, found;
        for (int status; lost < CUT_OUTCOME_COUNT; seq = found + 1) {
                enum cut_outcome o = cut_outcome_find(s->page, seq, &found, &status);
                if (o == CUT_NONE || found < seq)
                        break;
                if (o == CUT_CLAIMED) {
                        cut_outcome_set(s->page, found, CUT_FAILED, CAIRN_ERR_PEER);
                        lost++;
                }
        }
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

static void settle_late(void *context);

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
        s->restore.plan_fd = -1;
        s->last_error = s->slab_error = (struct cairn_error) CAIRN_ERROR_INIT;
        for (size_t i = 0; i < SLAB_COUNT_MAX; i++)
                s->slab_fds[i] = -1;
        loop_timer_init(&s->timer, settle_late, s);
        loop_timer_init(&s->respawn_timer, respawn, s);
        return s;
}

int session_open(struct run *run, const struct session_hello *h, struct wire_fds *fds,
                 struct session **ret, struct cairn_error *reterr) {
        struct agent *a = run->agent;
        size_t slot = 0;
        while (slot < SESSION_COUNT_MAX && a->sessions[slot])
                slot++;
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
        set_state(s, SESSION_WELCOMED);
        start_saver(s);
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
                close_fd(&s->slab_fds[i]);
        close_fd(&s->pidfd);
        close_fd(&s->page_fd);
        close_fd(&s->event_fd);
        close_fd(&s->inventory_fd);
        close_fd(&s->host_fd);
        close_fd(&s->staging_fd);
        close_fd(&s->restore.plan_fd);
        free(s);
}

/* ---- registration ---- */

static int take_slabs(struct session *s, const Cairn__Control__SlabBatch *m, struct wire_fds *fds,
                      struct cairn_error *reterr) {
        if (m->n_bytes != fds->count || m->n_kind != fds->count || m->n_bytes == 0)
                return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                 "%zu sizes, %zu kinds and %zu descriptors", m->n_bytes, m->n_kind,
                                 fds->count);
        if (m->first_slab > SLAB_COUNT_MAX || fds->count > SLAB_COUNT_MAX - m->first_slab)
                return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                 "more than %d slabs", SLAB_COUNT_MAX);
        bool known = m->first_slab + fds->count <= s->slab_count;
        if (m->first_slab != s->slab_count && !known)
                return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                 "slab %u follows %u", m->first_slab, s->slab_count);
        for (size_t i = 0; i < fds->count; i++) {
                if (m->kind[i] != 1)
                        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "take slabs", s->run->name,
                                         "slab %zu is of kind %u; this agent copies host memory "
                                         "only",
                                         m->first_slab + i, m->kind[i]);
                if (m->bytes[i] > SLAB_BYTES_MAX)
                        return error_set(reterr, CAIRN_ERR_API, "take slabs", s->run->name,
                                         "a slab has at most %llu bytes",
                                         (unsigned long long) SLAB_BYTES_MAX);
                uint64_t bytes;
                TRY(wire_memfd_check(fds->fds[i], MEMORY_SEALS, m->bytes[i], m->bytes[i], &bytes,
                                     reterr));
        }
        if (known) /* sent again after a reconnection: the same memory */
                return 0;
        uint32_t first = s->slab_count;
        for (size_t i = 0; i < m->n_bytes; i++, s->slab_count++) {
                s->slab_fds[s->slab_count] = wire_fds_take(fds, i);
                s->slab_bytes[s->slab_count] = m->bytes[i];
                s->slab_kinds[s->slab_count] = m->kind[i];
        }
        if (s->saver_ready)
                (void) send_slabs(s, first);
        return 0;
}

int session_slabs(struct session *s, const struct reply_to *to, const Cairn__Control__SlabBatch *m,
                  struct wire_fds *fds, struct cairn_error *reterr) {
        s->slab_error = (struct cairn_error) CAIRN_ERROR_INIT;
        int r = take_slabs(s, m, fds, &s->slab_error);
        if (r == 0)
                server_done_reply(to);
        else if (reterr)
                *reterr = s->slab_error;
        return r;
}

static uint64_t staging_used(const struct agent *a) {
        uint64_t sum = 0;
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (a->sessions[i] && a->sessions[i]->staging_fd >= 0)
                        sum += a->sessions[i]->staging_bytes;
        return sum;
}

static int make_staging(struct session *s, uint64_t bytes, struct cairn_error *reterr) {
        struct budget b;
        close_fd(&s->staging_fd);
        budget_read(s->agent->config.staging_bytes_max, staging_used(s->agent), &b);
        TRY(budget_check(&b, bytes, reterr));
        TRY(wire_memfd_create("cairn-staging", bytes, &s->staging_fd, reterr));
        s->staging_bytes = bytes;
        return wire_memfd_seal(s->staging_fd, MEMORY_SEALS, reterr);
}

/* Only the size of the image is needed here; the saver checks what it copies. The bytes are taken
 * over first: their owner could change them while they are parsed. */
static int parse_inventory(struct session *s, int fd, const Cairn__Control__Seal *m,
                           uint64_t *ret_image_bytes, uint64_t *ret_host_bytes,
                           struct cairn_error *reterr) {
        uint64_t bytes;
        TRY(wire_memfd_check(fd, MEMORY_SEALS, 1, INVENTORY_BYTES_MAX, &bytes, reterr));
        _cleanup_free_ unsigned char *copy = malloc(bytes);
        if (!copy)
                return error_set_errno(reterr, ENOMEM, "read inventory", s->run->name);
        TRY(io_read_exact(&io_system, fd, copy, bytes, 0, "inventory", reterr));
        struct arena arena;
        struct file_content content;
        uint64_t image;
        arena_init(&arena, SESSION_INVENTORY_ARENA);
        int r = file_read(copy, bytes, FILE_INVENTORY, "inventory", &arena, &content, reterr);
        if (r == 0)
                r = layout_assign(&content, s->rank, &arena, &image, reterr);
        if (r == 0) {
                *ret_image_bytes = image;
                *ret_host_bytes = content.inventory->host_state_bytes;
                s->tensor_count = content.tensor_count;
                if (content.inventory->seal != m->seal ||
                    content.inventory->slab_count > s->slab_count)
                        r = error_set(
                                reterr, CAIRN_ERR_MISMATCH, "read inventory", s->run->name,
                                "it is of seal %llu with %u slabs; the message says %llu, and "
                                "%u slabs were handed over",
                                (unsigned long long) content.inventory->seal,
                                content.inventory->slab_count, (unsigned long long) m->seal,
                                s->slab_count);
                for (uint32_t i = 0; r == 0 && i < content.inventory->n_slab_bytes; i++)
                        if (i >= s->slab_count ||
                            content.inventory->slab_bytes[i] != s->slab_bytes[i])
                                r = error_set(reterr, CAIRN_ERR_MISMATCH, "read inventory",
                                              s->run->name, "slab %u has another size", i);
        }
        arena_done(&arena);
        return r;
}

int session_seal(struct session *s, const struct reply_to *to, const Cairn__Control__Seal *m,
                 struct wire_fds *fds, struct cairn_error *reterr) {
        if (s->state != SESSION_WELCOMED && s->state != SESSION_ACTIVE &&
            s->state != SESSION_SEALED)
                return error_set(reterr, CAIRN_ERR_API, "seal", s->run->name, "the session is %s",
                                 session_states[s->state].name);
        if (s->slab_error.status) {
                *reterr = s->slab_error;
                return reterr->status;
        }
        s->seal_reply = *to;
        if (m->seal == s->seal && s->saver_sealed) { /* again after a reconnection */
                answer_sealed(s);
                return 0;
        }
        uint64_t image = 0, payload = 0, host = 0;
        int r = fds->count == 2 ? parse_inventory(s, fds->fds[0], m, &image, &payload, reterr)
                                : error_set(reterr, CAIRN_ERR_API, "seal", s->run->name,
                                            "two descriptors are needed");
        if (r == 0 && payload > HOST_STATE_BYTES_MAX)
                r = error_set(reterr, CAIRN_ERR_API, "seal", s->run->name,
                              "host state has at most %llu bytes",
                              (unsigned long long) HOST_STATE_BYTES_MAX);
        if (r == 0)
                r = wire_memfd_check(fds->fds[1], MEMORY_SEALS, host_state_bytes(payload),
                                     host_state_bytes(HOST_STATE_BYTES_MAX), &host, reterr);
        /* A write in flight reads the old staging, which its saver has mapped: a new one anyway. */
        if (r == 0 && (s->staging_fd < 0 || s->staging_bytes < image || s->writing))
                r = make_staging(s, image > s->staging_bytes ? image : s->staging_bytes, reterr);
        if (r < 0) {
                s->seal_reply = (struct reply_to){0};
                return r;
        }
        close_fd(&s->inventory_fd);
        close_fd(&s->host_fd);
        s->inventory_fd = wire_fds_take(fds, 0);
        s->host_fd = wire_fds_take(fds, 1);
        s->seal = m->seal;
        s->image_bytes = image;
        s->host_bytes = host;
        set_state(s, s->state == SESSION_WELCOMED ? SESSION_SEALING : SESSION_RESEALING);
        if (s->saver_ready)
                (void) send_seal(s);
        return 0;
}

/* ---- restore ---- */

static void inventory_opened(void *context, const struct store_message *reply,
                             struct wire_fds *fds) {
        struct session *s = context;
        struct reply_to to = s->restore.inventory_reply;
        s->restore.inventory_reply = (struct reply_to){0};
        if (reply->status < 0) {
                note_error(s, "open checkpoint", &reply->error);
                server_fail(&to, &reply->error);
                return;
        }
        s->restore.world = reply->world;
        s->restore.opened = true;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__InventoryReply m = CAIRN__CONTROL__INVENTORY_REPLY__INIT;
        m.checkpoint =
                (ProtobufCBinaryData){strlen(s->run->checkpoint), (uint8_t *) s->run->checkpoint};
        m.step = s->run->checkpoint_step;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_INVENTORY_REPLY;
        e.inventory_reply = &m;
        server_reply(&to, &e, fds->fds, fds->count ? 1 : 0);
}

int session_inventory(struct session *s, const struct reply_to *to, struct cairn_error *reterr) {
        if (!*s->run->checkpoint)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "open checkpoint", s->run->name,
                                 "this generation starts from no checkpoint");
        if (s->restore.inventory_reply.connection)
                return error_set(reterr, CAIRN_ERR_API, "open checkpoint", s->run->name,
                                 "it is being opened already");
        struct store_message m = {.verb = STORE_RESTORE_OPEN};
        memcpy(m.name, s->run->checkpoint, sizeof m.name);
        s->restore.inventory_reply = *to;
        int r = run_store_request(s->run, &m, inventory_opened, s, reterr);
        if (r < 0)
                s->restore.inventory_reply = (struct reply_to){0};
        return r;
}

static void restore_fail(struct session *s, const struct cairn_error *error) {
        note_error(s, "restore", error);
        if (s->restore.reply.connection)
                server_fail(&s->restore.reply, error);
        s->restore.reply = (struct reply_to){0};
        s->restore.wanted = false;
        if (s->state == SESSION_RESTORING)
                set_state(s, SESSION_SEALED);
}

static void restore_ask_files(struct session *s);

static void restore_files(void *context, const struct store_message *reply, struct wire_fds *fds) {
        struct session *s = context;
        s->restore.files_pending = false;
        if (s->state != SESSION_RESTORING)
                return;
        if (reply->status < 0) {
                restore_fail(s, &reply->error);
                return;
        }
        struct saver_message m = message_new(s, SAVER_FILES);
        m.first = s->restore.files_sent;
        m.count = (uint32_t) fds->count;
        m.world = s->restore.world;
        if (fds->count == 0 || s->agent->ops->saver_send(s, &m, fds->fds, fds->count) < 0)
                return; /* the saver is gone: its successor begins anew */
        s->restore.files_sent += (uint32_t) fds->count;
        if (s->restore.files_sent < s->restore.world)
                restore_ask_files(s);
}

static void restore_ask_files(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct store_message m = {.verb = STORE_RESTORE_FILES, .first = s->restore.files_sent};
        uint32_t left = s->restore.world - s->restore.files_sent;
        m.count = left < WIRE_FDS_MAX / 2 ? left : WIRE_FDS_MAX / 2;
        m.world = s->restore.world;
        memcpy(m.name, s->run->checkpoint, sizeof m.name);
        s->restore.files_pending = true;
        if (run_store_request(s->run, &m, restore_files, s, &error) < 0) {
                s->restore.files_pending = false;
                restore_fail(s, &error);
        }
}

/* With a sealed saver: its staging is large enough, or a larger one is sealed first. */
static void restore_begin(struct session *s) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct session_restore *t = &s->restore;
        if (!s->saver_sealed || t->files_pending)
                return;
        if (t->staging_bytes > s->staging_bytes) {
                if (make_staging(s, t->staging_bytes, &error) < 0)
                        restore_fail(s, &error);
                else
                        (void) send_seal(s);
                return;
        }
        if (++t->tries > 3) {
                (void) error_set(&error, CAIRN_ERR_PEER, "restore", s->run->name,
                                 "savers died of it %u times", t->tries - 1);
                restore_fail(s, &error);
                return;
        }
        struct saver_message m = message_new(s, SAVER_RESTORE);
        m.bytes = t->staging_bytes;
        m.count = t->world;
        m.world = t->world;
        t->files_sent = 0;
        if (s->agent->ops->saver_send(s, &m, &t->plan_fd, 1) == 0)
                restore_ask_files(s);
}

int session_restore(struct session *s, const struct reply_to *to, const Cairn__Control__Restore *m,
                    struct wire_fds *fds, struct cairn_error *reterr) {
        struct session_restore *t = &s->restore;
        uint64_t bytes, count;
        if (s->state != SESSION_SEALED || !t->opened)
                return error_set(reterr, CAIRN_ERR_API, "restore", s->run->name,
                                 "the session is %s and the checkpoint %s",
                                 session_states[s->state].name, t->opened ? "open" : "not open");
        int fd = fds->count ? fds->fds[0] : -1;
        TRY(wire_memfd_check(fd, MEMORY_SEALS | F_SEAL_WRITE, PLAN_HEADER_BYTES,
                             plan_bytes(TENSOR_COUNT_MAX * 4), &bytes, reterr));
        void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return error_set_errno(reterr, errno, "map restore plan", s->run->name);
        const struct plan_range *ranges;
        int r = plan_read(map, bytes, t->world, &ranges, &count, &t->staging_bytes, reterr);
        (void) munmap(map, bytes);
        TRY(r);
        if (count != m->range_count)
                return error_set(reterr, CAIRN_ERR_API, "restore", s->run->name,
                                 "the plan has %llu ranges, the message says %llu",
                                 (unsigned long long) count, (unsigned long long) m->range_count);
        close_fd(&t->plan_fd);
        t->plan_fd = wire_fds_take(fds, 0);
        t->range_count = count;
        t->reply = *to;
        t->wanted = true;
        t->tries = 0;
        set_state(s, SESSION_RESTORING);
        restore_begin(s);
        return 0;
}

static void saver_restored(struct session *s, const struct saver_message *m) {
        struct session_restore *t = &s->restore;
        struct cairn_error error = CAIRN_ERROR_INIT;
        if (s->state != SESSION_RESTORING)
                return;
        if (m->status < 0) {
                restore_fail(s, &m->error);
                return;
        }
        /* A second open of the same memory, for reading only. */
        char path[64];
        (void) snprintf(path, sizeof path, "/proc/self/fd/%d", s->staging_fd);
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
                (void) error_set_errno(&error, errno, "hand out staging", s->run->name);
                restore_fail(s, &error);
                return;
        }
        t->wanted = false;
        t->bytes = m->bytes;
        t->read_ns = m->duration_ns;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__RestoreReady ready = CAIRN__CONTROL__RESTORE_READY__INIT;
        ready.bytes = t->bytes;
        ready.read_ns = t->read_ns;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_RESTORE_READY;
        e.restore_ready = &ready;
        server_reply(&t->reply, &e, &fd, 1);
        t->reply = (struct reply_to){0};
        log_event(LOG_LEVEL_INFO, "run=%s rank=%u restored_bytes=%llu read_ms=%llu checkpoint=%s",
                  s->run->name, s->rank, (unsigned long long) t->bytes,
                  (unsigned long long) (t->read_ns / NSEC_PER_MSEC), s->run->checkpoint);
}

int session_restore_done(struct session *s, const struct reply_to *to, int status,
                         struct cairn_error *reterr) {
        if (s->state == SESSION_ACTIVE) { /* the page said so first */
                server_done_reply(to);
                return 0;
        }
        if (s->state != SESSION_SEALED && s->state != SESSION_RESTORING)
                return error_set(reterr, CAIRN_ERR_API, "end restore", s->run->name,
                                 "the session is %s", session_states[s->state].name);
        close_fd(&s->restore.plan_fd);
        if (status < 0) {
                log_event(LOG_LEVEL_WARNING, "run=%s rank=%u restore=failed status=%s",
                          s->run->name, s->rank, status_name(status));
                if (s->state == SESSION_RESTORING)
                        set_state(s, SESSION_SEALED);
        } else
                set_state(s, SESSION_ACTIVE);
        server_done_reply(to);
        return 0;
}

/* ---- the end ---- */

void session_signal(struct session *s, int signal_number) {
        if (!s->dead && s->pidfd >= 0)
                (void) syscall(SYS_pidfd_send_signal, s->pidfd, signal_number, NULL, 0);
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
        fail_pending(s, &(struct cairn_error) CAIRN_ERROR_INIT);
        set_state(s, SESSION_SETTLING);
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
