/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's side. The child gets one message at a time: a look every LOOK_NS (which renews the
 * lease every RENDEZVOUS_RENEW_NS), and requests between the looks. What fails because the storage
 * does not answer is sent again until its own deadline; a child that does not answer is killed.
 */
#include "agent/rendezvous_process.h"
#include "agent/rendezvous_record.h"
#include "agent/worker.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include "base/states.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#define LOOK_NS (500 * NSEC_PER_MSEC)
#define CALL_NS (2 * NSEC_PER_SEC)      /* that the child gets for one message */
#define KILL_NS (1 * NSEC_PER_SEC)      /* beyond that it is stuck */
#define REPEAT_NS (200 * NSEC_PER_MSEC) /* after an outage */
#define GET_NS_MIN (20 * NSEC_PER_MSEC) /* between looks for a value, doubled each time */
#define GET_NS_MAX (200 * NSEC_PER_MSEC)

static_assert(RENDEZVOUS_RENEW_NS + CALL_NS < RENDEZVOUS_TTL_NS,
              "one call that hangs costs no lease");
static_assert(RENDEZVOUS_TTL_NS < RENDEZVOUS_SILENCE_NS &&
                      RENDEZVOUS_SILENCE_NS + RENDEZVOUS_RENEW_NS + 2 * LOOK_NS <=
                              RENDEZVOUS_LOSS_NS,
              "a loss is known in time");

struct request {
        struct rendezvous_message message;
        void *payload; /* of CREATE and PUT */
        size_t payload_bytes;
        uint64_t deadline_ns, not_before_ns, pause_ns;
        bool settled;            /* `last` is the answer; the view is brought up to date first */
        struct cairn_error last; /* of the last try; status 0: none */
        rendezvous_done_fn done;
        void *context;
        struct request *next;
};
struct rendezvous {
        struct rendezvous_place place;
        rendezvous_changed_fn changed;
        void *context;
        struct worker worker;
        struct request *requests; /* in the order of arrival */
        size_t request_count;
        /* The message in flight; `current` is NULL for a look and for a request that has been
         * answered meanwhile. */
        bool in_flight, looking, looked_as_member;
        struct request *current;
        uint64_t kill_ns, last_id, look_ns, renew_ns;
        struct rendezvous_member self;
        uint64_t gone_nonce; /* of the membership that ended last */
        void *packed;        /* what the view points into */
        size_t packed_bytes;
        bool to_seed, dirty;
        struct rendezvous_view view;
};

static const struct state_row standings[] = {
        [RENDEZVOUS_OUTSIDE] = {"outside",
                                STATE_TO(RENDEZVOUS_OUTSIDE) | STATE_TO(RENDEZVOUS_MEMBER)},
        [RENDEZVOUS_MEMBER] = {"member", STATE_TO(RENDEZVOUS_MEMBER) |
                                                 STATE_TO(RENDEZVOUS_OUTSIDE) |
                                                 STATE_TO(RENDEZVOUS_LOST)},
        [RENDEZVOUS_LOST] = {"lost", STATE_TO(RENDEZVOUS_MEMBER) | STATE_TO(RENDEZVOUS_OUTSIDE)},
};

static void set_standing(struct rendezvous *r, enum rendezvous_standing to) {
        (void) state_table_step(standings, sizeof standings / sizeof *standings, r->view.standing,
                                to);
        if (r->view.standing == RENDEZVOUS_MEMBER && to != RENDEZVOUS_MEMBER)
                r->gone_nonce = r->self.nonce;
        if (r->view.standing != to)
                r->dirty = true;
        r->view.standing = to;
}

static uint64_t now(void) {
        return clock_now(&clock_system);
}

/* ---- answers ---- */

static void request_free(struct request *q) {
        free(q->payload);
        free(q);
}

static void answer(struct rendezvous *r, struct request *q, const struct cairn_error *e,
                   const void *value, size_t value_bytes) {
        struct rendezvous_answer a = {
                .status = e->status, .error = *e, .value = value, .value_bytes = value_bytes};
        struct request **list = &r->requests;

        while (*list != q)
                list = &(*list)->next;
        *list = q->next;
        r->request_count--;
        if (r->current == q)
                r->current = NULL;
        if (q->done)
                q->done(q->context, &a);
        request_free(q);
}

static const char *verb_name(enum rendezvous_verb verb) {
        static const char *const names[] = {
                [RENDEZVOUS_LOOK] = "look at rendezvous",
                [RENDEZVOUS_JOIN] = "join",
                [RENDEZVOUS_LEAVE] = "leave",
                [RENDEZVOUS_CREATE] = "create generation",
                [RENDEZVOUS_PUT] = "put value",
                [RENDEZVOUS_GET] = "get value",
        };
        return names[verb];
}

/* At its deadline: what the last try said, or that there was none. */
static void answer_late(struct rendezvous *r, struct request *q) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[400];

        if (q->settled || q->last.status == CAIRN_ERR_EXISTS ||
            q->last.status == CAIRN_ERR_UNREACHABLE || q->last.status == CAIRN_ERR_TIMEOUT)
                e = q->last;
        else if (q->last.status == CAIRN_ERR_NOTFOUND)
                (void) error_set(&e, CAIRN_ERR_TIMEOUT, verb_name(q->message.verb), q->message.key,
                                 "nobody has put it in generation %" PRIu64 " until the deadline",
                                 q->message.generation);
        else if (q->last.status < 0)
                (void) error_set(&e, CAIRN_ERR_UNREACHABLE, verb_name(q->message.verb),
                                 r->place.url, "the outcome is unknown: %s",
                                 error_format(&q->last, text, sizeof text));
        else
                (void) error_set(&e, CAIRN_ERR_TIMEOUT, verb_name(q->message.verb), r->place.url,
                                 "the rendezvous did not answer until the deadline; the outcome is "
                                 "unknown");
        answer(r, q, &e, NULL, 0);
}

/* Callbacks may change the list: from the front again after each. */
static void answer_due(struct rendezvous *r, bool settled) {
        struct request *q;

        do {
                uint64_t at = now();
                for (q = r->requests; q; q = q->next)
                        if ((settled && q->settled) || at >= q->deadline_ns)
                                break;
                if (q)
                        answer_late(r, q);
        } while (q);
}

/* ---- replies ---- */

static bool is_outage(int status) {
        return status == CAIRN_ERR_UNREACHABLE || status == CAIRN_ERR_TIMEOUT ||
               status == CAIRN_ERR_PEER || status == CAIRN_ERR_BUSY || status == CAIRN_ERR_IO ||
               status == CAIRN_ERR_NOMEM;
}

static void take_look(struct rendezvous *r, int fd, struct cairn_error *e) {
        _cleanup_free_ void *bytes = NULL;
        struct rendezvous_look look;
        size_t count;

        if (rendezvous_payload_read(fd, &bytes, &count, e) < 0 ||
            rendezvous_unpack(bytes, count, &look, e) < 0)
                return;
        /* A child that is new sends what is known. */
        if (count == r->packed_bytes && memcmp(bytes, r->packed, count) == 0)
                return;
        free(r->packed);
        r->packed = TAKE_PTR(bytes);
        r->packed_bytes = count;
        r->view.generation = look.generation;
        r->view.members = look.members;
        r->view.member_count = look.member_count;
        r->dirty = true;
}

static void looked(struct rendezvous *r, const struct rendezvous_message *m, int fd) {
        struct cairn_error e = m->error;
        bool was_out = r->view.error.status < 0;

        if (m->status == 0 && fd >= 0)
                take_look(r, fd, &e);
        if (e.status == 0)
                r->view.confirmed_ns = now();
        else
                r->renew_ns = 0; /* with the next look */
        if (e.status == CAIRN_ERR_STALE && r->looked_as_member &&
            r->view.standing == RENDEZVOUS_MEMBER) {
                set_standing(r, RENDEZVOUS_LOST);
                r->view.error = e;
                r->look_ns = 0;
        } else if (r->view.standing != RENDEZVOUS_LOST) {
                r->view.error = e;
                r->dirty |= was_out != (e.status < 0);
        }
        answer_due(r, true);
}

/* What changes the view is answered when the view shows it. */
static void settle(struct rendezvous *r, struct request *q, const struct cairn_error *e) {
        q->settled = true;
        q->last = *e;
        r->look_ns = 0;
        if (e->status < 0)
                return;
        if (q->message.verb == RENDEZVOUS_JOIN) {
                r->self = q->message.self;
                r->renew_ns = now() + RENDEZVOUS_RENEW_NS;
                r->view.error = (struct cairn_error) CAIRN_ERROR_INIT;
                set_standing(r, RENDEZVOUS_MEMBER);
        }
        if (q->message.verb == RENDEZVOUS_LEAVE)
                set_standing(r, RENDEZVOUS_OUTSIDE);
}

static void replied(struct rendezvous *r, struct request *q, const struct rendezvous_message *m,
                    int fd) {
        _cleanup_free_ void *value = NULL;
        enum rendezvous_verb verb = q->message.verb;
        struct cairn_error e = m->error;
        size_t bytes = 0;

        if (m->status == 0 && verb == RENDEZVOUS_GET)
                (void) rendezvous_payload_read(fd, &value, &bytes, &e);
        q->last = e;
        if (is_outage(e.status)) {
                q->not_before_ns = now() + REPEAT_NS;
        } else if (e.status == CAIRN_ERR_EXISTS && verb == RENDEZVOUS_JOIN) {
                q->not_before_ns = now() + LOOK_NS;
        } else if (e.status == CAIRN_ERR_NOTFOUND && verb == RENDEZVOUS_GET) {
                q->not_before_ns = now() + q->pause_ns;
                q->pause_ns = q->pause_ns * 2 < GET_NS_MAX ? q->pause_ns * 2 : GET_NS_MAX;
        } else if (verb == RENDEZVOUS_PUT || verb == RENDEZVOUS_GET) {
                r->look_ns = e.status == CAIRN_ERR_STALE ? 0 : r->look_ns;
                answer(r, q, &e, value, bytes);
        } else {
                settle(r, q, &e);
        }
}

static void finish(struct rendezvous *r, const struct rendezvous_message *m, int fd) {
        struct request *q = TAKE_PTR(r->current);

        r->in_flight = false;
        if (r->looking) {
                r->look_ns = now() + LOOK_NS; /* from its end: requests have their turn between */
                looked(r, m, fd);
        } else if (q) {
                replied(r, q, m, fd);
        }
}

static void fail_in_flight(struct rendezvous *r, int status, const char *what) {
        struct rendezvous_message m = {.error = CAIRN_ERROR_INIT};

        m.status = error_set(&m.error, status, "ask rendezvous", r->place.url, "%s", what);
        worker_end(&r->worker);
        finish(r, &m, -1);
}

static void receive(struct rendezvous *r) {
        struct rendezvous_message m;
        _cleanup_close_ int fd = -1;

        int got = rendezvous_receive(r->worker.socket, MSG_DONTWAIT, &m, &fd);
        if (got < 0 && errno == EAGAIN)
                return;
        if (got == 1 && r->in_flight && m.id == r->last_id) {
                r->worker.answered = true;
                finish(r, &m, fd);
        } else if (r->in_flight) {
                fail_in_flight(r, CAIRN_ERR_PEER, "the rendezvous process died; it is replaced");
        } else {
                worker_end(&r->worker);
        }
}

/* ---- sending ---- */

static void send_message(struct rendezvous *r, struct rendezvous_message *m, const void *payload,
                         size_t bytes) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_close_ int fd = -1;
        uint64_t at = now();

        r->in_flight = true;
        m->id = ++r->last_id;
        m->deadline_ns = m->deadline_ns < at + CALL_NS ? m->deadline_ns : at + CALL_NS;
        r->kill_ns = at + CALL_NS + KILL_NS;
        m->has_payload = payload != NULL;
        if (payload && (fd = rendezvous_payload(payload, bytes, &e)) < 0) {
                struct rendezvous_message failed = {.status = e.status, .error = e};
                finish(r, &failed, -1);
        } else if (rendezvous_send(r->worker.socket, MSG_DONTWAIT, m, fd) < 0) {
                fail_in_flight(r, CAIRN_ERR_PEER, "the rendezvous process is gone; it is replaced");
        }
}

static void send_look(struct rendezvous *r) {
        uint64_t at = now();
        struct rendezvous_message m = {.verb = RENDEZVOUS_LOOK, .deadline_ns = UINT64_MAX};

        r->looking = true;
        r->looked_as_member = m.is_member = r->view.standing == RENDEZVOUS_MEMBER;
        m.self = r->self;
        m.renew = m.is_member && at >= r->renew_ns;
        if (m.renew)
                r->renew_ns = at + RENDEZVOUS_RENEW_NS;
        bool seed = r->to_seed && r->packed;
        r->to_seed = false;
        send_message(r, &m, seed ? r->packed : NULL, r->packed_bytes);
}

/* What needs no child to be refused. True: it was. */
static bool refuse_request(struct rendezvous *r, struct request *q) {
        enum rendezvous_standing standing = r->view.standing;
        struct cairn_error e = CAIRN_ERROR_INIT;
        const char *name = verb_name(q->message.verb);

        if (q->message.verb == RENDEZVOUS_JOIN) {
                if (q->message.self.nonce == r->gone_nonce)
                        (void) error_set(&e, CAIRN_ERR_STALE, name, q->message.self.node,
                                         "this membership has ended; join with another nonce");
                else if (standing == RENDEZVOUS_MEMBER &&
                         (q->message.self.nonce != r->self.nonce ||
                          strcmp(q->message.self.node, r->self.node) != 0))
                        (void) error_set(&e, CAIRN_ERR_API, name, q->message.self.node,
                                         "this agent is a member as %s already; leave first",
                                         r->self.node);
        } else if (standing == RENDEZVOUS_LOST && q->message.verb != RENDEZVOUS_LEAVE) {
                (void) rendezvous_refuse_lost(&r->self, &e);
        } else if (standing == RENDEZVOUS_OUTSIDE) {
                (void) error_set(&e, CAIRN_ERR_API, name, r->place.run,
                                 "this agent is no member; join first");
        }
        if (e.status < 0)
                answer(r, q, &e, NULL, 0);
        return e.status < 0;
}

static void send_request(struct rendezvous *r, struct request *q) {
        r->looking = false;
        r->current = q;
        if (q->message.verb != RENDEZVOUS_JOIN)
                q->message.self = r->self;
        q->message.deadline_ns = q->deadline_ns;
        send_message(r, &q->message, q->payload, q->payload_bytes);
}

static struct request *next_request(struct rendezvous *r, uint64_t at) {
        struct request *q = r->requests;

        while (q && (q->settled || q->not_before_ns > at))
                q = q->next;
        return q;
}

static int spawn(void *context, const char *object, int *ret_socket, int *ret_pidfd,
                 struct cairn_error *reterr) {
        const struct rendezvous_place *p = context;
        const char *const arguments[] = {"cairnd", "--rendezvous-process",
                                         p->url,   p->path,
                                         p->run,   p->create_store ? "create" : "open",
                                         NULL};
        return worker_spawn_self(arguments, "rendezvous process", object, ret_socket, ret_pidfd,
                                 reterr);
}

static bool has_child(struct rendezvous *r) {
        struct rendezvous_message m = {.error = CAIRN_ERROR_INIT};
        struct worker *w = &r->worker;

        if (w->pidfd >= 0)
                return true;
        if (w->respawn_ns > now())
                return false;
        r->to_seed = true;
        r->look_ns = 0; /* the seed comes first */
        m.status = worker_begin(w, spawn, &r->place, &m.error);
        if (m.status < 0) /* the next try is the worker's to time */
                looked(r, &m, -1);
        return m.status == 0;
}

static void pump(struct rendezvous *r) {
        while (!r->in_flight && has_child(r)) {
                uint64_t at = now();
                struct request *q = r->look_ns <= at ? NULL : next_request(r, at);
                if (r->look_ns <= at)
                        send_look(r);
                else if (q && !refuse_request(r, q))
                        send_request(r, q);
                else if (!q)
                        break;
        }
}

static void set_wake(struct rendezvous *r) {
        uint64_t at = r->in_flight          ? r->kill_ns
                      : r->worker.pidfd < 0 ? r->worker.respawn_ns
                                            : r->look_ns;

        for (const struct request *q = r->requests; q; q = q->next) {
                at = q->deadline_ns < at ? q->deadline_ns : at;
                if (!r->in_flight && !q->settled && q->not_before_ns < at)
                        at = q->not_before_ns;
        }
        worker_wake(&r->worker, at);
}

void rendezvous_dispatch(struct rendezvous *r) {
        worker_heard(&r->worker);
        if (r->worker.pidfd >= 0)
                receive(r);
        if (r->in_flight && now() >= r->kill_ns)
                fail_in_flight(r, CAIRN_ERR_TIMEOUT,
                               "the storage did not answer in time and the rendezvous process was "
                               "killed; it is replaced");
        answer_due(r, false);
        pump(r);
        set_wake(r);
        if (r->dirty) {
                r->dirty = false;
                r->changed(r->context);
        }
}

/* ---- the object ---- */

int rendezvous_new(const struct rendezvous_place *place, rendezvous_changed_fn changed,
                   void *context, struct rendezvous **ret, struct cairn_error *reterr) {
        struct rendezvous *r = calloc(1, sizeof *r);

        if (!r)
                return error_set_errno(reterr, ENOMEM, "open rendezvous", place->url);
        r->place = *place;
        r->changed = changed;
        r->context = context;
        r->view.error = (struct cairn_error) CAIRN_ERROR_INIT;
        int status = worker_init(&r->worker, "rendezvous process", r->place.url, reterr);
        if (status < 0) {
                free(r);
                return status;
        }
        worker_wake(&r->worker, 0);
        *ret = r;
        return 0;
}

struct rendezvous *rendezvous_free(struct rendezvous *r) {
        if (!r)
                return NULL;
        worker_done(&r->worker);
        while (r->requests) {
                struct request *q = r->requests;
                r->requests = q->next;
                request_free(q);
        }
        free(r->packed);
        free(r);
        return NULL;
}

int rendezvous_fd(const struct rendezvous *r) {
        return r->worker.epoll_fd;
}

const struct rendezvous_view *rendezvous_view(const struct rendezvous *r) {
        return &r->view;
}

/* ---- requests ---- */

static int add(struct rendezvous *r, const struct rendezvous_message *m, const void *payload,
               size_t bytes, uint64_t deadline_ns, rendezvous_done_fn done, void *context,
               struct cairn_error *reterr) {
        struct request **end = &r->requests;

        if (r->request_count == RENDEZVOUS_WAITING_MAX)
                return error_set(reterr, CAIRN_ERR_BUSY, verb_name(m->verb), r->place.url,
                                 "%d requests wait for the rendezvous already",
                                 RENDEZVOUS_WAITING_MAX);
        struct request *q = calloc(1, sizeof *q);
        void *copy = payload && q ? malloc(bytes ? bytes : 1) : NULL;
        if (!q || (payload && !copy)) {
                free(q);
                return error_set_errno(reterr, ENOMEM, verb_name(m->verb), r->place.url);
        }
        if (bytes > 0)
                memcpy(copy, payload, bytes);
        *q = (struct request){.message = *m,
                              .payload = copy,
                              .payload_bytes = bytes,
                              .deadline_ns = deadline_ns,
                              .pause_ns = GET_NS_MIN,
                              .last = CAIRN_ERROR_INIT,
                              .done = done,
                              .context = context};
        while (*end)
                end = &(*end)->next;
        *end = q;
        r->request_count++;
        worker_wake(&r->worker, 0);
        return 0;
}

int rendezvous_join(struct rendezvous *r, const struct rendezvous_member *self,
                    uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                    struct cairn_error *reterr) {
        struct rendezvous_message m = {.verb = RENDEZVOUS_JOIN, .self = *self};
        _cleanup_free_ char *text = NULL;
        size_t bytes;

        TRY(rendezvous_check_member(self, reterr));
        TRY(rendezvous_member_text(self, &text, &bytes, reterr)); /* is it UTF-8? */
        return add(r, &m, NULL, 0, deadline_ns, done, context, reterr);
}

int rendezvous_leave(struct rendezvous *r, uint64_t deadline_ns, rendezvous_done_fn done,
                     void *context, struct cairn_error *reterr) {
        struct rendezvous_message m = {.verb = RENDEZVOUS_LEAVE};

        return add(r, &m, NULL, 0, deadline_ns, done, context, reterr);
}

int rendezvous_create(struct rendezvous *r, const struct rendezvous_generation *generation,
                      uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                      struct cairn_error *reterr) {
        struct rendezvous_message m = {.verb = RENDEZVOUS_CREATE, .generation = generation->number};
        struct rendezvous_look look = {.generation = *generation};
        _cleanup_free_ void *packed = NULL;
        uint8_t none[RENDEZVOUS_SECRET_BYTES] = {0};
        size_t bytes;

        TRY(rendezvous_check_generation(generation, reterr));
        if (!rendezvous_find(generation->members, generation->member_count, r->self.node,
                             r->self.nonce))
                return error_set(reterr, CAIRN_ERR_API, verb_name(m.verb), r->self.node,
                                 "who creates a generation leads it, and is one of its members");
        memcpy(look.generation.leader, r->self.node, sizeof r->self.node);
        look.generation.leader_nonce = r->self.nonce;
        if (memcmp(look.generation.secret, none, sizeof none) == 0 &&
            getrandom(look.generation.secret, sizeof look.generation.secret, 0) !=
                    (ssize_t) sizeof look.generation.secret)
                return error_set_errno(reterr, errno, verb_name(m.verb), "secret");
        TRY(rendezvous_pack(&look, &packed, &bytes, reterr));
        return add(r, &m, packed, bytes, deadline_ns, done, context, reterr);
}

int rendezvous_put(struct rendezvous *r, uint64_t generation, const char *key, const void *value,
                   size_t bytes, uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                   struct cairn_error *reterr) {
        struct rendezvous_message m = {.verb = RENDEZVOUS_PUT, .generation = generation};

        TRY(rendezvous_check_name(key, "check key", reterr));
        if (bytes > RENDEZVOUS_VALUE_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, verb_name(m.verb), key,
                                 "a value has at most %d bytes, this one %zu",
                                 (int) RENDEZVOUS_VALUE_BYTES_MAX, bytes);
        memcpy(m.key, key, strlen(key) + 1);
        return add(r, &m, bytes ? value : "", bytes, deadline_ns, done, context, reterr);
}

int rendezvous_get(struct rendezvous *r, uint64_t generation, const char *key, uint64_t deadline_ns,
                   rendezvous_done_fn done, void *context, struct cairn_error *reterr) {
        struct rendezvous_message m = {.verb = RENDEZVOUS_GET, .generation = generation};

        TRY(rendezvous_check_name(key, "check key", reterr));
        memcpy(m.key, key, strlen(key) + 1);
        return add(r, &m, NULL, 0, deadline_ns, done, context, reterr);
}
