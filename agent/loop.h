/* SPDX-License-Identifier: Apache-2.0
 *
 * loop.h - the event loop of cairnd: descriptors and timers, one thread.
 *
 *     loop_init(&l, &clock_system, &e);
 *     loop_watch(&l, &source, fd, EPOLLIN, on_ready, context, &e);  // embedded by its owner
 *     loop_timer_init(&timer, on_time, context);
 *     loop_timer_set(&l, &timer, deadline_ns);
 *     loop_run(&l, &e);                                             // until loop_stop
 *     loop_done(&l);
 *
 * A callback may unwatch and free any source or timer, its own included: one event is taken from
 * the kernel at a time, so none is in hand for what is gone. The loop owns neither descriptors nor
 * contexts. All deadlines are absolute (clock.h); a timer fires once.
 */
#ifndef CAIRN_AGENT_LOOP_H
#define CAIRN_AGENT_LOOP_H

#include "base/clock.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

typedef void (*loop_ready_fn)(void *context, uint32_t events);
typedef void (*loop_timer_fn)(void *context);

struct loop_source { /* zeroed: not watched */
        loop_ready_fn ready;
        void *context;
        int fd;
        bool watched;
};
struct loop_timer {
        loop_timer_fn fire;
        void *context;
        uint64_t deadline_ns; /* 0: not set */
        /* In the heap: its first child, its next sibling; the one before it, or its parent. */
        struct loop_timer *child, *next, *back;
};
struct loop {
        const struct clock_ops *clock;
        int epoll_fd;
        bool stopped;
        struct loop_timer *timers; /* a pairing heap: the earliest one */
};

int loop_init(struct loop *l, const struct clock_ops *clock, struct cairn_error *reterr);
void loop_done(struct loop *l);
int loop_run(struct loop *l, struct cairn_error *reterr);
/* One round: waits for at most one descriptor event or until `deadline_ns`, then fires due timers.
 */
int loop_step(struct loop *l, uint64_t deadline_ns, struct cairn_error *reterr);
void loop_stop(struct loop *l);
uint64_t loop_now(const struct loop *l);

int loop_watch(struct loop *l, struct loop_source *s, int fd, uint32_t events, loop_ready_fn ready,
               void *context, struct cairn_error *reterr);
void loop_change(struct loop *l, struct loop_source *s, uint32_t events);
/* Before the descriptor is closed. Harmless on a source that is not watched. */
void loop_unwatch(struct loop *l, struct loop_source *s);

void loop_timer_init(struct loop_timer *t, loop_timer_fn fire, void *context);
void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t deadline_ns);
void loop_timer_clear(struct loop *l, struct loop_timer *t);

#endif
