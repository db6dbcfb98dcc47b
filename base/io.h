/* SPDX-License-Identifier: Apache-2.0
 *
 * io.h - durable file operations behind a table, so that the simulator (tests/sim) can drop, tear
 * and reorder what was not synced. Everything that touches a store goes through `struct io_ops`;
 * only ring.c writes data past it (and has a second back end that does not).
 *
 * Table functions follow the system calls: result or -1 with errno. Paths are relative to a
 * directory fd and resolved beneath it without following links (openat2
 * RESOLVE_BENEATH|RESOLVE_NO_SYMLINKS). The io_* helpers below return enum cairn_status and fill
 * reterr.
 */
#ifndef CAIRN_IO_H
#define CAIRN_IO_H

#include "base/status.h"
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

struct io_ops {
        int (*openat)(void *context, int dirfd, const char *path, int flags,
                      mode_t mode); /* adds O_CLOEXEC */
        int (*close)(void *context, int fd);
        int (*mkdirat)(void *context, int dirfd, const char *path, mode_t mode);
        int (*unlinkat)(void *context, int dirfd, const char *path, int flags);
        int (*renameat)(void *context, int olddirfd, const char *oldpath, int newdirfd,
                        const char *newpath,
                        unsigned flags); /* renameat2 flags: RENAME_NOREPLACE */
        int (*linkat)(void *context, int olddirfd, const char *oldpath, int newdirfd,
                      const char *newpath);
        int (*fstat)(void *context, int fd, struct stat *ret);
        int (*fallocate)(void *context, int fd, off_t offset, off_t bytes);
        int (*ftruncate)(void *context, int fd, off_t bytes);
        ssize_t (*pread)(void *context, int fd, void *buf, size_t bytes, off_t offset);
        ssize_t (*pwrite)(void *context, int fd, const void *buf, size_t bytes, off_t offset);
        int (*fsync)(void *context, int fd); /* files and directories */
        int (*fdatasync)(void *context, int fd);
        /* Calls visit(name, argument) for each entry but "." and ".."; stops when visit returns
         * non-zero and returns that; -1 with errno on failure. */
        int (*list)(void *context, int dirfd, int (*visit)(const char *name, void *argument),
                    void *argument);
        /* Exclusive lock of the open file (opened for writing), held until the last descriptor of
         * this opening is closed; EAGAIN: somebody else holds it. */
        int (*try_lock)(void *context, int fd);
        void *context;
};

extern const struct io_ops io_system;

/* Write all / read exactly `bytes`; short transfers are resumed, EINTR retried. A short file is
 * CORRUPT. */
int io_write_all(const struct io_ops *io, int fd, const void *buf, size_t bytes, uint64_t offset,
                 const char *object, struct cairn_error *reterr);
int io_read_exact(const struct io_ops *io, int fd, void *buf, size_t bytes, uint64_t offset,
                  const char *object, struct cairn_error *reterr);
/* Whole file of at most bytes_max into malloc'ed memory (caller frees). Larger: CORRUPT, nothing
 * allocated. */
int io_read_file(const struct io_ops *io, int dirfd, const char *path, uint64_t bytes_max,
                 void **ret, size_t *ret_bytes, struct cairn_error *reterr);
/* Create `path` with these bytes, durably and at once: temporary name -> write -> fsync -> rename
 * (replace), or link (exclusive: EXISTS if the name is taken) -> fsync(dirfd). */
enum io_publish { IO_PUBLISH_REPLACE, IO_PUBLISH_EXCLUSIVE };
int io_publish_file(const struct io_ops *io, int dirfd, const char *path, const void *bytes,
                    size_t bytes_count, enum io_publish how, struct cairn_error *reterr);
/* mkdir + fsync of the parent. EXISTS if it is there (unless `existing_ok`). */
int io_make_dir(const struct io_ops *io, int dirfd, const char *path, mode_t mode, bool existing_ok,
                struct cairn_error *reterr);
int io_sync(const struct io_ops *io, int fd, const char *object, struct cairn_error *reterr);

/* Before anything else in a main: descriptors 0..2 that are closed become /dev/null, or the first
 * file or socket would be taken for standard output or error, and be written into. */
void io_open_standard(void);

#endif
