/* SPDX-License-Identifier: Apache-2.0 */
#include "client/link.h"
#include "base/cleanup.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

/* An agent that restarts settles nothing for a living session; it answers at once. */
#define REATTACH_HELLO_NS (5 * NSEC_PER_SEC)
#define REATTACH_SEAL_NS (30 * NSEC_PER_SEC)
/* After a refusal that may pass. */
#define REFUSED_RETRY_NS (1 * NSEC_PER_SEC)
#define TELL_NS (1 * NSEC_PER_SEC)

int link_init(struct link *l, const struct clock_ops *clock, struct cairn_error *reterr) {
        pthread_condattr_t attributes;
        *l = (struct link){
                .clock = clock,
                .wake_fd = -1,
                .pid_fd = -1,
                .page_fd = -1,
                .ring_fd = -1,
                .reattaching = -1,
                .seal = {.inventory_fd = -1, .host_fd = -1, .push_fd = -1},
                .error = CAIRN_ERROR_INIT,
                .seal_error = CAIRN_ERROR_INIT,
        };
        (void) pthread_mutex_init(&l->lock, NULL);
        (void) pthread_condattr_init(&attributes);
        (void) pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        (void) pthread_cond_init(&l->changed, &attributes);
        (void) pthread_condattr_destroy(&attributes);
        control_init(&l->control, clock);
        l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (l->wake_fd < 0)
                return error_set_errno(reterr, errno, "start helper thread", "eventfd");
        return 0;
}

static void close_fd(int *fd) {
        if (*fd >= 0)
                (void) close(*fd);
        *fd = -1;
}

static void close_seal(struct link_seal *seal) {
        close_fd(&seal->inventory_fd);
        close_fd(&seal->host_fd);
        close_fd(&seal->push_fd);
}

static void link_wake(struct link *l) {
        uint64_t one = 1;
        ssize_t n = write(l->wake_fd, &one, sizeof one);
        (void) n; /* full means that it is ringing already */
}

void link_done(struct link *l) {
        if (l->started) {
                (void) pthread_mutex_lock(&l->lock);
                l->stop = true;
                l->state = LINK_ENDED;
                if (l->reattaching >= 0)
                        (void) shutdown(l->reattaching, SHUT_RDWR);
                (void) pthread_mutex_unlock(&l->lock);
                link_wake(l);
                (void) pthread_join(l->thread, NULL);
                l->started = false;
        }
        control_done(&l->control);
        close_fd(&l->wake_fd);
        close_fd(&l->pid_fd);
        close_fd(&l->page_fd);
        close_fd(&l->ring_fd);
        close_seal(&l->seal);
        for (uint32_t i = 0; i < l->slab_count; i++)
                close_fd(&l->slab_fds[i]);
        kept_done(&l->kept);
        (void) pthread_cond_destroy(&l->changed);
        (void) pthread_mutex_destroy(&l->lock);
}

/* ---- handing over ---- */

/* What one hand-over sends: a copy of the descriptors' numbers, so that the helper needs no lock
 * meanwhile. */
struct handover {
        int slab_fds[SLAB_COUNT_MAX];
        uint64_t slab_bytes[SLAB_COUNT_MAX];
        uint32_t slab_kinds[SLAB_COUNT_MAX];
        uint32_t slab_first, slab_count;
        struct link_seal seal;
        struct kept_value *kept; /* a copy */
};

static void handover_fill(struct handover *h, const struct link *l, uint32_t slab_first) {
        memcpy(h->slab_fds, l->slab_fds, sizeof h->slab_fds);
        memcpy(h->slab_bytes, l->slab_bytes, sizeof h->slab_bytes);
        memcpy(h->slab_kinds, l->slab_kinds, sizeof h->slab_kinds);
        h->slab_first = slab_first;
        h->slab_count = l->slab_count;
        h->seal = l->seal;
        h->kept = NULL;
}

static void fill_put(Cairn__Control__Envelope *e, Cairn__Control__ExchangePut *m,
                     const struct kept_value *v) {
        m->key = (ProtobufCBinaryData){v->key_bytes, (uint8_t *) (uintptr_t) v->bytes};
        m->value = (ProtobufCBinaryData){v->value_bytes, (uint8_t *) (uintptr_t) kept_bytes(v)};
        CONTROL_SET(e, EXCHANGE_PUT, exchange_put, m);
}

static int handover_kept(const struct handover *h, struct control *c, uint64_t deadline_ns,
                         struct cairn_error *reterr) {
        for (const struct kept_value *v = h->kept; v; v = v->next) {
                Cairn__Control__ExchangePut put = CAIRN__CONTROL__EXCHANGE_PUT__INIT;
                Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
                fill_put(&e, &put, v);
                TRY(control_tell(c, &e, NULL, 0, deadline_ns, reterr));
        }
        return 0;
}

static int handover_slabs(struct handover *h, struct control *c, uint64_t deadline_ns,
                          struct cairn_error *reterr) {
        for (uint32_t i = h->slab_first; i < h->slab_count; i += LINK_SLABS_PER_BATCH) {
                uint32_t n = h->slab_count - i;
                if (n > LINK_SLABS_PER_BATCH)
                        n = LINK_SLABS_PER_BATCH;
                Cairn__Control__SlabBatch batch = CAIRN__CONTROL__SLAB_BATCH__INIT;
                Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
                batch.first_slab = i;
                batch.n_bytes = n;
                batch.bytes = &h->slab_bytes[i];
                batch.n_kind = n;
                batch.kind = &h->slab_kinds[i];
                CONTROL_SET(&e, SLAB_BATCH, slab_batch, &batch);
                TRY(control_tell(c, &e, &h->slab_fds[i], n, deadline_ns, reterr));
        }
        return 0;
}

/* Slabs, then the seal that needs them. *ret_gate_ns stays where there is no seal yet. */
static int handover_run(struct handover *h, struct control *c, uint64_t deadline_ns,
                        uint64_t *ret_gate_ns, struct cairn_error *reterr) {
        if (h->seal.number == 0)
                return 0;
        TRY(handover_slabs(h, c, deadline_ns, reterr));
        Cairn__Control__Seal seal = CAIRN__CONTROL__SEAL__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        int fds[] = {h->seal.inventory_fd, h->seal.host_fd, h->seal.push_fd};
        size_t fd_count = h->seal.push_fd < 0 ? 2 : 3;
        seal.seal = h->seal.number;
        seal.tensor_count = h->seal.tensor_count;
        seal.bytes = h->seal.bytes;
        seal.elsewhere = h->seal.elsewhere;
        seal.device_uuid.data = h->seal.device_uuid;
        seal.device_uuid.len = h->seal.device_uuid_bytes;
        CONTROL_SET(&e, SEAL, seal, &seal);
        TRY(control_call(c, &e, fds, fd_count, CONTROL_REPLY(SEALED), deadline_ns, &reply, NULL,
                         reterr));
        if (reply->sealed->seal != h->seal.number)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "seal", "",
                                 "the agent answered for seal %" PRIu64 " instead of %" PRIu64,
                                 reply->sealed->seal, h->seal.number);
        *ret_gate_ns = reply->sealed->gate_deadline_ns;
        return 0;
}

/* ---- the helper thread ---- */

static bool is_final(int status) {
        return status == CAIRN_ERR_STALE || status == CAIRN_ERR_FINISHED;
}

/* A new agent made a new eventfd: put it behind the number that the trainer rings. */
static void adopt_ring(struct link *l, struct wire_fds *fds) {
        if (fds->count >= 2)
                (void) dup3(fds->fds[1], l->ring_fd, O_CLOEXEC);
}

static int reattach(struct link *l, struct control *c, struct handover *h, uint64_t *ret_gate_ns,
                    int *ret_seal_status, struct cairn_error *reterr) {
        struct link_identity *id = &l->identity; /* constant after link_start */
        struct wire_fds received = WIRE_FDS_INIT;
        Cairn__Control__Hello hello = CAIRN__CONTROL__HELLO__INIT;
        Cairn__Control__Welcome *welcome;
        int fds[] = {l->pid_fd, l->page_fd};

        TRY(control_connect(c, id->path, reterr));
        /* So that link_done can end the conversation. */
        (void) pthread_mutex_lock(&l->lock);
        l->reattaching = l->stop ? -1 : c->socket;
        bool stop = l->stop;
        (void) pthread_mutex_unlock(&l->lock);
        if (stop)
                return error_set(reterr, CAIRN_ERR_PEER, "reattach to the agent", id->run,
                                 "closed");
        hello.kind = CAIRN__CONTROL__PEER_KIND__PEER_CLIENT;
        hello.run = (ProtobufCBinaryData){strlen(id->run), (uint8_t *) id->run};
        hello.rank = id->rank;
        hello.session_id = id->session_id;
        hello.secret = (ProtobufCBinaryData){id->secret_bytes, id->secret};
        hello.generation = id->generation;
        TRY(control_hello(c, &hello, fds, 2, clock_now(l->clock) + REATTACH_HELLO_NS, &welcome,
                          &received, reterr));
        if (!welcome->reattached || welcome->session_id != id->session_id) {
                wire_fds_done(&received);
                return error_set(reterr, CAIRN_ERR_STALE, "reattach to the agent", id->run,
                                 "it does not know this session any more");
        }
        adopt_ring(l, &received);
        wire_fds_done(&received);
        TRY(handover_kept(h, c, clock_now(l->clock) + REATTACH_HELLO_NS, reterr));
        int r = handover_run(h, c, clock_now(l->clock) + REATTACH_SEAL_NS, ret_gate_ns, reterr);
        if (r == CAIRN_ERR_PEER || r == CAIRN_ERR_TIMEOUT || r == CAIRN_ERR_CORRUPT || is_final(r))
                return r;
        /* Attached, but the agent refused the seal: cuts are declined, the connection is good. */
        *ret_seal_status = r;
        return 0;
}

static int duplicate(int fd) {
        return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

/* Called with the lock held and state DOWN; releases it while it talks. Returns how long to pause.
 */
static uint64_t try_reattach(struct link *l) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct control fresh;
        struct handover h;
        uint64_t gate_ns = l->gate_deadline_ns;
        int seal_status = 0;

        handover_fill(&h, l, 0);
        if (!kept_copy(l->kept, &h.kept))
                return REFUSED_RETRY_NS;
        /* The API thread may replace the seal meanwhile. */
        _cleanup_close_ int inventory_fd = duplicate(l->seal.inventory_fd);
        _cleanup_close_ int host_fd = duplicate(l->seal.host_fd);
        _cleanup_close_ int push_fd = duplicate(l->seal.push_fd);
        h.seal.inventory_fd = inventory_fd;
        h.seal.host_fd = host_fd;
        h.seal.push_fd = push_fd;
        (void) pthread_mutex_unlock(&l->lock);
        control_init(&fresh, l->clock);
        int r = reattach(l, &fresh, &h, &gate_ns, &seal_status, &error);
        kept_done(&h.kept);
        (void) pthread_mutex_lock(&l->lock);
        l->reattaching = -1;
        if (l->state != LINK_DOWN || r < 0) {
                if (l->state == LINK_DOWN) {
                        l->error = error;
                        if (is_final(r))
                                l->state = LINK_FENCED;
                }
                control_done(&fresh);
                (void) pthread_cond_broadcast(&l->changed);
                return r == CAIRN_ERR_UNREACHABLE || r == CAIRN_ERR_PEER ? LINK_RETRY_NS
                                                                         : REFUSED_RETRY_NS;
        }
        l->control.socket = TAKE_FD(fresh.socket);
        control_done(&fresh);
        l->slab_sent = h.seal.number ? h.slab_count : 0;
        /* A seal that was replaced meanwhile is handed over by its own link_seal. */
        l->sealed_number = seal_status == 0 ? h.seal.number : 0;
        l->gate_deadline_ns = gate_ns;
        l->seal_error = error;
        l->seal_error.status = seal_status;
        l->state = LINK_UP;
        l->up_ns = clock_now(l->clock);
        atomic_fetch_add_explicit(&l->reattached, 1, memory_order_relaxed);
        (void) pthread_cond_broadcast(&l->changed);
        return 0;
}

static void go_down(struct link *l, const struct cairn_error *why) {
        uint64_t now_ns = clock_now(l->clock);
        control_close(&l->control);
        l->error = *why;
        if (l->state == LINK_UP) {
                l->state = LINK_DOWN;
                l->pause_ns = now_ns - l->up_ns >= LINK_STEADY_NS ? 0
                              : l->pause_ns                       ? 2 * l->pause_ns
                                                                  : LINK_RETRY_NS;
                if (l->pause_ns > LINK_RETRY_NS_MAX)
                        l->pause_ns = LINK_RETRY_NS_MAX;
                l->retry_ns = now_ns + l->pause_ns;
        }
        (void) pthread_cond_broadcast(&l->changed);
        link_wake(l);
}

/* With the lock held and state UP: the socket became readable while nobody asked. */
static void read_unasked(struct link *l) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e;
        struct arena arena;

        /* The reply of the last request may still be read, so its arena is not used. */
        arena_init(&arena, 64 * WIRE_MESSAGE_BYTES_MAX);
        int r = wire_receive(l->control.socket, &arena, &e, &fds, 0, &error);
        if (r == 0)
                wire_fds_done(&fds);
        arena_done(&arena);
        if (r == CAIRN_ERR_PEER || r == CAIRN_ERR_CORRUPT)
                go_down(l, &error);
}

/* Sleep until the socket or a wake, or the pause is over. */
static void helper_sleep(struct link *l, int socket, int timeout_ms) {
        struct pollfd fds[] = {{.fd = l->wake_fd, .events = POLLIN},
                               {.fd = socket, .events = POLLIN}};
        uint64_t count;
        (void) poll(fds, 2, timeout_ms);
        if (fds[0].revents) {
                ssize_t n = read(l->wake_fd, &count, sizeof count);
                (void) n;
        }
}

static void *helper_main(void *argument) {
        struct link *l = argument;
        (void) pthread_mutex_lock(&l->lock);
        while (!l->stop) {
                int socket = -1, timeout_ms = -1;
                if (l->state == LINK_UP) {
                        struct pollfd fd = {.fd = l->control.socket, .events = POLLIN};
                        /* Only the helper reads what nobody waits for: the lock says that nobody
                         * does. */
                        if (poll(&fd, 1, 0) > 0) {
                                read_unasked(l);
                                continue;
                        }
                        socket = l->control.socket;
                } else if (l->state == LINK_DOWN) {
                        uint64_t now_ns = clock_now(l->clock);
                        uint64_t pause_ns =
                                now_ns < l->retry_ns ? l->retry_ns - now_ns : try_reattach(l);
                        if (pause_ns == 0 || l->stop)
                                continue;
                        if (l->state == LINK_DOWN)
                                timeout_ms = (int) (pause_ns / NSEC_PER_MSEC) + 1;
                }
                (void) pthread_mutex_unlock(&l->lock);
                helper_sleep(l, socket, timeout_ms);
                (void) pthread_mutex_lock(&l->lock);
        }
        (void) pthread_mutex_unlock(&l->lock);
        return NULL;
}

int link_start(struct link *l, struct control *control, const struct link_identity *identity,
               int pid_fd, int page_fd, int ring_fd, struct cairn_error *reterr) {
        sigset_t all, before;
        l->control.socket = TAKE_FD(control->socket);
        l->control.next_id = control->next_id;
        l->identity = *identity;
        l->pid_fd = pid_fd;
        l->page_fd = page_fd;
        l->ring_fd = ring_fd;
        l->state = LINK_UP;
        l->up_ns = clock_now(l->clock);
        /* The trainer's signals are the trainer's: the helper inherits the full mask. */
        (void) sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        int r = pthread_create(&l->thread, NULL, helper_main, l);
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0)
                return error_set_errno(reterr, r, "start helper thread", identity->run);
        l->started = true;
        (void) pthread_setname_np(l->thread, "cairn-link");
        return 0;
}

/* ---- the API thread ---- */

/* With the lock held: until there is an agent. */
static int wait_up(struct link *l, uint64_t deadline_ns, struct cairn_error *reterr) {
        struct timespec at = {.tv_sec = (time_t) (deadline_ns / NSEC_PER_SEC),
                              .tv_nsec = (long) (deadline_ns % NSEC_PER_SEC)};
        while (l->state == LINK_DOWN)
                if (pthread_cond_timedwait(&l->changed, &l->lock, &at) == ETIMEDOUT &&
                    l->state == LINK_DOWN)
                        return error_set(reterr, CAIRN_ERR_PEER, "reach the agent", l->identity.run,
                                         "it is gone and did not come back in time: %s",
                                         l->error.message);
        if (l->state == LINK_UP)
                return 0;
        if (reterr)
                *reterr = l->error;
        return l->state == LINK_FENCED ? CAIRN_ERR_STALE : CAIRN_ERR_API;
}

void link_add_slab(struct link *l, int fd, uint64_t bytes, uint32_t kind) {
        (void) pthread_mutex_lock(&l->lock);
        l->slab_fds[l->slab_count] = fd;
        l->slab_bytes[l->slab_count] = bytes;
        l->slab_kinds[l->slab_count] = kind;
        l->slab_count++;
        (void) pthread_mutex_unlock(&l->lock);
}

/* With the lock held. */
static int seal_now(struct link *l, uint64_t deadline_ns, struct cairn_error *reterr) {
        for (;;) {
                struct handover h;
                TRY(wait_up(l, deadline_ns, reterr));
                if (l->sealed_number == l->seal.number)
                        return 0;
                handover_fill(&h, l, l->slab_sent);
                int r = handover_run(&h, &l->control, deadline_ns, &l->gate_deadline_ns, reterr);
                if (r == 0) {
                        l->slab_sent = h.slab_count;
                        l->sealed_number = l->seal.number;
                        return 0;
                }
                if (r != CAIRN_ERR_PEER && r != CAIRN_ERR_CORRUPT) {
                        /* The slabs went out before the seal that was refused. */
                        if (r != CAIRN_ERR_TIMEOUT)
                                l->slab_sent = h.slab_count;
                        return r;
                }
                struct cairn_error none = CAIRN_ERROR_INIT;
                go_down(l, reterr ? reterr : &none);
        }
}

int link_seal(struct link *l, const struct link_seal *seal, uint64_t deadline_ns,
              uint64_t *ret_gate_ns, struct cairn_error *reterr) {
        (void) pthread_mutex_lock(&l->lock);
        close_seal(&l->seal);
        l->seal = *seal;
        l->sealed_number = 0;
        int r = seal_now(l, deadline_ns, reterr);
        if (r == 0)
                *ret_gate_ns = l->gate_deadline_ns;
        (void) pthread_mutex_unlock(&l->lock);
        return r;
}

int link_call(struct link *l, Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
              Cairn__Control__Envelope__BodyCase expected, uint64_t deadline_ns,
              Cairn__Control__Envelope **ret, struct wire_fds *ret_fds,
              struct cairn_error *reterr) {
        (void) pthread_mutex_lock(&l->lock);
        for (;;) {
                struct cairn_error error = CAIRN_ERROR_INIT;
                int r = wait_up(l, deadline_ns, &error);
                if (r == 0) {
                        r = control_call(&l->control, e, fds, fd_count, expected, deadline_ns, ret,
                                         ret_fds, &error);
                        if (r == 0)
                                return 0; /* locked until link_end_call */
                        if (l->control.socket < 0) {
                                go_down(l, &error);
                                if (r == CAIRN_ERR_PEER)
                                        continue;
                        }
                }
                (void) pthread_mutex_unlock(&l->lock);
                if (reterr)
                        *reterr = error;
                return r;
        }
}

void link_end_call(struct link *l) {
        (void) pthread_mutex_unlock(&l->lock);
}

int link_put_value(struct link *l, const char *key, const void *value, uint64_t bytes,
                   uint64_t deadline_ns, struct cairn_error *reterr) {
        Cairn__Control__ExchangePut put = CAIRN__CONTROL__EXCHANGE_PUT__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        struct kept_value *v = kept_new(key, value, bytes);
        if (!v)
                return error_set_errno(reterr, ENOMEM, "put value", key);
        fill_put(&e, &put, v);
        int r = link_call(l, &e, NULL, 0, CONTROL_REPLY(DONE), deadline_ns, &reply, NULL, reterr);
        if (r < 0) {
                free(v);
                return r;
        }
        /* Still locked: no reattachment begins before the value is among those handed over. */
        kept_set(&l->kept, v);
        link_end_call(l);
        return 0;
}

void link_tell(struct link *l, Cairn__Control__Envelope *e) {
        struct cairn_error error = CAIRN_ERROR_INIT;
        (void) pthread_mutex_lock(&l->lock);
        if (l->state == LINK_UP) {
                (void) control_tell(&l->control, e, NULL, 0, clock_now(l->clock) + TELL_NS, &error);
                if (l->control.socket < 0)
                        go_down(l, &error);
        }
        (void) pthread_mutex_unlock(&l->lock);
}

int link_check(struct link *l, struct cairn_error *reterr) {
        int r = 0;
        (void) pthread_mutex_lock(&l->lock);
        if (l->state == LINK_FENCED) {
                r = CAIRN_ERR_STALE;
                if (reterr)
                        *reterr = l->error;
        }
        (void) pthread_mutex_unlock(&l->lock);
        return r;
}
