/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/saver_link.h"
#include "base/assert.h"
#include "base/cleanup.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct saver_packet {
        struct saver_message message;
        int fds[WIRE_FDS_MAX];
        size_t fd_count;
        struct saver_packet *next;
};

static void packet_free(struct saver_packet *p) {
        for (size_t i = 0; i < p->fd_count; i++)
                (void) close(p->fds[i]);
        free(p);
}

static void forget(struct saver_link *k) {
        loop_unwatch(k->loop, &k->socket_source);
        loop_unwatch(k->loop, &k->pid_source);
        loop_timer_clear(k->loop, &k->timer);
        if (k->socket >= 0)
                (void) close(k->socket);
        if (k->pidfd >= 0)
                (void) close(k->pidfd);
        k->socket = k->pidfd = -1;
        while (k->out) {
                struct saver_packet *p = k->out;
                k->out = p->next;
                packet_free(p);
        }
        k->out_tail = &k->out;
        k->out_count = 0;
        k->state = SAVER_LINK_NONE;
}

static int send_now(int socket, const struct saver_message *m, const int *fds, size_t fd_count) {
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))];
        } control = {0};
        struct iovec part = {.iov_base = (void *) m, .iov_len = sizeof *m};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
        if (fd_count > 0) {
                header.msg_control = control.bytes;
                header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&header);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
                memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
        }
        ssize_t n;
        do
                n = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        if (n >= 0)
                return 0;
        return errno == EAGAIN || errno == ETOOMANYREFS ? CAIRN_ERR_BUSY : CAIRN_ERR_PEER;
}

static void flush(struct saver_link *k) {
        while (k->out) {
                struct saver_packet *p = k->out;
                if (send_now(k->socket, &p->message, p->fds, p->fd_count) == CAIRN_ERR_BUSY)
                        return;
                k->out = p->next;
                if (!k->out)
                        k->out_tail = &k->out;
                k->out_count--;
                packet_free(p);
        }
        loop_change(k->loop, &k->socket_source, EPOLLIN);
}

int saver_link_send(struct saver_link *k, const struct saver_message *m, const int *fds,
                    size_t fd_count) {
        CAIRN_ASSERT(fd_count <= WIRE_FDS_MAX);
        if (k->state != SAVER_LINK_RUNNING || k->socket < 0)
                return CAIRN_ERR_PEER;
        if (!k->out) {
                int r = send_now(k->socket, m, fds, fd_count);
                if (r != CAIRN_ERR_BUSY)
                        return r;
        }
        struct saver_packet *p = k->out_count < SAVER_LINK_OUT_MAX ? calloc(1, sizeof *p) : NULL;
        if (!p)
                return CAIRN_ERR_BUSY;
        p->message = *m;
        for (size_t i = 0; i < fd_count; i++) {
                p->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
                if (p->fds[i] < 0) {
                        packet_free(p);
                        return CAIRN_ERR_BUSY;
                }
                p->fd_count++;
        }
        *k->out_tail = p;
        k->out_tail = &p->next;
        k->out_count++;
        loop_change(k->loop, &k->socket_source, EPOLLIN | EPOLLOUT);
        return 0;
}

static void take_fds(struct msghdr *header, struct wire_fds *fds) {
        for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < count && fds->count < WIRE_FDS_MAX; i++)
                        memcpy(&fds->fds[fds->count++], CMSG_DATA(c) + i * sizeof(int),
                               sizeof(int));
        }
}

/* false: the saver hung up or broke the framing. */
static bool receive(struct saver_link *k) {
        struct saver_message m;
        struct wire_fds fds = WIRE_FDS_INIT;
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))];
        } control;
        struct iovec part = {.iov_base = &m, .iov_len = sizeof m};
        struct msghdr header = {.msg_iov = &part,
                                .msg_iovlen = 1,
                                .msg_control = control.bytes,
                                .msg_controllen = sizeof control.bytes};
        ssize_t n = recvmsg(k->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR;
        take_fds(&header, &fds);
        bool whole = n == sizeof m && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
        if (whole) {
                /* A saver may have been scribbled on: its texts end where we say. */
                m.run[sizeof m.run - 1] = 0;
                m.error.operation[sizeof m.error.operation - 1] = 0;
                m.error.object[sizeof m.error.object - 1] = 0;
                m.error.message[sizeof m.error.message - 1] = 0;
                k->message(k->context, &m, &fds);
        }
        wire_fds_done(&fds);
        return whole;
}

static void kill_saver(struct saver_link *k) {
        if (k->pidfd >= 0)
                (void) syscall(SYS_pidfd_send_signal, k->pidfd, SIGKILL, NULL, 0);
}

static void socket_ready(void *context, uint32_t events) {
        struct saver_link *k = context;
        if (events & EPOLLOUT && k->out)
                flush(k);
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !receive(k) && k->socket >= 0)
                saver_link_stop(k);
}

static void pid_ready(void *context, uint32_t events) {
        struct saver_link *k = context;
        (void) events;
        siginfo_t info = {0};
        if (waitid(P_PIDFD, (id_t) k->pidfd, &info, WEXITED | WNOHANG) < 0 && errno != ECHILD)
                return;
        /* What it said before it died still counts: a written checkpoint is written. */
        while (k->state == SAVER_LINK_RUNNING && k->socket >= 0 && k->socket_source.watched) {
                int available = recv(k->socket, &(char){0}, 1, MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC);
                if (available <= 0 || !receive(k))
                        break;
        }
        int status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
        saver_end_fn end = k->end;
        forget(k);
        end(k->context, true, status);
}

static void lost_ended(void *context, uint32_t events) {
        struct saver_lost *lost = context;
        siginfo_t info;
        (void) events;
        (void) waitid(P_PIDFD, (id_t) lost->pidfd, &info, WEXITED | WNOHANG);
        loop_unwatch(lost->loop, &lost->source);
        (void) close(lost->pidfd);
        *lost = (struct saver_lost){0};
}

static struct saver_lost *lost_slot(struct saver_link *k) {
        for (size_t i = 0; i < SAVER_LOST_MAX; i++)
                if (!k->lost[i].loop)
                        return &k->lost[i];
        return NULL;
}

static void abandon(struct saver_link *k) {
        struct saver_lost *lost = lost_slot(k);
        CAIRN_ASSERT(lost); /* or it would not have been started */
        loop_unwatch(k->loop, &k->pid_source);
        *lost = (struct saver_lost){
                .loop = k->loop, .pidfd = TAKE_FD(k->pidfd), .bytes = k->held_bytes};
        (void) loop_watch(lost->loop, &lost->source, lost->pidfd, EPOLLIN, lost_ended, lost, NULL);
}

unsigned saver_link_lost_count(const struct saver_link *k) {
        unsigned count = 0;
        for (size_t i = 0; i < SAVER_LOST_MAX; i++)
                count += k->lost[i].loop != NULL;
        return count;
}

uint64_t saver_link_lost_bytes(const struct saver_link *k) {
        uint64_t bytes = 0;
        for (size_t i = 0; i < SAVER_LOST_MAX; i++)
                bytes += k->lost[i].loop ? k->lost[i].bytes : 0;
        return bytes;
}

static void stop_late(void *context) {
        struct saver_link *k = context;
        saver_end_fn end = k->end;
        abandon(k);
        forget(k);
        end(k->context, false, 0);
}

void saver_link_stop(struct saver_link *k) {
        if (k->state != SAVER_LINK_RUNNING)
                return;
        k->state = SAVER_LINK_STOPPING;
        loop_unwatch(k->loop, &k->socket_source);
        (void) close(k->socket);
        k->socket = -1;
        kill_saver(k);
        loop_timer_set(k->loop, &k->timer, loop_now(k->loop) + SAVER_KILL_NS);
}

bool saver_link_running(const struct saver_link *k) {
        return k->state == SAVER_LINK_RUNNING;
}

void saver_link_done(struct saver_link *k) {
        for (size_t i = 0; i < SAVER_LOST_MAX; i++)
                if (k->lost[i].loop) {
                        loop_unwatch(k->lost[i].loop, &k->lost[i].source);
                        (void) close(k->lost[i].pidfd);
                        k->lost[i] = (struct saver_lost){0};
                }
        if (k->state == SAVER_LINK_NONE)
                return;
        kill_saver(k);
        forget(k);
}

/* Between fork and exec: only what is safe there. */
static _Noreturn void become_saver(int socket, const char *program, pid_t parent) {
        char *const arguments[] = {(char *) "cairnd", (char *) "--saver", NULL};
        sigset_t none;
        (void) sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);
        /* Its own group: a Ctrl-C at the terminal is the trainers' and the runner's affair. */
        (void) setpgid(0, 0);
        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
                _exit(0);
        if (socket == SAVER_SOCKET_FD)
                (void) fcntl(socket, F_SETFD, 0);
        else if (dup2(socket, SAVER_SOCKET_FD) < 0)
                _exit(127);
        (void) execv(program, arguments);
        _exit(127);
}

int saver_link_start(struct saver_link *k, struct loop *loop, const char *program,
                     saver_message_fn message, saver_end_fn end, void *context,
                     struct cairn_error *reterr) {
        CAIRN_ASSERT(k->state == SAVER_LINK_NONE);
        if (!lost_slot(k))
                return error_set(reterr, CAIRN_ERR_BUSY, "start saver", "",
                                 "%d savers are stuck in the storage; no more are started until "
                                 "one of them ends",
                                 SAVER_LOST_MAX);
        k->loop = loop;
        k->message = message;
        k->end = end;
        k->context = context;
        k->socket = k->pidfd = -1;
        k->out = NULL;
        k->out_count = 0;
        k->held_bytes = 0;
        k->out_tail = &k->out;
        loop_timer_init(&k->timer, stop_late, k);
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return error_set_errno(reterr, errno, "connect saver", "");
        _cleanup_close_ int theirs = pair[1];
        k->socket = pair[0];
        pid_t parent = getpid();
        k->pid = fork();
        if (k->pid == 0)
                become_saver(theirs, program, parent);
        int r = 0;
        if (k->pid < 0)
                r = error_set_errno(reterr, errno, "start saver", program);
        else if ((k->pidfd = (int) syscall(SYS_pidfd_open, k->pid, 0)) < 0)
                r = error_set_errno(reterr, errno, "watch saver", program);
        if (r == 0)
                r = loop_watch(loop, &k->pid_source, k->pidfd, EPOLLIN, pid_ready, k, reterr);
        if (r == 0)
                r = loop_watch(loop, &k->socket_source, k->socket, EPOLLIN, socket_ready, k,
                               reterr);
        k->state = SAVER_LINK_RUNNING;
        if (r < 0) {
                kill_saver(k);
                forget(k);
        }
        return r;
}
