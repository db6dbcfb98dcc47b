/* SPDX-License-Identifier: Apache-2.0 */
#include "base/io.h"
#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the system's table ---- */

/* There is no fallback to openat: without openat2 (kernel before 5.6, or a sandbox) the promise to
 * stay beneath the folder cannot be kept, and the caller is told so by ENOSYS. */
static int open_beneath(int dirfd, const char *path, int flags, mode_t mode) {
        struct open_how how = {
                .flags = (unsigned) (flags | O_CLOEXEC),
                .mode = flags & (O_CREAT | __O_TMPFILE) ? mode : 0,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
        };
        long fd = -1;

        /* EAGAIN: something on the way was renamed meanwhile. */
        for (int attempt = 0; attempt < 16; attempt++) {
                fd = syscall(SYS_openat2, dirfd, path, &how, sizeof how);
                if (fd >= 0 || errno != EAGAIN)
                        break;
        }
        return (int) fd;
}

/* The other calls have no openat2 form, but none of them follows a link in the last component. So
 * the folder is opened beneath dirfd and only the last component is left to them. */
struct place {
        int owned; /* fd to close, -1 if the path has one component */
        int dirfd;
        const char *last;
};

static void cleanup_place(const struct place *place) {
        cleanup_close(&place->owned);
}

static int find_place(struct place *place, int dirfd, const char *path) {
        const char *slash = strrchr(path, '/');
        char parent[PATH_MAX];

        *place = (struct place){.owned = -1, .dirfd = dirfd, .last = slash ? slash + 1 : path};
        if (!place->last[0] || strcmp(place->last, ".") == 0 || strcmp(place->last, "..") == 0) {
                errno = EINVAL;
                return -1;
        }
        if (!slash)
                return 0;
        size_t bytes = slash == path ? 1 : (size_t) (slash - path);
        if (bytes >= sizeof parent) {
                errno = ENAMETOOLONG;
                return -1;
        }
        memcpy(parent, path, bytes);
        parent[bytes] = '\0';
        place->owned = place->dirfd = open_beneath(dirfd, parent, O_PATH | O_DIRECTORY, 0);
        return place->owned < 0 ? -1 : 0;
}

static int system_openat(void *context, int dirfd, const char *path, int flags, mode_t mode) {
        return open_beneath(dirfd, path, flags, mode);
}

static int system_close(void *context, int fd) {
        return close(fd);
}

static int system_mkdirat(void *context, int dirfd, const char *path, mode_t mode) {
        _cleanup_(cleanup_place) struct place place;
        return find_place(&place, dirfd, path) < 0 ? -1 : mkdirat(place.dirfd, place.last, mode);
}

static int system_unlinkat(void *context, int dirfd, const char *path, int flags) {
        _cleanup_(cleanup_place) struct place place;
        return find_place(&place, dirfd, path) < 0 ? -1 : unlinkat(place.dirfd, place.last, flags);
}

static int system_renameat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                           const char *newpath, unsigned flags) {
        _cleanup_(cleanup_place) struct place from = {.owned = -1}, to = {.owned = -1};
        if (find_place(&from, olddirfd, oldpath) < 0 || find_place(&to, newdirfd, newpath) < 0)
                return -1;
        return renameat2(from.dirfd, from.last, to.dirfd, to.last, flags);
}

static int system_linkat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                         const char *newpath) {
        _cleanup_(cleanup_place) struct place from = {.owned = -1}, to = {.owned = -1};
        if (find_place(&from, olddirfd, oldpath) < 0 || find_place(&to, newdirfd, newpath) < 0)
                return -1;
        return linkat(from.dirfd, from.last, to.dirfd, to.last, 0);
}

static int system_fstat(void *context, int fd, struct stat *ret) {
        return fstat(fd, ret);
}

static int system_fallocate(void *context, int fd, off_t offset, off_t bytes) {
        return fallocate(fd, 0, offset, bytes);
}

static int system_ftruncate(void *context, int fd, off_t bytes) {
        return ftruncate(fd, bytes);
}

static ssize_t system_pread(void *context, int fd, void *buf, size_t bytes, off_t offset) {
        return pread(fd, buf, bytes, offset);
}

static ssize_t system_pwrite(void *context, int fd, const void *buf, size_t bytes, off_t offset) {
        return pwrite(fd, buf, bytes, offset);
}

static int system_fsync(void *context, int fd) {
        return fsync(fd);
}

static int system_fdatasync(void *context, int fd) {
        return fdatasync(fd);
}

static void cleanup_closedir(DIR **directory) {
        if (*directory)
                (void) closedir(*directory);
}

static int system_list(void *context, int dirfd, int (*visit)(const char *name, void *argument),
                       void *argument) {
        /* A description of its own: reading moves the offset, and dirfd may be O_PATH. */
        _cleanup_close_ int fd = open_beneath(dirfd, ".", O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0)
                return -1;
        _cleanup_(cleanup_closedir) DIR *directory = fdopendir(fd);
        if (!directory)
                return -1;
        (void) TAKE_FD(fd);
        for (;;) {
                errno = 0;
                const struct dirent *entry = readdir(directory);
                if (!entry)
                        return errno ? -1 : 0;
                if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                        continue;
                int r = visit(entry->d_name, argument);
                if (r != 0)
                        return r;
        }
}

/* A lock of the opening, not of the process: it survives other openings of the file here and goes
 * with the last descriptor. File systems that know no ranges may still know flock. */
static int system_try_lock(void *context, int fd) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int r;

        do
                r = fcntl(fd, F_OFD_SETLK, &lock);
        while (r < 0 && errno == EINTR);
        if (r < 0 && (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS))
                do
                        r = flock(fd, LOCK_EX | LOCK_NB);
                while (r < 0 && errno == EINTR);
        if (r < 0 && errno == EACCES)
                errno = EAGAIN;
        return r;
}

const struct io_ops io_system = {
        .openat = system_openat,
        .close = system_close,
        .mkdirat = system_mkdirat,
        .unlinkat = system_unlinkat,
        .renameat = system_renameat,
        .linkat = system_linkat,
        .fstat = system_fstat,
        .fallocate = system_fallocate,
        .ftruncate = system_ftruncate,
        .pread = system_pread,
        .pwrite = system_pwrite,
        .fsync = system_fsync,
        .fdatasync = system_fdatasync,
        .list = system_list,
        .try_lock = system_try_lock,
};

/* ---- helpers on any table ---- */

struct io_fd {
        const struct io_ops *io;
        int fd;
};

static void cleanup_io_fd(const struct io_fd *f) {
        if (f->fd >= 0)
                (void) f->io->close(f->io->context, f->fd);
}

static int open_retrying(const struct io_ops *io, int dirfd, const char *path, int flags,
                         mode_t mode) {
        int fd;
        do
                fd = io->openat(io->context, dirfd, path, flags, mode);
        while (fd < 0 && errno == EINTR);
        return fd;
}

static int check_range(uint64_t offset, size_t bytes, const char *operation, const char *object,
                       struct cairn_error *reterr) {
        if (bytes <= INT64_MAX && offset <= INT64_MAX - bytes)
                return 0;
        return error_set(reterr, CAIRN_ERR_API, operation, object,
                         "%zu bytes at %" PRIu64 " are beyond any file", bytes, offset);
}

int io_write_all(const struct io_ops *io, int fd, const void *buf, size_t bytes, uint64_t offset,
                 const char *object, struct cairn_error *reterr) {
        const unsigned char *p = buf;

        TRY(check_range(offset, bytes, "write", object, reterr));
        while (bytes > 0) {
                ssize_t n = io->pwrite(io->context, fd, p, bytes, (off_t) offset);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0) /* 0 is no errno; storage that takes nothing has failed */
                        return error_set_errno_at(reterr, n < 0 ? errno : EIO, "write", object,
                                                  offset);
                p += n;
                bytes -= (size_t) n;
                offset += (uint64_t) n;
        }
        return 0;
}

int io_read_exact(const struct io_ops *io, int fd, void *buf, size_t bytes, uint64_t offset,
                  const char *object, struct cairn_error *reterr) {
        unsigned char *p = buf;

        TRY(check_range(offset, bytes, "read", object, reterr));
        while (bytes > 0) {
                ssize_t n = io->pread(io->context, fd, p, bytes, (off_t) offset);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return error_set_errno_at(reterr, errno, "read", object, offset);
                if (n == 0) {
                        int r = error_set(reterr, CAIRN_ERR_CORRUPT, "read", object,
                                          "the file ends %zu bytes too early", bytes);
                        if (reterr)
                                reterr->offset = offset;
                        return r;
                }
                p += n;
                bytes -= (size_t) n;
                offset += (uint64_t) n;
        }
        return 0;
}

int io_read_file(const struct io_ops *io, int dirfd, const char *path, uint64_t bytes_max,
                 void **ret, size_t *ret_bytes, struct cairn_error *reterr) {
        struct stat st;

        /* O_NONBLOCK: a FIFO that somebody put there must not stop us; it means nothing for a file.
         */
        _cleanup_(cleanup_io_fd) struct io_fd file = {
                io, open_retrying(io, dirfd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0)};
        if (file.fd < 0)
                return error_set_errno(reterr, errno, "open", path);
        if (io->fstat(io->context, file.fd, &st) < 0)
                return error_set_errno(reterr, errno, "stat", path);
        if (!S_ISREG(st.st_mode))
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read", path,
                                 "this is not a regular file");
        if (st.st_size < 0 || (uint64_t) st.st_size > bytes_max)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read", path,
                                 "the file has %jd bytes, at most %" PRIu64 " are allowed",
                                 (intmax_t) st.st_size, bytes_max);
        size_t bytes = (size_t) st.st_size;
        _cleanup_free_ void *buf = malloc(bytes ? bytes : 1);
        if (!buf)
                return error_set_errno(reterr, ENOMEM, "read", path);
        TRY(io_read_exact(io, file.fd, buf, bytes, 0, path, reterr));
        *ret = TAKE_PTR(buf);
        *ret_bytes = bytes;
        return 0;
}

/* Never repeated after a failure: the kernel may have dropped the pages that it could not write,
 * and a second call would then report success. EINTR is no such failure. */
int io_sync(const struct io_ops *io, int fd, const char *object, struct cairn_error *reterr) {
        int r;
        do
                r = io->fsync(io->context, fd);
        while (r < 0 && errno == EINTR);
        return r < 0 ? error_set_errno(reterr, errno, "sync", object) : 0;
}

/* The folder in which `path` is an entry, and the entry's name. Without a slash that is dirfd, not
 * owned. */
struct entry {
        struct io_fd owned;
        int dirfd;
        const char *name;
};

static void cleanup_entry(const struct entry *entry) {
        cleanup_io_fd(&entry->owned);
}

static int entry_open(struct entry *entry, const struct io_ops *io, int dirfd, const char *path,
                      struct cairn_error *reterr) {
        const char *slash = strrchr(path, '/');
        char parent[PATH_MAX];

        *entry =
                (struct entry){.owned = {io, -1}, .dirfd = dirfd, .name = slash ? slash + 1 : path};
        if (!entry->name[0] || slash == path || (slash && slash - path >= PATH_MAX))
                return error_set(reterr, CAIRN_ERR_API, "create", path,
                                 "the name must be one beneath a folder");
        if (!slash)
                return 0;
        memcpy(parent, path, (size_t) (slash - path));
        parent[slash - path] = '\0';
        entry->owned.fd = open_retrying(io, dirfd, parent, O_RDONLY | O_DIRECTORY, 0);
        if (entry->owned.fd < 0)
                return error_set_errno(reterr, errno, "open folder", parent);
        entry->dirfd = entry->owned.fd;
        return 0;
}

/* Durable bytes under a temporary name that no other process or node chooses. */
static int write_temporary(const struct io_ops *io, int dirfd, char *ret_name, size_t name_bytes,
                           const void *bytes, size_t bytes_count, const char *object,
                           struct io_fd *ret_file, struct cairn_error *reterr) {
        uint64_t tag;
        int r;

        if (getrandom(&tag, sizeof tag, 0) != sizeof tag)
                return error_set_errno(reterr, errno, "choose a temporary name", object);
        (void) snprintf(ret_name, name_bytes, ".tmp-%016" PRIx64, tag);
        ret_file->fd = open_retrying(io, dirfd, ret_name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (ret_file->fd < 0)
                return error_set_errno(reterr, errno, "create", object);
        TRY_GOTO(io_write_all(io, ret_file->fd, bytes, bytes_count, 0, object, reterr), fail);
        TRY_GOTO(io_sync(io, ret_file->fd, object, reterr), fail);
        return 0;
fail:
        (void) io->unlinkat(io->context, dirfd, ret_name, 0);
        return r;
}

/* NFS may repeat a link whose first answer was lost and then report EEXIST for our own success; the
 * second name shows in the link count. */
static bool is_linked(const struct io_ops *io, int fd) {
        struct stat st;
        return io->fstat(io->context, fd, &st) == 0 && st.st_nlink == 2;
}

static int give_name(const struct io_ops *io, int fd, int dirfd, const char *temporary,
                     const char *name, enum io_publish how, const char *object,
                     struct cairn_error *reterr) {
        int r = 0;

        if (how == IO_PUBLISH_REPLACE) {
                if (io->renameat(io->context, dirfd, temporary, dirfd, name, 0) == 0)
                        return 0;
                r = error_set_errno(reterr, errno, "rename", object);
        } else if (io->linkat(io->context, dirfd, temporary, dirfd, name) < 0) {
                int error_number = errno;
                if (error_number != EEXIST || !is_linked(io, fd))
                        r = error_set_errno(reterr, error_number, "create", object);
        }
        (void) io->unlinkat(io->context, dirfd, temporary, 0);
        return r;
}

int io_publish_file(const struct io_ops *io, int dirfd, const char *path, const void *bytes,
                    size_t bytes_count, enum io_publish how, struct cairn_error *reterr) {
        _cleanup_(cleanup_entry) struct entry entry = {.owned = {io, -1}};
        _cleanup_(cleanup_io_fd) struct io_fd file = {io, -1};
        char temporary[32];

        TRY(entry_open(&entry, io, dirfd, path, reterr));
        TRY(write_temporary(io, entry.dirfd, temporary, sizeof temporary, bytes, bytes_count, path,
                            &file, reterr));
        TRY(give_name(io, file.fd, entry.dirfd, temporary, entry.name, how, path, reterr));
        return io_sync(io, entry.dirfd, path, reterr);
}

int io_make_dir(const struct io_ops *io, int dirfd, const char *path, mode_t mode, bool existing_ok,
                struct cairn_error *reterr) {
        _cleanup_(cleanup_entry) struct entry entry = {.owned = {io, -1}};

        TRY(entry_open(&entry, io, dirfd, path, reterr));
        if (io->mkdirat(io->context, entry.dirfd, entry.name, mode) < 0) {
                if (errno != EEXIST || !existing_ok)
                        return error_set_errno(reterr, errno, "create folder", path);
                _cleanup_(cleanup_io_fd) struct io_fd existing = {
                        io, open_retrying(io, entry.dirfd, entry.name, O_RDONLY | O_DIRECTORY, 0)};
                if (existing.fd < 0)
                        return error_set_errno(reterr, errno, "open folder", path);
        }
        /* Also where it existed: that it can be seen does not mean that it would survive. */
        return io_sync(io, entry.dirfd, path, reterr);
}

void io_open_standard(void) {
        for (int fd = 0; fd < 3; fd++)
                if (fcntl(fd, F_GETFD) < 0)
                        (void) open("/dev/null", O_RDWR);
}
