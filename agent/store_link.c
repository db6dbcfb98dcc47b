/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store_link.h"
#include "agent/worker.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include "format/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { RUNS_MAX = 16 };
#define REOPEN_TIMEOUT_NS (30 * NSEC_PER_SEC)

struct item {
        struct store_message message;
        uint64_t timeout_ns;
        store_link_done done; /* NULL: the link's own */
        void *context;
};
struct started_run {
        char run[RUN_NAME_BYTES_MAX + 1];
        uint64_t generation;
        bool grouped;
        bool to_reopen; /* the present child has not taken its lock yet */
};
struct store_link {
        char path[STORE_PATH_BYTES];
        store_link_spawn spawn;
        void *spawn_context;
        struct worker worker;
        bool in_flight;
        struct item current;
        uint64_t deadline_ns, last_id;
        struct item *queue; /* ring of STORE_LINK_QUEUE_MAX */
        size_t head, count;
        struct started_run runs[RUNS_MAX];
        size_t run_count;
};

/* ---- child ---- */

static int spawn_self(void *context, const char *path, int *ret_socket, int *ret_pidfd,
                      struct cairn_error *reterr) {
        const char *const arguments[] = {"cairnd", "--store-process", path, NULL};
        return worker_spawn_self(arguments, "store process", path, ret_socket, ret_pidfd, reterr);
}

/* One that is stuck in the kernel holds its locks until it ends, and nothing else: its files are
 * never used again. */
static void end_child(struct store_link *link) {
        if (link->worker.pidfd < 0)
                return;
        worker_end(&link->worker);
        for (size_t i = 0; i < link->run_count; i++)
                link->runs[i].to_reopen = true;
}

/* ---- started runs ---- */

static struct started_run *find_run(struct store_link *link, const char *run) {
        for (size_t i = 0; i < link->run_count; i++)
                if (strcmp(link->runs[i].run, run) == 0)
                        return &link->runs[i];
        return NULL;
}

static void forget_run(struct store_link *link, const char *run) {
        struct started_run *r = find_run(link, run);
        if (r)
                *r = link->runs[--link->run_count];
}

static void remember_run(struct store_link *link, const char *run, uint64_t generation,
                         bool grouped) {
        struct started_run *r = find_run(link, run);

        if (!r && link->run_count == RUNS_MAX)
                return; /* the child refuses more than that */
        if (!r)
                r = &link->runs[link->run_count++];
        *r = (struct started_run){.generation = generation, .grouped = grouped};
        (void) snprintf(r->run, sizeof r->run, "%s", run);
}

static void note_reply(struct store_link *link, const struct item *item,
                       const struct store_message *reply) {
        const struct store_message *q = &item->message;

        if (q->verb == STORE_START && reply->status == 0 && !reply->started.finished)
                remember_run(link, q->start.run, reply->generation, q->grouped);
        /* Whether a restart that failed still has the run is the child's knowledge: no longer. */
        if (q->verb == STORE_START && reply->status < 0 && q->start.is_restart)
                forget_run(link, q->start.run);
        if ((q->verb == STORE_REOPEN || q->verb == STORE_SETTLE) && reply->status == 0)
                remember_run(link, q->run, q->generation, q->grouped);
        if (q->verb == STORE_END_RUN ||
            (q->verb == STORE_REOPEN && reply->status == CAIRN_ERR_STALE))
                forget_run(link, q->run);
}

/* ---- answers ---- */

static void drop_fd(struct store_message *m) {
        if (m->has_fd)
                (void) close(m->fd);
        m->has_fd = false;
}

static void answer(struct store_link *link, struct store_message *reply, struct wire_fds *fds) {
        link->in_flight = false;
        drop_fd(&link->current.message);
        note_reply(link, &link->current, reply);
        if (link->current.done)
                link->current.done(link->current.context, reply, fds->fds, fds->count);
        for (size_t i = 0; i < fds->count; i++)
                if (fds->fds[i] >= 0)
                        (void) close(fds->fds[i]);
}

static void answer_error(struct store_link *link, const struct cairn_error *e) {
        struct wire_fds none = WIRE_FDS_INIT;
        struct store_message reply = link->current.message;

        reply.status = e->status;
        reply.error = *e;
        answer(link, &reply, &none);
}

static const char *verb_name(enum store_verb verb) {
        static const char *const names[] = {
                [STORE_START] = "start run",
                [STORE_ATTEMPT_OPEN] = "open attempt",
                [STORE_PUBLISH_MANIFEST] = "publish manifest",
                [STORE_COMMIT] = "commit",
                [STORE_DISCARD] = "discard attempt",
                [STORE_RETAIN] = "apply retention",
                [STORE_FINISHED] = "mark finished",
                [STORE_EXIT] = "write exit record",
                [STORE_RESTORE_OPEN] = "open checkpoint",
                [STORE_RESTORE_FILES] = "open data files",
                [STORE_END_RUN] = "end run",
                [STORE_TAG] = "tag checkpoint",
                [STORE_PIN] = "pin checkpoint",
                [STORE_UNPIN] = "unpin checkpoint",
                [STORE_REOPEN] = "reopen run",
                [STORE_LOOK] = "look at store",
                [STORE_SURVEY] = "survey node",
                [STORE_PARTS] = "read manifests",
                [STORE_COMPOSE] = "merge manifests",
                [STORE_RECORDS] = "read commit record",
                [STORE_RECORD] = "write commit record",
                [STORE_RENAME] = "commit",
                [STORE_SETTLE] = "start run",
        };
        return (size_t) verb < sizeof names / sizeof *names && names[verb] ? names[verb]
                                                                           : "store request";
}

static void fail_current(struct store_link *link, int status, const char *what) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        (void) error_set(&e, status, verb_name(link->current.message.verb), link->path,
                         "%s; the outcome is unknown, and asking again finds out", what);
        end_child(link);
        answer_error(link, &e);
}

/* ---- sending and receiving ---- */

static bool choose_next(struct store_link *link) {
        for (size_t i = 0; i < link->run_count; i++) {
                struct started_run *r = &link->runs[i];
                if (!r->to_reopen)
                        continue;
                r->to_reopen = false; /* one try a child; later requests try again themselves */
                link->current = (struct item){.message = {.verb = STORE_REOPEN,
                                                          .generation = r->generation,
                                                          .grouped = r->grouped},
                                              .timeout_ns = REOPEN_TIMEOUT_NS};
                memcpy(link->current.message.run, r->run, sizeof r->run);
                return true;
        }
        if (link->count == 0)
                return false;
        link->current = link->queue[link->head];
        link->head = (link->head + 1) % STORE_LINK_QUEUE_MAX;
        link->count--;
        return true;
}

static bool has_work(const struct store_link *link) {
        for (size_t i = 0; i < link->run_count; i++)
                if (link->runs[i].to_reopen)
                        return true;
        return link->count > 0;
}

static void send_current(struct store_link *link) {
        struct store_message *m = &link->current.message;

        link->in_flight = true;
        m->id = ++link->last_id;
        link->deadline_ns = clock_now(&clock_system) + link->current.timeout_ns;
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec iov = {.iov_base = m, .iov_len = sizeof *m};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        if (m->has_fd) {
                message.msg_control = control.bytes;
                message.msg_controllen = sizeof control.bytes;
                struct cmsghdr *header = CMSG_FIRSTHDR(&message);
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(header), &m->fd, sizeof(int));
        }
        ssize_t n = sendmsg(link->worker.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n != (ssize_t) sizeof *m)
                fail_current(link, CAIRN_ERR_PEER, "the store process is gone");
}

/* Until something is in flight or nothing is left to do. */
static void pump(struct store_link *link) {
        while (!link->in_flight && has_work(link)) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                if (link->worker.pidfd < 0 && link->worker.respawn_ns > clock_now(&clock_system))
                        break;
                if (link->worker.pidfd < 0 &&
                    worker_begin(&link->worker, link->spawn, link->spawn_context, &e) < 0) {
                        if (link->count == 0)
                                break; /* only locks to take again: later */
                        for (size_t i = 0; i < link->run_count; i++)
                                link->runs[i].to_reopen = false;
                        (void) choose_next(link);
                        for (size_t i = 0; i < link->run_count; i++)
                                link->runs[i].to_reopen = true;
                        answer_error(link, &e);
                        break;
                }
                if (choose_next(link))
                        send_current(link);
        }
        if (link->in_flight)
                worker_wake(&link->worker, link->deadline_ns);
        else if (has_work(link))
                worker_wake(&link->worker, link->worker.respawn_ns);
}

static void take_fds(struct msghdr *message, struct wire_fds *fds) {
        for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
                if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < count && fds->count < WIRE_FDS_MAX; i++)
                        memcpy(&fds->fds[fds->count++], CMSG_DATA(h) + i * sizeof(int),
                               sizeof(int));
        }
}

/* One reply, or the child's end. */
static void receive(struct store_link *link) {
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX)];
        } control;
        struct store_message reply;
        struct iovec iov = {.iov_base = &reply, .iov_len = sizeof reply};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        struct wire_fds fds = WIRE_FDS_INIT;
        ssize_t n;

        do
                n = recvmsg(link->worker.socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno == EAGAIN)
                return;
        if (n > 0)
                take_fds(&message, &fds);
        if (n == (ssize_t) sizeof reply && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
            link->in_flight && reply.id == link->current.message.id) {
                link->worker.answered = true;
                answer(link, &reply, &fds);
                return;
        }
        wire_fds_done(&fds);
        if (link->in_flight)
                fail_current(link, CAIRN_ERR_PEER, "the store process died");
        else
                end_child(link);
}

void store_link_dispatch(struct store_link *link) {
        worker_heard(&link->worker);
        if (link->worker.pidfd >= 0)
                receive(link);
        if (link->in_flight && clock_now(&clock_system) >= link->deadline_ns)
                fail_current(link, CAIRN_ERR_TIMEOUT,
                             "the storage did not answer in time and the store process was killed");
        pump(link);
}

/* ---- the object ---- */

int store_link_new(const char *path, store_link_spawn spawn, void *spawn_context,
                   struct store_link **ret, struct cairn_error *reterr) {
        struct store_link *link = calloc(1, sizeof *link);
        int r;

        if (!link)
                return error_set_errno(reterr, ENOMEM, "open store", path);
        link->spawn = spawn ? spawn : spawn_self;
        link->spawn_context = spawn_context;
        link->queue = calloc(STORE_LINK_QUEUE_MAX, sizeof *link->queue);
        if (!link->queue) {
                r = error_set_errno(reterr, ENOMEM, "open store", path);
                goto fail;
        }
        int length = snprintf(link->path, sizeof link->path, "%s", path);
        if (length <= 0 || (size_t) length >= sizeof link->path) {
                r = error_set(reterr, CAIRN_ERR_API, "open store", path,
                              "the path is empty or too long");
                goto fail;
        }
        TRY_GOTO(worker_init(&link->worker, "store process", link->path, reterr), fail);
        *ret = link;
        return 0;
fail:
        (void) store_link_free(link);
        return r;
}

struct store_link *store_link_free(struct store_link *link) {
        if (!link)
                return NULL;
        worker_done(&link->worker);
        if (link->in_flight)
                drop_fd(&link->current.message);
        for (size_t i = 0; link->queue && i < link->count; i++)
                drop_fd(&link->queue[(link->head + i) % STORE_LINK_QUEUE_MAX].message);
        free(link->queue);
        free(link);
        return NULL;
}

int store_link_fd(const struct store_link *link) {
        return link->worker.epoll_fd;
}

int store_link_submit(struct store_link *link, const struct store_message *request,
                      uint64_t timeout_ns, store_link_done done, void *context,
                      struct cairn_error *reterr) {
        if (link->count == STORE_LINK_QUEUE_MAX)
                return error_set(reterr, CAIRN_ERR_BUSY, verb_name(request->verb), link->path,
                                 "%d requests wait for the storage already", STORE_LINK_QUEUE_MAX);
        struct item *item = &link->queue[(link->head + link->count) % STORE_LINK_QUEUE_MAX];
        *item = (struct item){
                .message = *request, .timeout_ns = timeout_ns, .done = done, .context = context};
        if (request->has_fd) {
                item->message.fd = fcntl(request->fd, F_DUPFD_CLOEXEC, 3);
                if (item->message.fd < 0)
                        return error_set_errno(reterr, errno, verb_name(request->verb), link->path);
        }
        link->count++;
        if (!link->in_flight)
                worker_wake(&link->worker,
                            0); /* sent by the next dispatch: callbacks never run in here */
        return 0;
}

size_t store_link_waiting(const struct store_link *link) {
        return link->count + (link->in_flight ? 1 : 0);
}
