/* SPDX-License-Identifier: Apache-2.0
 *
 * trainlog - the trainer's log for scripts:
 *
 *     trainlog compare REFERENCE OTHER        0: the same lines but for "seconds"; else says where
 *     trainlog wait FILE STEP SECONDS [PID]   prints the last step once it is at least STEP;
 *                                             1: not in time, 2: process PID ended before
 *     trainlog last FILE                      prints the last step, 0 if there is none
 */
#include "base/clock.h"
#include "base/limits.h"
#include "tools/train_log.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_NS (2 * NSEC_PER_MSEC)

static int compare(const char *reference, const char *other) {
        struct train_log_comparison c;
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[2048];
        if (train_log_compare(reference, other, &c, &e) == 0)
                return 0;
        fprintf(stderr, "%s\n", error_format(&e, text, sizeof text));
        return 1;
}

/* A zombie has ended. */
static bool process_ended(const char *pid) {
        char path[64], text[512] = "";
        (void) snprintf(path, sizeof path, "/proc/%s/stat", pid);
        FILE *f = fopen(path, "re");
        if (!f)
                return true;
        size_t n = fread(text, 1, sizeof text - 1, f);
        (void) fclose(f);
        text[n] = '\0';
        const char *after_name = strrchr(text, ')');
        return !after_name || strncmp(after_name, ") Z", 3) == 0;
}

static int wait_step(const char *path, int64_t step, double seconds, const char *pid) {
        uint64_t limit_ns = clock_now(&clock_system) + (uint64_t) (seconds * 1e9);
        for (;;) {
                bool ended = pid && process_ended(pid);
                struct train_log_tail tail = {.step = 0};
                train_log_last(path, &tail);
                if (tail.step >= step || ended || clock_now(&clock_system) > limit_ns) {
                        printf("%" PRId64 "\n", tail.step);
                        return tail.step >= step ? 0 : ended ? 2 : 1;
                }
                clock_system.sleep_ns(clock_system.context, POLL_NS);
        }
}

int main(int argc, char **argv) {
        if (argc == 4 && strcmp(argv[1], "compare") == 0)
                return compare(argv[2], argv[3]);
        if (argc >= 5 && strcmp(argv[1], "wait") == 0)
                return wait_step(argv[2], strtoll(argv[3], NULL, 10), strtod(argv[4], NULL),
                                 argc > 5 ? argv[5] : NULL);
        if (argc == 3 && strcmp(argv[1], "last") == 0) {
                struct train_log_tail tail = {.step = 0};
                train_log_last(argv[2], &tail);
                printf("%" PRId64 "\n", tail.step);
                return 0;
        }
        return 64;
}
