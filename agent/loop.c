/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/loop.h"
#include "base/assert.h"
#include <errno.h>

int loop_init(struct loop *l, const struct clock_ops *clock, struct cairn_error *reterr) {
        *l = (struct loop){.clock = clock, .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
        if (l->epoll_fd < 0)
                return error_set_errno(reterr, errno, "create event loop", "");
        return 0;
}

void loop_done(struct loop *l) {
        if (l->epoll_fd >= 0)
                (void) close(l->epoll_fd);
        l->epoll_fd = -1;
}

uint64_t loop_now(const struct loop *l) {
        return clock_now(l->clock);
}

void loop_stop(struct loop *l) {
        l->stopped = true;
}

int loop_watch(struct loop *l, struct loop_source *s, int fd, uint32_t events, loop_ready_fn ready,
               void *context, struct cairn_error *reterr) {
        CAIRN_ASSERT(!s->watched);
        struct epoll_event e = {.events = events, .data.ptr = s};
        if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
                return error_set_errno(reterr, errno, "watch descriptor", "");
        *s = (struct loop_source){.ready = ready, .context = context, .fd = fd, .watched = true};
        return 0;
}

void loop_change(struct loop *l, struct loop_source *s, uint32_t events) {
        CAIRN_ASSERT(s->watched);
        struct epoll_event e = {.events = events, .data.ptr = s};
        int r = epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, s->fd, &e);
        CAIRN_ASSERT(r == 0);
}

void loop_unwatch(struct loop *l, struct loop_source *s) {
        if (!s->watched)
                return;
        int r = epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
        CAIRN_ASSERT(r == 0);
        s->watched = false;
}

void loop_timer_init(struct loop_timer *t, loop_timer_fn fire, void *context) {
        *t = (struct loop_timer){.fire = fire, .context = context};
}

/* Timers of a large group are thousands, and each event looks at the earliest one. */
static struct loop_timer *meld(struct loop_timer *a, struct loop_timer *b) {
        if (!a || !b)
                return a ? a : b;
        struct loop_timer *first = b->deadline_ns < a->deadline_ns ? b : a;
        struct loop_timer *second = first == a ? b : a;
        second->back = first;
        second->next = first->child;
        if (second->next)
                second->next->back = second;
        first->child = second;
        return first;
}

static struct loop_timer *meld_siblings(struct loop_timer *t) {
        struct loop_timer *pairs = NULL, *all = NULL;
        while (t) {
                struct loop_timer *a = t, *b = a->next;
                t = b ? b->next : NULL;
                a->next = a->back = NULL;
                if (b)
                        b->next = b->back = NULL;
                a = meld(a, b);
                a->next = pairs;
                pairs = a;
        }
        while (pairs) {
                struct loop_timer *next = pairs->next;
                pairs->next = NULL;
                all = meld(all, pairs);
                pairs = next;
        }
        return all;
}

void loop_timer_clear(struct loop *l, struct loop_timer *t) {
        if (t->deadline_ns == 0)
                return;
        if (!t->back)
                l->timers = NULL;
        else if (t->back->child == t)
                t->back->child = t->next;
        else
                t->back->next = t->next;
        if (t->next)
                t->next->back = t->back;
        l->timers = meld(l->timers, meld_siblings(t->child));
        t->child = t->next = t->back = NULL;
        t->deadline_ns = 0;
}

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t deadline_ns) {
        CAIRN_ASSERT(t->fire);
        loop_timer_clear(l, t);
        t->deadline_ns = deadline_ns ? deadline_ns : 1;
        l->timers = meld(l->timers, t);
}

/* Each due timer once a round, the earliest first; what a callback sets for "now" waits for the
 * next round, so that descriptors are not starved. */
static void fire_timers(struct loop *l) {
        uint64_t now_ns = loop_now(l);
        for (struct loop_timer *t = l->timers; t && t->deadline_ns <= now_ns; t = l->timers) {
                loop_timer_clear(l, t);
                t->fire(t->context);
        }
}

int loop_step(struct loop *l, uint64_t deadline_ns, struct cairn_error *reterr) {
        const struct loop_timer *t = l->timers;
        if (t && t->deadline_ns < deadline_ns)
                deadline_ns = t->deadline_ns;
        int timeout = deadline_ns == UINT64_MAX ? -1 : clock_poll_timeout(l->clock, deadline_ns);
        struct epoll_event e;
        int count = epoll_wait(l->epoll_fd, &e, 1, timeout);
        if (count < 0 && errno != EINTR)
                return error_set_errno(reterr, errno, "wait for events", "");
        if (count == 1) {
                struct loop_source *s = e.data.ptr;
                s->ready(s->context, e.events);
        }
        fire_timers(l);
        return 0;
}

int loop_run(struct loop *l, struct cairn_error *reterr) {
        while (!l->stopped)
                TRY(loop_step(l, UINT64_MAX, reterr));
        return 0;
}
