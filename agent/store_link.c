/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/store_link.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include "format/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

enum { RUNS_MAX = 16, LOST_MAX = 8, CHILD_SOCKET_FD = 3 };
#define RESPAWN_NS (200 * NSEC_PER_MSEC) /* after a child that died without one answer */
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
        bool to_reopen; /* the present child has not taken its lock yet */
};
struct store_link {
        char path[STORE_PATH_BYTES];
        store_link_spawn spawn;
        void *spawn_context;
        int epoll_fd, timer_fd;
        int socket, pidfd;  /* -1: no child */
        int lost[LOST_MAX]; /* pidfds of killed children that have not ended yet */
        size_t lost_count;
        bool answered; /* the present child, at least once */
        uint64_t respawn_ns;
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
        char *const arguments[] = {(char *) "cairnd", (char *) "--store-process",
                                   (char *) (uintptr_t) path, NULL};
        _cleanup_close_ int ours = -1, theirs = -1;
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t none, all;
        int pair[2];
        pid_t pid;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return error_set_errno(reterr, errno, "start store process", path);
        ours = pair[0];
        theirs = pair[1];
        (void) posix_spawn_file_actions_init(&actions);
        (void) posix_spawnattr_init(&attributes);
        (void) sigemptyset(&none);
        (void) sigfillset(&all);
        (void) posix_spawnattr_setsigmask(&attributes, &none);
        (void) posix_spawnattr_setsigdefault(&attributes, &all);
        (void) posix_spawnattr_setflags(&attributes,
                                        POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        int r = posix_spawn_file_actions_adddup2(&actions, theirs, CHILD_SOCKET_FD);
        if (r == 0)
                r = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, arguments, environ);
        (void) posix_spawn_file_actions_destroy(&actions);
        (void) posix_spawnattr_destroy(&attributes);
        if (r != 0)
                return error_set_errno(reterr, r, "start store process", path);
        *ret_pidfd = pidfd_open(pid, 0);
        if (*ret_pidfd < 0) {
                r = errno;
                (void) kill(pid, SIGKILL);
                (void) waitpid(pid, NULL, WNOHANG);
                return error_set_errno(reterr, r, "start store process", path);
        }
        *ret_socket = TAKE_FD(ours);
        return 0;
}

static void watch(struct store_link *link, int fd) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        (void) epoll_ctl(link->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

/* Wake the dispatcher at `deadline_ns`; 0: at once. */
static void set_timer(struct store_link *link, uint64_t deadline_ns) {
        struct itimerspec at = {.it_value = {.tv_sec = (time_t) (deadline_ns / NSEC_PER_SEC),
                                             .tv_nsec = (long) (deadline_ns % NSEC_PER_SEC)}};
        if (deadline_ns == 0)
                at.it_value.tv_nsec = 1;
        (void) timerfd_settime(link->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static bool reap(int pidfd) {
        siginfo_t info = {0};
        int r;

        do
                r = waitid(P_PIDFD, (id_t) pidfd, &info, WEXITED | WNOHANG);
        while (r < 0 && errno == EINTR);
        return r < 0 || info.si_pid != 0; /* not ours to wait for any more, or ended */
}

static void reap_lost(struct store_link *link) {
        for (size_t i = 0; i < link->lost_count;) {
                if (!reap(link->lost[i])) {
                        i++;
                        continue;
                }
                (void) close(link->lost[i]);
                link->lost[i] = link->lost[--link->lost_count];
        }
}

/* A child that is stuck in the kernel does not end at once: it is left behind and reaped when it
 * does. Until then it holds its locks, and nothing else: its files are never used again. */
static void end_child(struct store_link *link) {
        if (link->pidfd < 0)
                return;
        (void) pidfd_send_signal(link->pidfd, SIGKILL, NULL, 0);
        (void) close(link->socket);
        CAIRN_ASSERT(link->lost_count < LOST_MAX);
        link->lost[link->lost_count++] = link->pidfd;
        link->socket = link->pidfd = -1;
        link->respawn_ns = link->answered ? 0 : clock_now(&clock_system) + RESPAWN_NS;
        for (size_t i = 0; i < link->run_count; i++)
                link->runs[i].to_reopen = true;
        reap_lost(link);
}

static int begin_child(struct store_link *link, struct cairn_error *reterr) {
        reap_lost(link);
        if (link->lost_count == LOST_MAX)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "start store process", link->path,
                                 "%d store processes are stuck in the storage; no more are started "
                                 "until one of them ends",
                                 LOST_MAX);
        TRY(link->spawn(link->spawn_context, link->path, &link->socket, &link->pidfd, reterr));
        link->answered = false;
        watch(link, link->socket);
        watch(link, link->pidfd);
        return 0;
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

static void remember_run(struct store_link *link, const char *run, uint64_t generation) {
        struct started_run *r = find_run(link, run);

        if (!r && link->run_count == RUNS_MAX)
                return; /* the child refuses more than that */
        if (!r)
                r = &link->runs[link->run_count++];
        *r = (struct started_run){.generation = generation};
        (void) snprintf(r->run, sizeof r->run, "%s", run);
}

static void note_reply(struct store_link *link, const struct item *item,
                       const struct store_message *reply) {
        const struct store_message *q = &item->message;

        if (q->verb == STORE_START && reply->status == 0 && !reply->started.finished)
                remember_run(link, q->start.run, reply->generation);
        /* Whether a restart that failed still has the run is the child's knowledge: no longer. */
        if (q->verb == STORE_START && reply->status < 0 && q->start.is_restart)
                forget_run(link, q->start.run);
        if (q->verb == STORE_REOPEN && reply->status == 0)
                remember_run(link, q->run, q->generation);
        if (q->verb == STORE_END_RUN ||
            (q->verb == STORE_REOPEN && reply->status == CAIRN_ERR_STALE))
                forget_run(link, q->run);
}

/* ---- answers ---- */

static void answer(struct store_link *link, struct store_message *reply, struct wire_fds *fds) {
        link->in_flight = false;
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
                link->current = (struct item){
                        .message = {.verb = STORE_REOPEN, .generation = r->generation},
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
        ssize_t n = send(link->socket, m, sizeof *m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n != (ssize_t) sizeof *m)
                fail_current(link, CAIRN_ERR_PEER, "the store process is gone");
}

/* Until something is in flight or nothing is left to do. */
static void pump(struct store_link *link) {
        while (!link->in_flight && has_work(link)) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                if (link->pidfd < 0 && link->respawn_ns > clock_now(&clock_system))
                        break;
                if (link->pidfd < 0 && begin_child(link, &e) < 0) {
                        link->respawn_ns = clock_now(&clock_system) + RESPAWN_NS;
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
                set_timer(link, link->deadline_ns);
        else if (has_work(link))
                set_timer(link, link->respawn_ns);
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
                n = recvmsg(link->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);
        if (n < 0 && errno == EAGAIN)
                return;
        if (n > 0)
                take_fds(&message, &fds);
        if (n == (ssize_t) sizeof reply && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
            link->in_flight && reply.id == link->current.message.id) {
                link->answered = true;
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
        uint64_t expirations;

        while (read(link->timer_fd, &expirations, sizeof expirations) > 0)
                ;
        reap_lost(link);
        if (link->pidfd >= 0)
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
        link->socket = link->pidfd = -1;
        link->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        link->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        link->queue = calloc(STORE_LINK_QUEUE_MAX, sizeof *link->queue);
        if (link->timer_fd < 0 || link->epoll_fd < 0 || !link->queue) {
                r = error_set_errno(reterr, link->queue ? errno : ENOMEM, "open store", path);
                goto fail;
        }
        int length = snprintf(link->path, sizeof link->path, "%s", path);
        if (length <= 0 || (size_t) length >= sizeof link->path) {
                r = error_set(reterr, CAIRN_ERR_API, "open store", path,
                              "the path is empty or too long");
                goto fail;
        }
        watch(link, link->timer_fd);
        *ret = link;
        return 0;
fail:
        (void) store_link_free(link);
        return r;
}

struct store_link *store_link_free(struct store_link *link) {
        if (!link)
                return NULL;
        end_child(link);
        for (size_t i = 0; i < link->lost_count; i++)
                (void) close(link->lost[i]);
        if (link->timer_fd >= 0)
                (void) close(link->timer_fd);
        if (link->epoll_fd >= 0)
                (void) close(link->epoll_fd);
        free(link->queue);
        free(link);
        return NULL;
}

int store_link_fd(const struct store_link *link) {
        return link->epoll_fd;
}

int store_link_submit(struct store_link *link, const struct store_message *request,
                      uint64_t timeout_ns, store_link_done done, void *context,
                      struct cairn_error *reterr) {
        if (link->count == STORE_LINK_QUEUE_MAX)
                return error_set(reterr, CAIRN_ERR_BUSY, verb_name(request->verb), link->path,
                                 "%d requests wait for the storage already", STORE_LINK_QUEUE_MAX);
        link->queue[(link->head + link->count) % STORE_LINK_QUEUE_MAX] = (struct item){
                .message = *request, .timeout_ns = timeout_ns, .done = done, .context = context};
        link->count++;
        if (!link->in_flight)
                set_timer(link, 0); /* sent by the next dispatch: callbacks never run in here */
        return 0;
}

size_t store_link_waiting(const struct store_link *link) {
        return link->count + (link->in_flight ? 1 : 0);
}
