/* SPDX-License-Identifier: Apache-2.0 */
#include "client/generation_lock.h"
#include "base/cleanup.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>

#define WAIT_SLICE_NS (20 * NSEC_PER_MSEC)

static int open_file(const char *run, struct cairn_error *reterr) {
        char path[4096];
        TRY(wire_private_path(run, ".trainers", path, sizeof path, reterr));
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
        return fd < 0 ? error_set_errno(reterr, errno, "lock generation", path) : fd;
}

/* A process that holds a byte of this range; 0: nobody does. No bytes: up to the last one. */
static int find_holder(int fd, uint64_t first, uint64_t bytes, pid_t *ret) {
        struct flock lock = {.l_type = F_WRLCK,
                             .l_whence = SEEK_SET,
                             .l_start = (off_t) first,
                             .l_len = (off_t) bytes};
        if (fcntl(fd, F_GETLK, &lock) < 0)
                return -errno;
        /* One of another pid namespace has no number here, and is somebody all the same. */
        *ret = lock.l_type == F_UNLCK ? 0 : lock.l_pid > 0 ? lock.l_pid : -1;
        return 0;
}

static int find_other(int fd, uint64_t generation, pid_t *ret) {
        int r = find_holder(fd, generation + 1, 0, ret);
        return r < 0 || *ret != 0 || generation == 0 ? r : find_holder(fd, 0, generation, ret);
}

int generation_lock_take(int *ret_fd, struct link *link, const char *run, uint64_t generation,
                         uint64_t deadline_ns, const struct clock_ops *clock,
                         struct cairn_error *reterr) {
        static const char operation[] = "lock generation";
        _cleanup_close_ int fd = open_file(run, reterr);
        struct flock own = {
                .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t) generation, .l_len = 1};
        if (fd < 0)
                return fd;
        if (fcntl(fd, F_SETLK, &own) < 0)
                return error_set_errno(reterr, errno, operation, run);
        for (;;) {
                pid_t other = 0;
                int r = find_other(fd, generation, &other);
                if (r < 0)
                        return error_set_errno(reterr, -r, operation, run);
                if (other == 0)
                        break;
                if (clock_now(clock) >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_BUSY, operation, run,
                                         "process %d, a trainer of another start of this run, "
                                         "still works here; end it and start again",
                                         (int) other);
                TRY(link_check(link, reterr));
                clock->sleep_ns(clock->context, WAIT_SLICE_NS);
        }
        *ret_fd = TAKE_FD(fd);
        return 0;
}
