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

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t deadline_ns) {
        CAIRN_ASSERT(t->fire);
        t->deadline_ns = deadline_ns ? deadline_ns : 1;
        if (!t->listed) {
                t->next = l->timers;
                l->timers = t;
                t->listed = true;
        }
}

void loop_timer_clear(struct loop *l, struct loop_timer *t) {
        t->deadline_ns = 0;
        if (!t->listed)
                return;
        for (struct loop_timer **p = &l->timers; *p; p = &(*p)->next)
                if (*p == t) {
                        *p = t->next;
                        break;
                }
        t->listed = false;
}

static struct loop_timer *earliest(struct loop *l) {
        struct loop_timer *found = NULL;
        for (struct loop_timer *t = l->timers; t; t = t->next)
                if (t->deadline_ns && (!found || t->deadline_ns < found->deadline_ns))
                        found = t;
        return found;
}

/* Each due timer once a round, the earliest first; what a callback sets for "now" waits for the
 * next round, so that descriptors are not starved. */
static void fire_timers(struct loop *l) {
        uint64_t now_ns = loop_now(l);
        for (struct loop_timer *t = earliest(l); t && t->deadline_ns <= now_ns; t = earliest(l)) {
                loop_timer_clear(l, t);
                t->fire(t->context);
        }
}

int loop_step(struct loop *l, uint64_t deadline_ns, struct cairn_error *reterr) {
        const struct loop_timer *t = earliest(l);
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
