/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.h - a child of the event loop that does what blocks: this binary with another role, on one
 * end of a SEQPACKET socket. It can be killed and replaced at any time. store_link.c and
 * rendezvous.c ask theirs by it.
 *
 *     worker_init(&w, "store process", path, &e);
 *     loop_watch(loop, &source, w.epoll_fd, EPOLLIN, ...);  // the owner's dispatch
 *     worker_begin(&w, spawn, context, &e);     // w.socket and w.pidfd are watched, too
 *     worker_wake(&w, deadline_ns);             // the owner's dispatch then, without any event
 *     worker_heard(&w);                         // first in each dispatch: reaps, ends the timer
 *     worker_end(&w);                           // kill it; reaped when it ends
 *     worker_done(&w);
 *
 * A child that is stuck in the kernel does not end at once: it is left behind and reaped when it
 * does. Its results are never used. After WORKER_LOST_MAX of them no more are started.
 */
#ifndef CAIRN_AGENT_WORKER_H
#define CAIRN_AGENT_WORKER_H

#include "base/clock.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum { WORKER_LOST_MAX = 8, WORKER_SOCKET_FD = 3 };

struct worker {
        int epoll_fd, timer_fd;
        const char *name;          /* static: "store process" */
        const char *object;        /* the owner's: what it works on */
        int socket, pidfd;         /* -1: there is none */
        bool answered;             /* the present one, at least once: its owner sets it */
        uint64_t respawn_ns;       /* not before: after one that ended without an answer */
        int lost[WORKER_LOST_MAX]; /* pidfds of killed ones that have not ended yet */
        size_t lost_count;
};

/* Starts a child that serves the other end of *ret_socket. `object` is the worker's. */
typedef int (*worker_spawn)(void *context, const char *object, int *ret_socket, int *ret_pidfd,
                            struct cairn_error *reterr);

int worker_init(struct worker *w, const char *name, const char *object, struct cairn_error *reterr);
void worker_done(struct worker *w); /* of a zeroed one: nothing */
/* UNREACHABLE: too many are stuck. On failure respawn_ns is set. */
int worker_begin(struct worker *w, worker_spawn spawn, void *context, struct cairn_error *reterr);
void worker_end(struct worker *w);
void worker_wake(struct worker *w, uint64_t deadline_ns); /* 0: at once */
void worker_heard(struct worker *w);
/* For a worker_spawn: /proc/self/exe with these arguments (NULL-terminated, the first is the
 * program's name) and the socket as descriptor WORKER_SOCKET_FD. */
int worker_spawn_self(const char *const arguments[], const char *name, const char *object,
                      int *ret_socket, int *ret_pidfd, struct cairn_error *reterr);
/* In such a child, and in a saver: it ends with its agent, and no signal that is meant for the
 * agent or the ranks ends it before; Slurm, systemd and terminals send theirs to every process. */
void worker_become(const char *process_name);

#endif
