/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "base/io.h"
#include "tests/test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* ---- a table that records, shortens, interrupts and fails ---- */

struct recorder {
        char calls[1024];
        const char *fail_call; /* this call fails ... */
        int fail_errno;        /* ... with this, each time */
        size_t transfer_max;   /* short transfers; 0: whole ones */
        int interrupts;        /* so many EINTR before a call works */
};

/* True if the call is to be done. */
static bool record(struct recorder *r, const char *call, const char *object) {
        if (r->interrupts > 0) {
                r->interrupts--;
                errno = EINTR;
                return false;
        }
        size_t used = strlen(r->calls);
        (void) snprintf(r->calls + used, sizeof r->calls - used, "%s%s%s ", call,
                        object[0] ? ":" : "", strncmp(object, ".tmp-", 5) == 0 ? "TMP" : object);
        if (r->fail_call && strcmp(r->fail_call, call) == 0) {
                errno = r->fail_errno;
                return false;
        }
        return true;
}

static int recorder_openat(void *context, int dirfd, const char *path, int flags, mode_t mode) {
        return record(context, "open", path) ? io_system.openat(NULL, dirfd, path, flags, mode)
                                             : -1;
}

static int recorder_close(void *context, int fd) {
        (void) record(context, "close", "");
        return io_system.close(NULL, fd);
}

static int recorder_mkdirat(void *context, int dirfd, const char *path, mode_t mode) {
        return record(context, "mkdir", path) ? io_system.mkdirat(NULL, dirfd, path, mode) : -1;
}

static int recorder_unlinkat(void *context, int dirfd, const char *path, int flags) {
        return record(context, "unlink", path) ? io_system.unlinkat(NULL, dirfd, path, flags) : -1;
}

static int recorder_renameat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                             const char *newpath, unsigned flags) {
        return record(context, "rename", newpath)
                       ? io_system.renameat(NULL, olddirfd, oldpath, newdirfd, newpath, flags)
                       : -1;
}

static int recorder_linkat(void *context, int olddirfd, const char *oldpath, int newdirfd,
                           const char *newpath) {
        return record(context, "link", newpath)
                       ? io_system.linkat(NULL, olddirfd, oldpath, newdirfd, newpath)
                       : -1;
}

static int recorder_fstat(void *context, int fd, struct stat *ret) {
        return record(context, "stat", "") ? io_system.fstat(NULL, fd, ret) : -1;
}

static size_t shortened(const struct recorder *r, size_t bytes) {
        return r->transfer_max && bytes > r->transfer_max ? r->transfer_max : bytes;
}

static ssize_t recorder_pread(void *context, int fd, void *buf, size_t bytes, off_t offset) {
        return record(context, "read", "")
                       ? io_system.pread(NULL, fd, buf, shortened(context, bytes), offset)
                       : -1;
}

static ssize_t recorder_pwrite(void *context, int fd, const void *buf, size_t bytes, off_t offset) {
        return record(context, "write", "")
                       ? io_system.pwrite(NULL, fd, buf, shortened(context, bytes), offset)
                       : -1;
}

static int recorder_fsync(void *context, int fd) {
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        return record(context, S_ISDIR(st.st_mode) ? "sync-folder" : "sync", "")
                       ? io_system.fsync(NULL, fd)
                       : -1;
}

static struct io_ops recording(struct recorder *r) {
        return (struct io_ops){
                .openat = recorder_openat,
                .close = recorder_close,
                .mkdirat = recorder_mkdirat,
                .unlinkat = recorder_unlinkat,
                .renameat = recorder_renameat,
                .linkat = recorder_linkat,
                .fstat = recorder_fstat,
                .pread = recorder_pread,
                .pwrite = recorder_pwrite,
                .fsync = recorder_fsync,
                .context = r,
        };
}

/* ---- fixture ---- */

struct folder {
        char path[256];
        int fd;
};

static int set_up(void **state) {
        static struct folder folder;
        folder.fd = test_folder(folder.path, sizeof folder.path);
        *state = &folder;
        return 0;
}

static int tear_down(void **state) {
        struct folder *folder = *state;
        return close(folder->fd);
}

static int count_entry(const char *name, void *argument) {
        ++*(int *) argument;
        return 0;
}

static int entries(int dirfd) {
        int count = 0;
        assert_int_equal(io_system.list(NULL, dirfd, count_entry, &count), 0);
        return count;
}

static void assert_content(int dirfd, const char *path, const char *text) {
        _cleanup_free_ void *buf = NULL;
        size_t bytes;
        assert_int_equal(io_read_file(&io_system, dirfd, path, 1000, &buf, &bytes, NULL), 0);
        assert_int_equal(bytes, strlen(text));
        assert_memory_equal(buf, text, bytes);
}

static void make_file(int dirfd, const char *path, const char *text) {
        assert_int_equal(io_publish_file(&io_system, dirfd, path, text, strlen(text),
                                         IO_PUBLISH_REPLACE, NULL),
                         0);
}

/* ---- publishing ---- */

static void test_publish_order(void **state) {
        const struct folder *f = *state;
        struct recorder r = {0};
        struct io_ops io = recording(&r);

        assert_int_equal(io_publish_file(&io, f->fd, "a", "one", 3, IO_PUBLISH_REPLACE, NULL), 0);
        assert_string_equal(r.calls, "open:TMP write sync rename:a sync-folder close ");
        assert_content(f->fd, "a", "one");

        r = (struct recorder){0};
        assert_int_equal(io_publish_file(&io, f->fd, "b", "two", 3, IO_PUBLISH_EXCLUSIVE, NULL), 0);
        assert_string_equal(r.calls, "open:TMP write sync link:b unlink:TMP sync-folder close ");
        assert_content(f->fd, "b", "two");
        assert_int_equal(entries(f->fd), 2);
}

static void test_publish_replaces_or_refuses(void **state) {
        const struct folder *f = *state;
        struct cairn_error e;

        make_file(f->fd, "a", "one");
        make_file(f->fd, "a", "");
        assert_content(f->fd, "a", "");
        make_file(f->fd, "a", "two");
        assert_int_equal(io_publish_file(&io_system, f->fd, "a", "x", 1, IO_PUBLISH_EXCLUSIVE, &e),
                         CAIRN_ERR_EXISTS);
        assert_string_equal(e.object, "a");
        assert_content(f->fd, "a", "two");
        assert_int_equal(entries(f->fd), 1);
}

/* The folder that is synced is the one that holds the name. */
static void test_publish_in_a_subfolder(void **state) {
        const struct folder *f = *state;
        struct recorder r = {0};
        struct io_ops io = recording(&r);

        assert_int_equal(io_make_dir(&io_system, f->fd, "marks", 0755, false, NULL), 0);
        assert_int_equal(
                io_publish_file(&io, f->fd, "marks/pin", "x", 1, IO_PUBLISH_EXCLUSIVE, NULL), 0);
        assert_string_equal(r.calls, "open:marks open:TMP write sync link:pin unlink:TMP "
                                     "sync-folder close close ");
        assert_content(f->fd, "marks/pin", "x");
        assert_int_equal(entries(f->fd), 1);
        assert_int_equal(
                io_publish_file(&io_system, f->fd, "none/pin", "x", 1, IO_PUBLISH_REPLACE, NULL),
                CAIRN_ERR_NOTFOUND);
        assert_int_equal(
                io_publish_file(&io_system, f->fd, "marks/", "x", 1, IO_PUBLISH_REPLACE, NULL),
                CAIRN_ERR_API);
        assert_int_equal(
                io_publish_file(&io_system, f->fd, "/pin", "x", 1, IO_PUBLISH_REPLACE, NULL),
                CAIRN_ERR_API);
}

/* Whatever fails, the old file is whole, the error says so, and no temporary name stays. */
static void test_publish_failures(void **state) {
        const struct folder *f = *state;
        static const struct {
                const char *call;
                int error_number, status;
                enum io_publish how;
        } rows[] = {
                {"open", EROFS, CAIRN_ERR_CANNOT_WRITE, IO_PUBLISH_REPLACE},
                {"write", ENOSPC, CAIRN_ERR_NOSPACE, IO_PUBLISH_REPLACE},
                {"sync", EIO, CAIRN_ERR_IO, IO_PUBLISH_REPLACE},
                {"rename", EACCES, CAIRN_ERR_PERMISSION, IO_PUBLISH_REPLACE},
                {"write", EDQUOT, CAIRN_ERR_NOSPACE, IO_PUBLISH_EXCLUSIVE},
                {"link", EPERM, CAIRN_ERR_PERMISSION, IO_PUBLISH_EXCLUSIVE},
        };

        make_file(f->fd, "a", "old");
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct recorder r = {.fail_call = rows[i].call, .fail_errno = rows[i].error_number};
                struct io_ops io = recording(&r);
                struct cairn_error e = CAIRN_ERROR_INIT;
                const char *name = rows[i].how == IO_PUBLISH_REPLACE ? "a" : "b";
                assert_int_equal(io_publish_file(&io, f->fd, name, "new", 3, rows[i].how, &e),
                                 rows[i].status);
                assert_int_equal(e.system_code, rows[i].error_number);
                assert_int_equal(entries(f->fd), 1);
                assert_content(f->fd, "a", "old");
        }
        /* The last sync: the name is there, but success is not reported. */
        struct recorder r = {.fail_call = "sync-folder", .fail_errno = EIO};
        struct io_ops io = recording(&r);
        assert_int_equal(io_publish_file(&io, f->fd, "a", "new", 3, IO_PUBLISH_REPLACE, NULL),
                         CAIRN_ERR_IO);
        assert_string_equal(r.calls, "open:TMP write sync rename:a sync-folder close ");
}

/* A link that was done although its answer says EEXIST (NFS). */
static int link_with_lost_answer(void *context, int olddirfd, const char *oldpath, int newdirfd,
                                 const char *newpath) {
        (void) io_system.linkat(NULL, olddirfd, oldpath, newdirfd, newpath);
        errno = EEXIST;
        return -1;
}

static void test_publish_with_lost_answer(void **state) {
        const struct folder *f = *state;
        struct io_ops io = io_system;

        io.linkat = link_with_lost_answer;
        assert_int_equal(io_publish_file(&io, f->fd, "a", "mine", 4, IO_PUBLISH_EXCLUSIVE, NULL),
                         0);
        assert_content(f->fd, "a", "mine");
        assert_int_equal(io_publish_file(&io, f->fd, "a", "late", 4, IO_PUBLISH_EXCLUSIVE, NULL),
                         CAIRN_ERR_EXISTS);
        assert_content(f->fd, "a", "mine");
        assert_int_equal(entries(f->fd), 1);
}

/* ---- transfers ---- */

static void test_short_and_interrupted_transfers(void **state) {
        const struct folder *f = *state;
        struct recorder r = {.transfer_max = 3, .interrupts = 4};
        struct io_ops io = recording(&r);
        char buf[16] = "";

        _cleanup_close_ int fd =
                io_system.openat(NULL, f->fd, "a", O_RDWR | O_CREAT | O_EXCL, 0644);
        assert_true(fd >= 0);
        assert_int_equal(io_write_all(&io, fd, "0123456789", 10, 5, "a", NULL), 0);
        assert_string_equal(r.calls, "write write write write ");
        r.interrupts = 2;
        assert_int_equal(io_read_exact(&io, fd, buf, 10, 5, "a", NULL), 0);
        assert_string_equal(buf, "0123456789");
        r.interrupts = 2;
        assert_int_equal(io_sync(&io, fd, "a", NULL), 0);
        r.interrupts = 7;
        assert_int_equal(io_publish_file(&io, f->fd, "b", "x", 1, IO_PUBLISH_REPLACE, NULL), 0);
}

static ssize_t write_nothing(void *context, int fd, const void *buf, size_t bytes, off_t offset) {
        return 0;
}

static void test_transfer_errors(void **state) {
        const struct folder *f = *state;
        struct io_ops io = io_system;
        struct cairn_error e;
        char buf[16];

        make_file(f->fd, "a", "0123456789");
        _cleanup_close_ int fd = io_system.openat(NULL, f->fd, "a", O_RDWR, 0);
        assert_int_equal(io_read_exact(&io, fd, buf, 6, 5, "a", &e), CAIRN_ERR_CORRUPT);
        assert_true(e.offset == 10);
        assert_int_equal(io_read_exact(&io, fd, buf, 0, 50, "a", &e), 0);
        assert_int_equal(io_read_exact(&io, fd, buf, 2, INT64_MAX, "a", &e), CAIRN_ERR_API);
        assert_int_equal(io_write_all(&io, fd, buf, 2, UINT64_MAX, "a", &e), CAIRN_ERR_API);
        io.pwrite = write_nothing;
        assert_int_equal(io_write_all(&io, fd, buf, 2, 4, "a", &e), CAIRN_ERR_IO);
        assert_true(e.offset == 4);
        assert_int_equal(io_sync(&io_system, -1, "a", &e), CAIRN_ERR_IO);
}

static void test_read_file_limits(void **state) {
        const struct folder *f = *state;
        struct cairn_error e;
        void *buf = NULL;
        size_t bytes = 77;

        make_file(f->fd, "a", "0123456789");
        assert_int_equal(io_read_file(&io_system, f->fd, "a", 9, &buf, &bytes, &e),
                         CAIRN_ERR_CORRUPT);
        assert_int_equal(io_read_file(&io_system, f->fd, "b", 9, &buf, &bytes, &e),
                         CAIRN_ERR_NOTFOUND);
        assert_int_equal(mkfifoat(f->fd, "pipe", 0644), 0);
        assert_int_equal(io_read_file(&io_system, f->fd, "pipe", 9, &buf, &bytes, &e),
                         CAIRN_ERR_CORRUPT);
        assert_int_equal(io_read_file(&io_system, f->fd, ".", 9, &buf, &bytes, &e),
                         CAIRN_ERR_CORRUPT);
        assert_null(buf);
        assert_int_equal(bytes, 77);
        assert_int_equal(io_read_file(&io_system, f->fd, "a", 10, &buf, &bytes, &e), 0);
        assert_int_equal(bytes, 10);
        free(buf);
}

/* ---- folders and paths ---- */

static void test_make_dir(void **state) {
        const struct folder *f = *state;
        struct recorder r = {0};
        struct io_ops io = recording(&r);

        assert_int_equal(io_make_dir(&io, f->fd, "run", 0755, false, NULL), 0);
        assert_string_equal(r.calls, "mkdir:run sync-folder ");
        assert_int_equal(io_make_dir(&io, f->fd, "run", 0755, false, NULL), CAIRN_ERR_EXISTS);
        r = (struct recorder){0};
        assert_int_equal(io_make_dir(&io, f->fd, "run", 0755, true, NULL), 0);
        assert_string_equal(r.calls, "mkdir:run open:run close sync-folder ");
        assert_int_equal(io_make_dir(&io_system, f->fd, "run/marks", 0755, false, NULL), 0);
        make_file(f->fd, "file", "");
        assert_int_equal(io_make_dir(&io_system, f->fd, "file", 0755, true, NULL),
                         CAIRN_ERR_CANNOT_WRITE);
}

static int stop_at_second(const char *name, void *argument) {
        return ++*(int *) argument == 2 ? 42 : 0;
}

static void test_list(void **state) {
        const struct folder *f = *state;
        int count = 0;

        make_file(f->fd, "a", "");
        make_file(f->fd, "b", "");
        make_file(f->fd, "c", "");
        assert_int_equal(entries(f->fd), 3);
        assert_int_equal(entries(f->fd), 3);
        assert_int_equal(io_system.list(NULL, f->fd, stop_at_second, &count), 42);
        assert_int_equal(count, 2);
        _cleanup_close_ int path_only = open(f->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(entries(path_only), 3);
        assert_int_equal(io_system.list(NULL, -1, count_entry, &count), -1);
        assert_int_equal(errno, EBADF);
}

static void assert_errno(int result, int error_number) {
        int found = errno;
        assert_int_equal(result, -1);
        assert_int_equal(found, error_number);
}

/* No call leaves the folder or follows a link. */
static void test_paths_stay_beneath(void **state) {
        const struct folder *f = *state;
        const struct io_ops *io = &io_system;
        struct cairn_error e;
        void *buf;
        size_t bytes;

        make_file(f->fd, "a", "x");
        assert_int_equal(io->mkdirat(NULL, f->fd, "dir", 0755), 0);
        assert_int_equal(symlinkat("a", f->fd, "link"), 0);
        assert_int_equal(symlinkat("dir", f->fd, "dirlink"), 0);
        assert_int_equal(symlinkat("/", f->fd, "root"), 0);

        assert_errno(io->openat(NULL, f->fd, "link", O_RDONLY, 0), ELOOP);
        assert_errno(io->openat(NULL, f->fd, "dirlink/b", O_WRONLY | O_CREAT, 0644), ELOOP);
        assert_errno(io->openat(NULL, f->fd, "../x", O_RDONLY, 0), EXDEV);
        assert_errno(io->openat(NULL, f->fd, "dir/../../x", O_RDONLY, 0), EXDEV);
        assert_errno(io->openat(NULL, f->fd, "/etc/passwd", O_RDONLY, 0), EXDEV);
        assert_errno(io->mkdirat(NULL, f->fd, "dirlink/d", 0755), ELOOP);
        assert_errno(io->mkdirat(NULL, f->fd, "../d", 0755), EXDEV);
        assert_errno(io->mkdirat(NULL, f->fd, "/d", 0755), EXDEV);
        assert_errno(io->mkdirat(NULL, f->fd, "dir/..", 0755), EINVAL);
        assert_errno(io->unlinkat(NULL, f->fd, "dirlink/b", 0), ELOOP);
        assert_errno(io->unlinkat(NULL, f->fd, "", 0), EINVAL);
        assert_errno(io->renameat(NULL, f->fd, "a", f->fd, "dirlink/a", 0), ELOOP);
        assert_errno(io->renameat(NULL, f->fd, "root/etc", f->fd, "a", 0), ELOOP);
        assert_errno(io->linkat(NULL, f->fd, "../x", f->fd, "b"), EXDEV);
        assert_errno(io->linkat(NULL, f->fd, "a", f->fd, "dirlink/a"), ELOOP);

        assert_int_equal(io_read_file(io, f->fd, "link", 10, &buf, &bytes, &e),
                         CAIRN_ERR_PERMISSION);
        assert_non_null(strstr(e.message, "links"));

        /* What stays beneath works. */
        assert_int_equal(io->linkat(NULL, f->fd, "a", f->fd, "dir/a"), 0);
        assert_int_equal(io->renameat(NULL, f->fd, "dir/a", f->fd, "dir/b", RENAME_NOREPLACE), 0);
        assert_errno(io->renameat(NULL, f->fd, "a", f->fd, "dir/b", RENAME_NOREPLACE), EEXIST);
        assert_int_equal(io->unlinkat(NULL, f->fd, "dir/b", 0), 0);
        assert_int_equal(io->unlinkat(NULL, f->fd, "dir", AT_REMOVEDIR), 0);
}

static void test_descriptors_close_on_exec(void **state) {
        const struct folder *f = *state;
        _cleanup_close_ int fd = io_system.openat(NULL, f->fd, "a", O_RDWR | O_CREAT, 0644);
        assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
        assert_int_equal(io_system.fallocate(NULL, fd, 0, 4096), 0);
        assert_int_equal(io_system.ftruncate(NULL, fd, 100), 0);
        assert_int_equal(io_system.fdatasync(NULL, fd), 0);
        struct stat st;
        assert_int_equal(io_system.fstat(NULL, fd, &st), 0);
        assert_int_equal(st.st_size, 100);
}

/* A kernel or sandbox without openat2: refused, and nothing opened another way. */
static void open_without_openat2(void *argument) {
        struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {.len = 4, .filter = code};
        const struct folder *f = argument;
        struct cairn_error e;
        void *buf;
        size_t bytes;

        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
                _exit(77);
        int r = io_read_file(&io_system, f->fd, "a", 10, &buf, &bytes, &e);
        _exit(r == CAIRN_ERR_UNSUPPORTED && strstr(e.message, "lacks") ? 0 : 1);
}

static void test_no_fallback_without_openat2(void **state) {
        struct folder *f = *state;
        make_file(f->fd, "a", "x");
        int status = test_in_child(open_without_openat2, f);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
                skip();
        assert_int_equal(WEXITSTATUS(status), 0);
}

#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                FOLDER_TEST(test_publish_order),
                FOLDER_TEST(test_publish_replaces_or_refuses),
                FOLDER_TEST(test_publish_in_a_subfolder),
                FOLDER_TEST(test_publish_failures),
                FOLDER_TEST(test_publish_with_lost_answer),
                FOLDER_TEST(test_short_and_interrupted_transfers),
                FOLDER_TEST(test_transfer_errors),
                FOLDER_TEST(test_read_file_limits),
                FOLDER_TEST(test_make_dir),
                FOLDER_TEST(test_list),
                FOLDER_TEST(test_paths_stay_beneath),
                FOLDER_TEST(test_descriptors_close_on_exec),
                FOLDER_TEST(test_no_fallback_without_openat2),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
