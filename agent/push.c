/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/push.h"
#include "format/push.h"
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROBE_NS (20 * NSEC_PER_SEC)
#define LOOK_MS 10 /* how soon an order of the agent's is seen */

static void close_fd(int *fd) {
        if (*fd >= 0)
                (void) close(*fd);
        *fd = -1;
}

void push_done(struct push *p) {
        close_fd(&p->socket);
        close_fd(&p->trainer);
        close_fd(&p->staging_fd);
}

void push_seal(struct push *p, int socket, int trainer, int staging_fd) {
        struct stat st = {0};
        push_done(p);
        p->socket = socket;
        p->trainer = trainer;
        p->staging_fd = staging_fd;
        if (staging_fd < 0 || fstat(staging_fd, &st) < 0 || st.st_ino != p->staging_inode)
                p->lent = false; /* that was another memory */
        p->staging_inode = st.st_ino;
}

bool push_trainer_copies(const struct push *p) {
        return p->socket >= 0;
}

static bool trainer_is_dead(const struct push *p) {
        struct pollfd f = {.fd = p->trainer, .events = POLLIN};
        return poll(&f, 1, 0) > 0;
}

/* True once the order is answered: *done. */
static bool hear(struct push *p, struct push_packet *done) {
        int fd, r;
        while ((r = push_receive(p->socket, done, &fd)) != CAIRN_ERR_BUSY) {
                close_fd(&fd);
                if (r == CAIRN_ERR_PEER) {
                        /* It closed its session, after its copies; or it is dead. */
                        p->lent = false;
                        p->lost = true;
                        return false;
                }
                if (r < 0 || done->verb != PUSH_DONE || done->order != p->order)
                        continue; /* of an order of a former saver's */
                p->lent = false;
                p->lost = p->lost || done->final;
                return true;
        }
        return false;
}

void push_hear(struct push *p) {
        struct push_packet done;
        (void) hear(p, &done);
}

bool push_is_lent(const struct push *p) {
        return p->lent && !trainer_is_dead(p);
}

static int gone(struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                         "the trainer, which copies it, is gone");
}

static int order(struct push *p, struct push_packet *o, struct cairn_error *reterr) {
        o->order = p->order = clock_now(&clock_system);
        if (push_send(p->socket, o, p->staging_fd) < 0)
                return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                                 "the trainer, which copies it, takes no orders");
        p->lent = true;
        return 0;
}

/* A look at both; false: nothing came within LOOK_MS. */
static bool wait_done(struct push *p, struct push_packet *done) {
        struct pollfd fds[] = {{.fd = p->socket, .events = POLLIN},
                               {.fd = p->trainer, .events = POLLIN}};
        (void) poll(fds, 2, LOOK_MS);
        return fds[0].revents && hear(p, done);
}

static int outcome(const struct push_packet *done, struct cairn_error *reterr) {
        if (done->status >= 0)
                return 0;
        return error_set(reterr, done->status == CAIRN_ERR_STALE ? CAIRN_ERR_STALE : CAIRN_ERR_VOID,
                         "copy the state", "", "%s: %s", status_name(done->status), done->text);
}

/* The seal goes well all the same. */
static uint64_t warn(struct cairn_error *reterr, const char *text) {
        (void) error_set(reterr, CAIRN_ERR_UNSUPPORTED, "copy the state", "", "%s", text);
        return 0;
}

uint64_t push_probe(struct push *p, uint64_t seal, const struct clock_ops *clock,
                    struct cairn_error *reterr) {
        struct push_packet o = {.verb = PUSH_PROBE, .seal = seal}, done;
        uint64_t deadline_ns = clock_now(clock) + PROBE_NS;
        if (push_is_lent(p) || trainer_is_dead(p) || order(p, &o, reterr) < 0)
                return 0;
        while (!wait_done(p, &done)) {
                if (p->lost || trainer_is_dead(p))
                        return 0;
                if (clock_now(clock) >= deadline_ns)
                        return warn(reterr, "the trainer has not copied a sample of it in time");
        }
        if (outcome(&done, reterr) < 0)
                return 0;
        if (done.text[0])
                (void) warn(reterr, done.text);
        return (uint64_t) ((__uint128_t) done.bytes * NSEC_PER_SEC /
                           (done.copy_ns ? done.copy_ns : 1));
}

int push_copy(struct push *p, const struct control_page *page, uint64_t seal,
              const struct copied *copied, bool (*given_up)(void *context), void *context,
              struct cairn_error *reterr) {
        struct push_packet o = {.verb = PUSH_COPY,
                                .seal = seal,
                                .seq = copied->word.seq,
                                .attempt = copied->word.attempt};
        struct push_packet done;
        TRY(order(p, &o, reterr));
        uint64_t progress = atomic_load(&page->progress), still_ns = clock_now(&clock_system);
        while (!wait_done(p, &done)) {
                uint64_t now_ns = clock_now(&clock_system), seen = atomic_load(&page->progress);
                if (p->lost || trainer_is_dead(p)) {
                        p->lent = false;
                        return gone(reterr);
                }
                if (given_up(context))
                        return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                                         "its checkpoint was given up");
                if (seen != progress)
                        still_ns = now_ns;
                progress = seen;
                if (now_ns - still_ns >= p->still_ns)
                        return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                                         "the trainer has not copied anything for %d s",
                                         (int) (p->still_ns / NSEC_PER_SEC));
        }
        return outcome(&done, reterr);
}
