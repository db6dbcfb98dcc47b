/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/worker.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include "base/limits.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>

#define RESPAWN_NS (200 * NSEC_PER_MSEC) /* after a child that died without one answer */
#define END_NS (500 * NSEC_PER_MSEC)

static int start_failed(struct cairn_error *reterr, int error_number, const char *name,
                        const char *object) {
        char operation[48];
        (void) snprintf(operation, sizeof operation, "start %s", name);
        return error_set_errno(reterr, error_number, operation, object);
}

int worker_spawn_self(const char *const arguments[], const char *name, const char *object,
                      int *ret_socket, int *ret_pidfd, struct cairn_error *reterr) {
        _cleanup_close_ int ours = -1, theirs = -1;
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t none, all;
        int pair[2];
        pid_t pid;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return start_failed(reterr, errno, name, object);
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
        int r = posix_spawn_file_actions_adddup2(&actions, theirs, WORKER_SOCKET_FD);
        if (r == 0)
                r = posix_spawn(&pid, "/proc/self/exe", &actions, &attributes,
                                (char *const *) (uintptr_t) arguments, environ);
        (void) posix_spawn_file_actions_destroy(&actions);
        (void) posix_spawnattr_destroy(&attributes);
        if (r != 0)
                return start_failed(reterr, r, name, object);
        *ret_pidfd = (int) syscall(SYS_pidfd_open, pid, 0);
        if (*ret_pidfd < 0) {
                r = errno;
                (void) kill(pid, SIGKILL);
                (void) waitpid(pid, NULL, WNOHANG);
                return start_failed(reterr, r, name, object);
        }
        *ret_socket = TAKE_FD(ours);
        return 0;
}

static void watch(struct worker *w, int fd) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        (void) epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

int worker_init(struct worker *w, const char *name, const char *object,
                struct cairn_error *reterr) {
        *w = (struct worker){.name = name, .object = object, .socket = -1, .pidfd = -1};
        w->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (w->timer_fd < 0 || w->epoll_fd < 0) {
                int r = start_failed(reterr, errno, name, object);
                worker_done(w);
                return r;
        }
        watch(w, w->timer_fd);
        return 0;
}

void worker_wake(struct worker *w, uint64_t deadline_ns) {
        struct itimerspec at = {.it_value = {.tv_sec = (time_t) (deadline_ns / NSEC_PER_SEC),
                                             .tv_nsec = (long) (deadline_ns % NSEC_PER_SEC)}};
        if (deadline_ns == 0)
                at.it_value.tv_nsec = 1;
        (void) timerfd_settime(w->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static bool reap(int pidfd) {
        siginfo_t info = {0};
        int r;

        do
                r = waitid(P_PIDFD, (id_t) pidfd, &info, WEXITED | WNOHANG);
        while (r < 0 && errno == EINTR);
        return r < 0 || info.si_pid != 0; /* not ours to wait for any more, or ended */
}

static void reap_lost(struct worker *w) {
        for (size_t i = 0; i < w->lost_count;) {
                if (!reap(w->lost[i])) {
                        i++;
                        continue;
                }
                (void) close(w->lost[i]);
                w->lost[i] = w->lost[--w->lost_count];
        }
}

void worker_heard(struct worker *w) {
        uint64_t expirations;

        while (read(w->timer_fd, &expirations, sizeof expirations) > 0)
                ;
        reap_lost(w);
}

void worker_end(struct worker *w) {
        if (w->pidfd < 0)
                return;
        (void) syscall(SYS_pidfd_send_signal, w->pidfd, SIGKILL, NULL, 0);
        (void) close(w->socket);
        CAIRN_ASSERT(w->lost_count < WORKER_LOST_MAX);
        w->lost[w->lost_count++] = w->pidfd;
        w->socket = w->pidfd = -1;
        w->respawn_ns = w->answered ? 0 : clock_now(&clock_system) + RESPAWN_NS;
        reap_lost(w);
}

static int begin(struct worker *w, worker_spawn spawn, void *context, struct cairn_error *reterr) {
        char operation[48];

        CAIRN_ASSERT(w->pidfd < 0);
        reap_lost(w);
        if (w->lost_count < WORKER_LOST_MAX)
                return spawn(context, w->object, &w->socket, &w->pidfd, reterr);
        (void) snprintf(operation, sizeof operation, "start %s", w->name);
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, operation, w->object,
                         "%d of them are stuck in the storage; no more are started until one of "
                         "them ends",
                         WORKER_LOST_MAX);
}

int worker_begin(struct worker *w, worker_spawn spawn, void *context, struct cairn_error *reterr) {
        int r = begin(w, spawn, context, reterr);

        if (r < 0) {
                w->socket = w->pidfd = -1;
                w->respawn_ns = clock_now(&clock_system) + RESPAWN_NS;
                return r;
        }
        w->answered = false;
        watch(w, w->socket);
        watch(w, w->pidfd);
        return 0;
}

/* What they hold, a lock say, is free when they are gone. Who is stuck is not waited for. */
static void wait_for_ends(const struct worker *w) {
        uint64_t until_ns = clock_now(&clock_system) + END_NS;
        for (size_t i = 0; i < w->lost_count; i++) {
                struct pollfd p = {.fd = w->lost[i], .events = POLLIN};
                (void) poll(&p, 1, clock_poll_timeout(&clock_system, until_ns));
        }
}

void worker_done(struct worker *w) {
        if (!w->name)
                return;
        worker_end(w);
        wait_for_ends(w);
        for (size_t i = 0; i < w->lost_count; i++)
                (void) close(w->lost[i]);
        if (w->timer_fd >= 0)
                (void) close(w->timer_fd);
        if (w->epoll_fd >= 0)
                (void) close(w->epoll_fd);
        *w = (struct worker){0};
}

void worker_become(const char *process_name) {
        static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT, SIGUSR1, SIGUSR2};

        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void) prctl(PR_SET_NAME, process_name);
        for (size_t i = 0; i < sizeof ignored / sizeof *ignored; i++)
                (void) signal(ignored[i], SIG_IGN);
}
