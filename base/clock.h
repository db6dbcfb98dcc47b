/* SPDX-License-Identifier: Apache-2.0
 *
 * clock.h - time behind a table, so that tests inject it. All times are nanoseconds in uint64_t;
 * deadlines are absolute times of now_ns (CLOCK_MONOTONIC).
 */
#ifndef CAIRN_CLOCK_H
#define CAIRN_CLOCK_H

#include <stdint.h>

struct clock_ops {
        uint64_t (*now_ns)(void *context);      /* CLOCK_MONOTONIC */
        uint64_t (*realtime_ns)(void *context); /* since 1970, for records only */
        void (*sleep_ns)(void *context, uint64_t duration_ns);
        void *context;
};

extern const struct clock_ops clock_system;

static inline uint64_t clock_now(const struct clock_ops *clock) {
        return clock->now_ns(clock->context);
}
/* Milliseconds until the deadline for poll(2): 0 if past, rounded up, at most INT_MAX. */
int clock_poll_timeout(const struct clock_ops *clock, uint64_t deadline_ns);

#endif
