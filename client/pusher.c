/* SPDX-License-Identifier: Apache-2.0 */
#include "client/pusher.h"
#include "base/cleanup.h"
#include "device/chunks.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define PROBE_BYTES_MAX (64 * MiB)
#define STRAGGLER_NS NSEC_PER_SEC
enum { STRAGGLER_TRIES = 3 };
/* How often a pending end is looked at. */
#define LOOK_NS_MIN (20 * NSEC_PER_MSEC / 1000)
#define LOOK_NS_MAX NSEC_PER_MSEC

static bool stopping(const struct pusher *p) {
        return atomic_load_explicit(&p->stop, memory_order_acquire);
}

/* ---- staging ---- */

static void forget_staging(struct pusher *p) {
        if (p->staging && !p->adrift) {
                if (p->staging_locked)
                        (void) p->device->ops->host_unregister(p->device, p->staging, NULL);
                (void) munmap(p->staging, p->staging_bytes);
        }
        p->staging = NULL;
        p->staging_locked = false;
}

/* Once a session: whoever reads it knows what makes copies slow. */
static void warn_unlocked(struct pusher *p, const struct cairn_error *e) {
        if (!p->warning[0])
                (void) snprintf(p->warning, sizeof p->warning,
                                "staging is not page-locked, copies are slower: %.90s", e->message);
}

static int map_staging(struct pusher *p, int fd, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct stat st;
        uint64_t bytes;
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "map staging", "memfd",
                                 "the order came without it");
        if (p->staging && st.st_ino == p->staging_inode)
                return 0;
        forget_staging(p);
        if (p->adrift)
                return error_set(reterr, CAIRN_ERR_DEVICE, "map staging", "memfd",
                                 "copies of this process to the one before have never ended");
        TRY(wire_memfd_check(fd, F_SEAL_SHRINK | F_SEAL_GROW, 1, UINT64_MAX, &bytes, reterr));
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return error_set_errno(reterr, errno, "map staging", "memfd");
        (void) madvise(base, bytes, MADV_DONTFORK);
        (void) madvise(base, bytes, MADV_HUGEPAGE);
        p->staging = base;
        p->staging_bytes = bytes;
        p->staging_inode = st.st_ino; /* nobody else has it while it is mapped */
        p->staging_locked = p->device->ops->host_register(p->device, base, bytes, &e) == 0;
        if (!p->staging_locked)
                warn_unlocked(p, &e);
        return 0;
}

/* ---- copying ---- */

struct order {
        struct pusher *p;
        const struct push_plan *plan;
        struct cut_word mine;
        bool claimed; /* of a claim, which may be revoked */
};

static int look(void *context, uint64_t arrived_bytes, struct cairn_error *reterr) {
        const struct order *o = context;
        (void) arrived_bytes;
        if (stopping(o->p))
                return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                                 "the trainer closed its session");
        if (o->claimed && !cut_copy_continue(o->p->parts.page, o->mine))
                return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                                 "its claim was revoked: the trainer went on, or its saver ended");
        return 0;
}

static uint64_t chunk_deadline(const struct pusher *p) {
        return clock_now(p->parts.clock) + p->parts.chunk_ns;
}

static int queue_all(struct order *o, struct chunks *c, uint64_t limit_bytes,
                     struct cairn_error *reterr) {
        const struct push_plan *plan = o->plan;
        TRY(look(o, 0, reterr));
        for (size_t i = 0; i < plan->count && limit_bytes > 0; i++) {
                const struct push_item *item = &plan->items[i];
                uint64_t n = item->bytes < limit_bytes ? item->bytes : limit_bytes;
                TRY(chunks_copy(c, o->p->staging + item->offset, item->source, n,
                                chunk_deadline(o->p), reterr));
                limit_bytes -= n;
        }
        return 0;
}

/* After a failure: until none of its copies is under way. What the driver keeps has ended them;
 * any other error may have come from elsewhere. */
static void await_stragglers(struct pusher *p) {
        for (int tries = 0; tries < STRAGGLER_TRIES;) {
                uint64_t deadline_ns = clock_now(p->parts.clock) + STRAGGLER_NS;
                int r = p->device->ops->synchronize(p->device, deadline_ns, NULL);
                if (r == 0)
                        return;
                if (r != CAIRN_ERR_TIMEOUT)
                        tries++;
                else if (stopping(p)) {
                        p->adrift = true;
                        return;
                }
        }
}

static int copy(struct order *o, uint64_t limit_bytes, uint64_t *ret_bytes,
                struct cairn_error *reterr) {
        struct pusher *p = o->p;
        struct chunks c;
        if (p->staging_bytes < o->plan->image_bytes)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "copy the state", "",
                                 "staging is smaller than the image");
        chunks_init(&c, p->device, NULL, p->parts.chunk_bytes, look, o);
        int r = queue_all(o, &c, limit_bytes, reterr);
        if (r == 0)
                r = chunks_end(&c, chunk_deadline(p), reterr);
        if (r < 0)
                await_stragglers(p);
        *ret_bytes = c.arrived_bytes;
        if (!p->adrift)
                chunks_done(&c);
        return r;
}

/* ---- orders ---- */

static const struct push_plan *borrow_plan(struct pusher *p) {
        (void) pthread_mutex_lock(&p->lock);
        p->used = p->plan;
        const struct push_plan *plan = p->used;
        (void) pthread_mutex_unlock(&p->lock);
        return plan;
}

static void return_plan(struct pusher *p) {
        (void) pthread_mutex_lock(&p->lock);
        if (p->used != p->plan)
                push_plan_free(p->used);
        p->used = NULL;
        (void) pthread_mutex_unlock(&p->lock);
}

void pusher_take_plan(struct pusher *p, struct push_plan *plan) {
        (void) pthread_mutex_lock(&p->lock);
        if (p->plan != p->used)
                push_plan_free(p->plan);
        p->plan = plan;
        (void) pthread_mutex_unlock(&p->lock);
}

static int carry_out(struct pusher *p, const struct push_packet *in, int fd,
                     struct push_packet *done, struct cairn_error *reterr) {
        const struct push_plan *plan = borrow_plan(p);
        struct order o = {.p = p,
                          .plan = plan,
                          .mine = {in->seq, in->attempt, CUT_COPYING},
                          .claimed = in->verb == PUSH_COPY};
        int r;
        if (!plan || plan->seal != in->seal)
                r = error_set(reterr, CAIRN_ERR_STALE, "copy the state", "",
                              "the trainer sealed again");
        else
                r = map_staging(p, fd, reterr);
        if (r == 0) {
                uint64_t begin_ns = clock_now(p->parts.clock);
                r = copy(&o, o.claimed ? UINT64_MAX : PROBE_BYTES_MAX, &done->bytes, reterr);
                done->copy_ns = clock_now(p->parts.clock) - begin_ns;
        }
        return_plan(p);
        return r;
}

static void serve(struct pusher *p) {
        struct push_packet in;
        _cleanup_close_ int fd = -1;
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (push_receive(p->socket, &in, &fd) < 0 ||
            (in.verb != PUSH_COPY && in.verb != PUSH_PROBE))
                return;
        struct push_packet done = {.verb = PUSH_DONE, .order = in.order, .seal = in.seal};
        done.status = carry_out(p, &in, fd, &done, &e);
        if (p->adrift)
                return; /* never done */
        done.final = done.status < 0 && device_error_is_final(&e);
        (void) snprintf(done.text, sizeof done.text, "%.255s",
                        done.status < 0 ? e.message : p->warning);
        (void) push_send(p->socket, &done, -1); /* a saver that does not read is gone */
}

/* ---- the thread ---- */

static void *pusher_main(void *argument) {
        struct pusher *p = argument;
        uint64_t pause_ns = LOOK_NS_MIN;
        while (!stopping(p)) {
                struct pollfd fds[] = {{.fd = p->wake_fd, .events = POLLIN},
                                       {.fd = p->socket, .events = POLLIN}};
                bool pending = p->parts.stream && stream_look(p->parts.stream) == CAIRN_ERR_BUSY;
                struct timespec pause = {.tv_nsec = (long) pause_ns};
                uint64_t count;
                (void) ppoll(fds, 2, pending ? &pause : NULL, NULL);
                if (fds[0].revents) {
                        (void) !read(p->wake_fd, &count, sizeof count);
                        pause_ns = LOOK_NS_MIN;
                } else if (pause_ns < LOOK_NS_MAX)
                        pause_ns *= 2;
                if (fds[1].revents)
                        serve(p);
        }
        return NULL;
}

void pusher_wake(struct pusher *p) {
        uint64_t one = 1;
        if (p->started)
                (void) !write(p->wake_fd, &one, sizeof one); /* full: it is awake */
}

int pusher_saver_end(const struct pusher *p) {
        return fcntl(p->saver_socket, F_DUPFD_CLOEXEC, 3);
}

static int start_thread(struct pusher *p, struct cairn_error *reterr) {
        sigset_t all, before;
        /* The trainer's signals are the trainer's. */
        (void) sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        int r = pthread_create(&p->thread, NULL, pusher_main, p);
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0)
                return error_set_errno(reterr, r, "start copying thread", "");
        (void) pthread_setname_np(p->thread, "cairn-push");
        p->started = true;
        return 0;
}

int pusher_start(struct pusher *p, const struct pusher_parts *parts, struct cairn_error *reterr) {
        int pair[2];
        if (p->started)
                return 0;
        *p = (struct pusher){.parts = *parts, .socket = -1, .saver_socket = -1};
        if (!p->parts.chunk_bytes)
                p->parts.chunk_bytes = CHUNK_BYTES;
        if (!p->parts.chunk_ns)
                p->parts.chunk_ns = PUSHER_CHUNK_NS;
        (void) pthread_mutex_init(&p->lock, NULL);
        p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        int r = p->wake_fd < 0 ? error_set_errno(reterr, errno, "start copying thread", "") : 0;
        if (r == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                r = error_set_errno(reterr, errno, "start copying thread", "");
        else if (r == 0) {
                p->socket = pair[0];
                p->saver_socket = pair[1];
                r = parts->ops->open(parts->ordinal, &p->device, reterr);
        }
        if (r == 0)
                r = start_thread(p, reterr);
        if (r < 0)
                pusher_done(p);
        return r;
}

void pusher_done(struct pusher *p) {
        if (!p->parts.ops)
                return;
        if (p->started) {
                atomic_store_explicit(&p->stop, true, memory_order_release);
                pusher_wake(p);
                (void) pthread_join(p->thread, NULL);
        }
        if (p->device) {
                forget_staging(p);
                if (!p->adrift)
                        p->device->ops->close(p->device);
        }
        push_plan_free(p->plan);
        cleanup_close(&p->wake_fd);
        cleanup_close(&p->socket);
        cleanup_close(&p->saver_socket);
        (void) pthread_mutex_destroy(&p->lock);
        *p = (struct pusher){0};
}
