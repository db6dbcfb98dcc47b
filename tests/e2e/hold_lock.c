/* SPDX-License-Identifier: Apache-2.0
 *
 * hold_lock - holds a run's lock for a time, as a store process does that cannot be ended:
 *
 *     hold_lock LOCKFILE SECONDS        prints "waiting", and within a minute "held"
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/limits.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
        const struct clock_ops *clock = &clock_system;
        if (argc != 3)
                return 64;
        _cleanup_close_ int fd = open(argv[1], O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return 66;
        puts("waiting");
        (void) fflush(stdout);
        uint64_t until_ns = clock_now(clock) + 60 * NSEC_PER_SEC;
        while (io_system.try_lock(io_system.context, fd) < 0) {
                if (clock_now(clock) > until_ns)
                        return 124;
                clock->sleep_ns(clock->context, NSEC_PER_MSEC / 10);
        }
        puts("held");
        (void) fflush(stdout);
        clock->sleep_ns(clock->context, (uint64_t) (strtod(argv[2], NULL) * 1e9));
        return 0;
}
