/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/limits.h"

#include <errno.h>
#include <limits.h>
#include <time.h>

static uint64_t read_clock(clockid_t id) {
        struct timespec t;
        (void) clock_gettime(id, &t); /* cannot fail for these two clocks */
        return (uint64_t) t.tv_sec * NSEC_PER_SEC + (uint64_t) t.tv_nsec;
}

static uint64_t system_now_ns(void *context) {
        return read_clock(CLOCK_MONOTONIC);
}

static uint64_t system_realtime_ns(void *context) {
        return read_clock(CLOCK_REALTIME);
}

/* Until an absolute time, so that signals do not lengthen it. */
static void system_sleep_ns(void *context, uint64_t duration_ns) {
        uint64_t now = read_clock(CLOCK_MONOTONIC);
        uint64_t end = duration_ns > UINT64_MAX - now ? UINT64_MAX : now + duration_ns;
        struct timespec t = {
                .tv_sec = (time_t) (end / NSEC_PER_SEC),
                .tv_nsec = (long) (end % NSEC_PER_SEC),
        };
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
                ;
}

const struct clock_ops clock_system = {
        .now_ns = system_now_ns,
        .realtime_ns = system_realtime_ns,
        .sleep_ns = system_sleep_ns,
};

int clock_poll_timeout(const struct clock_ops *clock, uint64_t deadline_ns) {
        uint64_t now = clock_now(clock);
        if (deadline_ns <= now)
                return 0;
        uint64_t left = deadline_ns - now;
        uint64_t ms = left / NSEC_PER_MSEC + (left % NSEC_PER_MSEC != 0);
        return ms > INT_MAX ? INT_MAX : (int) ms;
}
