/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/stop.h"
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

static volatile sig_atomic_t recorded;
static volatile int64_t interrupted_ns;

/* SIGINT comes twice at once where a launcher forwards what the terminal sent to both. */
static void record(int number) {
        struct timespec now;

        (void) clock_gettime(CLOCK_MONOTONIC, &now);
        int64_t now_ns = (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
        if (number == SIGINT && recorded == SIGINT && now_ns - interrupted_ns >= 500000000) {
                (void) signal(SIGINT, SIG_DFL);
                (void) raise(SIGINT);
        }
        if (number == SIGINT && recorded != SIGINT)
                interrupted_ns = now_ns;
        recorded = number;
}

void stop_init(void) {
        struct sigaction action = {.sa_handler = record, .sa_flags = SA_RESTART};

        (void) sigemptyset(&action.sa_mask);
        recorded = 0;
        (void) sigaction(SIGTERM, &action, NULL);
        (void) sigaction(SIGINT, &action, NULL);
}

int stop_signal(void) {
        return recorded;
}
