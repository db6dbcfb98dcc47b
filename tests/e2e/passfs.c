/* SPDX-License-Identifier: Apache-2.0
 *
 * passfs - a file system that passes everything on to a folder and fails as a test tells it to:
 *
 *     passfs CONTROL FOLDER MOUNTPOINT        until it is unmounted
 *
 * CONTROL is a file of words, read again at each call; empty: all goes well.
 *
 *     write=E sync=E reserve=E open=E read=E   these calls end with errno E: EIO, ENOSPC ...
 *     on=TEXT                                  ... but only for paths that contain it
 *     short=N                                  a write takes at most N bytes
 *     slow=N                                   a write takes N ms longer
 *     hang                                     no call ends while the word stands there (also on=)
 *     noclose                                  only a close never ends
 *     readonly                                 what would change something ends with EROFS
 *     nodirect                                 transfers of files opened with O_DIRECT: EINVAL
 *
 * Nothing is cached, so that each call of the kernel arrives here. Exit 77: cannot be mounted here.
 */
#define FUSE_USE_VERSION 31
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CONTROL_BYTES = 1024, HANG_POLL_MS = 10 };

static int backing = -1;
static const char *control_path;

/* ---- what the test wants ---- */

static void nap(long ms) {
        const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
        (void) nanosleep(&time, NULL);
}

static void read_control(char *text) {
        int fd = open(control_path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd >= 0 ? read(fd, text + 1, CONTROL_BYTES - 3) : 0;
        if (fd >= 0)
                (void) close(fd);
        if (n < 0)
                n = 0;
        text[0] = ' ';
        text[n + 1] = '\0';
        for (char *c = text; *c; c++)
                if (*c == '\n')
                        *c = ' ';
        memcpy(text + strlen(text), " ", 2);
}

/* The rest of a word that begins with `key`; NULL if there is none. */
static const char *value_of(const char *text, const char *key) {
        char pattern[32];
        (void) snprintf(pattern, sizeof pattern, " %s", key);
        const char *found = strstr(text, pattern);
        return found ? found + strlen(pattern) : NULL;
}

static int errno_of(const char *name) {
        static const struct {
                const char *name;
                int number;
        } rows[] = {{"EIO ", EIO},       {"ENOSPC ", ENOSPC}, {"EDQUOT ", EDQUOT},
                    {"ESTALE ", ESTALE}, {"EROFS ", EROFS},   {"EACCES ", EACCES},
                    {"EINVAL ", EINVAL}, {"ENOSYS ", ENOSYS}, {"EOPNOTSUPP ", EOPNOTSUPP}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                if (strncmp(name, rows[i].name, strlen(rows[i].name)) == 0)
                        return rows[i].number;
        fprintf(stderr, "passfs: unknown error %s\n", name);
        return EIO;
}

static bool is_meant(const char *text, const char *path) {
        const char *on = value_of(text, "on=");
        char part[128];
        if (!on)
                return true;
        (void) snprintf(part, sizeof part, "%.*s", (int) strcspn(on, " "), on);
        return strstr(path, part) != NULL;
}

/* Waits out a hang; then 0 or a negative errno. `key` may be NULL: only the hang counts. */
static int gate(const char *path, const char *key, bool changes, char *text) {
        read_control(text);
        while (value_of(text, "hang ") && is_meant(text, path)) {
                nap(HANG_POLL_MS);
                read_control(text);
        }
        if (changes && value_of(text, "readonly "))
                return -EROFS;
        const char *error = key ? value_of(text, key) : NULL;
        return error && is_meant(text, path) ? -errno_of(error) : 0;
}

static int allowed(const char *path, const char *key, bool changes) {
        char text[CONTROL_BYTES];
        return gate(path, key, changes, text);
}

static const char *below(const char *path) {
        return path[1] ? path + 1 : ".";
}

static int outcome(int r) {
        return r < 0 ? -errno : r;
}

/* ---- the calls ---- */

static int pass_getattr(const char *path, struct stat *ret, struct fuse_file_info *info) {
        int r = allowed(path, NULL, false);
        if (r == 0)
                r = outcome(info ? fstat((int) info->fh, ret)
                                 : fstatat(backing, below(path), ret, AT_SYMLINK_NOFOLLOW));
        return r;
}

static int open_file(const char *path, int flags, mode_t mode, struct fuse_file_info *info) {
        bool changes = (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC);
        int r = allowed(path, "open=", changes);
        if (r < 0)
                return r;
        /* What this file system is asked, not what its folder's can do. */
        int fd = openat(backing, below(path), (flags & ~O_DIRECT) | O_CLOEXEC | O_NOFOLLOW, mode);
        if (fd < 0)
                return -errno;
        info->fh = (uint64_t) fd;
        return 0;
}

static int pass_open(const char *path, struct fuse_file_info *info) {
        return open_file(path, info->flags, 0, info);
}

static int pass_create(const char *path, mode_t mode, struct fuse_file_info *info) {
        return open_file(path, info->flags | O_CREAT, mode, info);
}

/* Each close of a descriptor, of each process that has it. */
static int pass_flush(const char *path, struct fuse_file_info *info) {
        char text[CONTROL_BYTES];
        (void) info;
        int r = gate(path, NULL, false, text);
        for (; value_of(text, "noclose ") && is_meant(text, path); read_control(text))
                nap(HANG_POLL_MS);
        return r;
}

static int pass_release(const char *path, struct fuse_file_info *info) {
        (void) path;
        return outcome(close((int) info->fh));
}

static int pass_read(const char *path, char *buf, size_t bytes, off_t offset,
                     struct fuse_file_info *info) {
        char text[CONTROL_BYTES];
        int r = gate(path, "read=", false, text);
        if (r == 0 && info->flags & O_DIRECT && value_of(text, "nodirect "))
                r = -EINVAL;
        return r < 0 ? r : outcome((int) pread((int) info->fh, buf, bytes, offset));
}

static int pass_write(const char *path, const char *buf, size_t bytes, off_t offset,
                      struct fuse_file_info *info) {
        char text[CONTROL_BYTES];
        int r = gate(path, "write=", true, text);
        if (r == 0 && info->flags & O_DIRECT && value_of(text, "nodirect "))
                r = -EINVAL;
        if (r < 0)
                return r;
        const char *slow = value_of(text, "slow="), *limit = value_of(text, "short=");
        if (slow)
                nap(strtol(slow, NULL, 10));
        size_t most = limit ? strtoul(limit, NULL, 10) : bytes;
        return outcome((int) pwrite((int) info->fh, buf, bytes < most ? bytes : most, offset));
}

static int pass_fallocate(const char *path, int mode, off_t offset, off_t bytes,
                          struct fuse_file_info *info) {
        int r = allowed(path, "reserve=", true);
        return r < 0 ? r : outcome(fallocate((int) info->fh, mode, offset, bytes));
}

static int pass_truncate(const char *path, off_t bytes, struct fuse_file_info *info) {
        int r = allowed(path, NULL, true);
        if (r < 0)
                return r;
        if (info)
                return outcome(ftruncate((int) info->fh, bytes));
        int fd = openat(backing, below(path), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return -errno;
        r = outcome(ftruncate(fd, bytes));
        (void) close(fd);
        return r;
}

static int pass_fsync(const char *path, int data_only, struct fuse_file_info *info) {
        int r = allowed(path, "sync=", false);
        return r < 0 ? r : outcome(data_only ? fdatasync((int) info->fh) : fsync((int) info->fh));
}

static int pass_fsyncdir(const char *path, int data_only, struct fuse_file_info *info) {
        (void) data_only;
        (void) info;
        int r = allowed(path, "sync=", false);
        if (r < 0)
                return r;
        int fd = openat(backing, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        r = outcome(fsync(fd));
        (void) close(fd);
        return r;
}

static int pass_mkdir(const char *path, mode_t mode) {
        int r = allowed(path, NULL, true);
        return r < 0 ? r : outcome(mkdirat(backing, below(path), mode));
}

static int pass_unlink(const char *path) {
        int r = allowed(path, NULL, true);
        return r < 0 ? r : outcome(unlinkat(backing, below(path), 0));
}

static int pass_rmdir(const char *path) {
        int r = allowed(path, NULL, true);
        return r < 0 ? r : outcome(unlinkat(backing, below(path), AT_REMOVEDIR));
}

static int pass_rename(const char *from, const char *to, unsigned flags) {
        int r = allowed(from, NULL, true);
        return r < 0 ? r : outcome(renameat2(backing, below(from), backing, below(to), flags));
}

static int pass_link(const char *from, const char *to) {
        int r = allowed(from, NULL, true);
        return r < 0 ? r : outcome(linkat(backing, below(from), backing, below(to), 0));
}

static int pass_chmod(const char *path, mode_t mode, struct fuse_file_info *info) {
        (void) info;
        int r = allowed(path, NULL, true);
        return r < 0 ? r : outcome(fchmodat(backing, below(path), mode, 0));
}

static int pass_utimens(const char *path, const struct timespec times[2],
                        struct fuse_file_info *info) {
        (void) info;
        int r = allowed(path, NULL, true);
        return r < 0 ? r : outcome(utimensat(backing, below(path), times, AT_SYMLINK_NOFOLLOW));
}

static int pass_statfs(const char *path, struct statvfs *ret) {
        (void) path;
        return outcome(fstatvfs(backing, ret));
}

static int pass_readdir(const char *path, void *buf, fuse_fill_dir_t fill, off_t offset,
                        struct fuse_file_info *info, enum fuse_readdir_flags flags) {
        (void) offset;
        (void) info;
        (void) flags;
        int r = allowed(path, "read=", false);
        if (r < 0)
                return r;
        int fd = openat(backing, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
        if (!directory)
                return -errno;
        for (const struct dirent *e; (e = readdir(directory));)
                (void) fill(buf, e->d_name, NULL, 0, 0);
        (void) closedir(directory);
        return 0;
}

static void *pass_init(struct fuse_conn_info *connection, struct fuse_config *config) {
        /* The kernel makes EIO of a short write that was sent asynchronously. */
        connection->want &= ~(unsigned) FUSE_CAP_ASYNC_DIO;
        config->attr_timeout = config->entry_timeout = config->negative_timeout = 0;
        config->use_ino = 1;
        config->hard_remove = 1; /* no .fuse_hidden files: an unlinked file keeps its descriptor */
        return NULL;
}

static const struct fuse_operations operations = {
        .init = pass_init,
        .getattr = pass_getattr,
        .open = pass_open,
        .create = pass_create,
        .flush = pass_flush,
        .release = pass_release,
        .read = pass_read,
        .write = pass_write,
        .fallocate = pass_fallocate,
        .truncate = pass_truncate,
        .fsync = pass_fsync,
        .fsyncdir = pass_fsyncdir,
        .mkdir = pass_mkdir,
        .unlink = pass_unlink,
        .rmdir = pass_rmdir,
        .rename = pass_rename,
        .link = pass_link,
        .chmod = pass_chmod,
        .utimens = pass_utimens,
        .statfs = pass_statfs,
        .readdir = pass_readdir,
};

int main(int argc, char **argv) {
        char program[] = "passfs", foreground[] = "-f", option[] = "-o";
        char options[] = "default_permissions,fsname=passfs,allow_other";
        if (argc != 4) {
                fprintf(stderr, "usage: passfs CONTROL FOLDER MOUNTPOINT\n");
                return 64;
        }
        control_path = argv[1];
        backing = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (backing < 0) {
                perror(argv[2]);
                return 66;
        }
        (void) umask(0);
        char *arguments[] = {program, foreground, option, options, argv[3], NULL};
        return fuse_main(5, arguments, &operations, NULL) == 0 ? 0 : 77;
}
