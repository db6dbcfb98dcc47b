/* SPDX-License-Identifier: Apache-2.0 */
#include "client/generation_lock.h"
#include "base/cleanup.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_SLICE_NS (20 * NSEC_PER_MSEC)

static const char operation[] = "lock generation";

static int open_file(const char *path, int flags) {
        return open(path, flags | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
}

static bool is_at_its_place(const char *path, int fd) {
        struct stat there, opened;
        return stat(path, &there) == 0 && fstat(fd, &opened) == 0 &&
               there.st_dev == opened.st_dev && there.st_ino == opened.st_ino;
}

/* One's own byte. Whoever removes the file has all of it locked, for a moment: what was opened
 * before that is nobody's any more. */
static int open_locked(const char *path, uint64_t generation, uint64_t deadline_ns,
                       const struct clock_ops *clock, struct cairn_error *reterr) {
        const struct flock own = {
                .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = (off_t) generation, .l_len = 1};
        for (;;) {
                _cleanup_close_ int fd = open_file(path, O_CREAT);
                bool locked = fd >= 0 && fcntl(fd, F_SETLK, &own) == 0;
                if (locked && is_at_its_place(path, fd))
                        return TAKE_FD(fd);
                if (!locked && (fd < 0 || (errno != EAGAIN && errno != EACCES)))
                        return error_set_errno(reterr, errno, operation, path);
                if (clock_now(clock) >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, operation, path,
                                         "another process keeps it locked");
                clock->sleep_ns(clock->context, WAIT_SLICE_NS);
        }
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
        char path[4096];
        TRY(wire_private_path(run, ".trainers", path, sizeof path, reterr));
        _cleanup_close_ int fd = open_locked(path, generation, deadline_ns, clock, reterr);
        TRY(fd);
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

void generation_lock_remove(const char *run) {
        const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        char path[4096];
        if (wire_private_path(run, ".trainers", path, sizeof path, NULL) < 0)
                return;
        _cleanup_close_ int fd = open_file(path, 0);
        if (fd >= 0 && fcntl(fd, F_SETLK, &whole) == 0 && is_at_its_place(path, fd))
                (void) unlink(path);
}
