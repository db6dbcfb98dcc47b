/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulator must be cruel in each way that it claims, and never crueller than a disk.
 */
#include "tests/sim/simfs.h"
#include "tests/test.h"

#include <errno.h>

struct disk {
        struct simfs *fs;
        struct io_ops io;
        int root;
};

static void disk_init(struct disk *d) {
        d->fs = simfs_new();
        simfs_ops(d->fs, &d->io);
        d->root = simfs_root(d->fs);
}

static int create(struct disk *d, const char *name) {
        int fd = d->io.openat(d->fs, d->root, name, O_RDWR | O_CREAT | O_EXCL, 0644);
        assert_true(fd >= 0);
        return fd;
}

static bool exists(struct disk *d, const char *name) {
        return d->io.openat(d->fs, d->root, name, O_RDONLY, 0) >= 0;
}

/* What a crash of a copy leaves of `name`: -1 nothing, else its size. */
static ssize_t after_crash_up_to(struct disk *d, uint64_t seed, enum simfs_order order,
                                 const char *name, char *content, size_t bytes) {
        struct disk copy = {.fs = simfs_clone(d->fs)};
        ssize_t size = -1;

        simfs_crash(copy.fs, seed, order);
        simfs_ops(copy.fs, &copy.io);
        copy.root = simfs_root(copy.fs);
        int fd = copy.io.openat(copy.fs, copy.root, name, O_RDONLY, 0);
        if (fd >= 0)
                size = copy.io.pread(copy.fs, fd, content, bytes, 0);
        copy.fs = simfs_free(copy.fs);
        return size;
}

static ssize_t after_crash(struct disk *d, uint64_t seed, enum simfs_order order, const char *name,
                           char *content) {
        return after_crash_up_to(d, seed, order, name, content, 4096);
}

static void test_what_was_synced_stays(void **state) {
        char content[4096], data[2048];
        struct disk d;

        disk_init(&d);
        memset(data, 'a', sizeof data);
        int fd = create(&d, "file");
        assert_int_equal(d.io.pwrite(d.fs, fd, data, sizeof data, 0), sizeof data);
        assert_int_equal(d.io.fsync(d.fs, fd), 0);
        assert_int_equal(d.io.fsync(d.fs, d.root), 0);
        for (uint64_t seed = 0; seed < 100; seed++) {
                assert_int_equal(after_crash(&d, seed, seed % 2 ? SIMFS_IN_ORDER : SIMFS_REORDER,
                                             "file", content),
                                 sizeof data);
                assert_memory_equal(content, data, sizeof data);
        }
        d.fs = simfs_free(d.fs);
}

static void test_unsynced_data_is_kept_dropped_and_torn(void **state) {
        unsigned whole = 0, dropped = 0, torn = 0;
        char content[4096], data[2048];
        struct disk d;

        disk_init(&d);
        memset(data, 'a', sizeof data);
        int fd = create(&d, "file");
        assert_int_equal(d.io.fsync(d.fs, d.root), 0);
        assert_int_equal(d.io.pwrite(d.fs, fd, data, sizeof data, 0), sizeof data);
        for (uint64_t seed = 0; seed < 200; seed++) {
                memset(content, 0, sizeof content);
                ssize_t size = after_crash(&d, seed, SIMFS_REORDER, "file", content);
                assert_true(size >= 0 && size % 512 == 0);
                if (size == 0)
                        dropped++;
                else if (memcmp(content, data, sizeof data) == 0)
                        whole++;
                else
                        torn++;
        }
        assert_true(whole > 20 && dropped > 20 && torn > 20);
        d.fs = simfs_free(d.fs);
}

/* A write of a block and a half at 300, over a durable block and a half of 'a': the tears lie at
 * multiples of 512 and 4096 of the file, what was there stays, and where the file grew there may be
 * anything. */
static void test_tears_lie_at_sectors_and_blocks(void **state) {
        enum { OLD = 6144, OFFSET = 300, BYTES = 9000, END = OFFSET + BYTES, BLOCK = 4096 };
        static char content[16384], data[BYTES];
        unsigned within_blocks = 0, only_between_blocks = 0, zeros = 0, foreign = 0;
        struct disk d;

        disk_init(&d);
        memset(content, 'a', OLD);
        memset(data, 'b', sizeof data);
        int fd = create(&d, "file");
        assert_int_equal(d.io.pwrite(d.fs, fd, content, OLD, 0), OLD);
        assert_int_equal(d.io.fsync(d.fs, fd), 0);
        assert_int_equal(d.io.fsync(d.fs, d.root), 0);
        assert_int_equal(d.io.pwrite(d.fs, fd, data, sizeof data, OFFSET), sizeof data);
        for (uint64_t seed = 0; seed < 400; seed++) {
                unsigned at_sectors = 0, at_blocks = 0;
                ssize_t size =
                        after_crash_up_to(&d, seed, SIMFS_REORDER, "file", content, sizeof content);
                assert_true(size >= OLD && size <= END);
                for (ssize_t i = 1; i < OLD; i++) {
                        if (content[i] != content[i - 1] && i != OFFSET) {
                                assert_int_equal(i % 512, 0);
                                at_sectors += i % BLOCK != 0;
                                at_blocks += i % BLOCK == 0;
                        }
                        assert_true(content[i] == 'b' || content[i] == 'a');
                }
                within_blocks += at_sectors > 0;
                only_between_blocks += at_blocks > 0 && at_sectors == 0;
                for (ssize_t i = OLD; i < size; i++)
                        if (content[i] != 'b') {
                                zeros += content[i] == 0;
                                foreign += content[i] != 0;
                        }
        }
        assert_true(within_blocks > 20 && only_between_blocks > 20);
        assert_true(zeros > 20 && foreign > 20);
        d.fs = simfs_free(d.fs);
}

static bool any_name(const char *name) {
        return true;
}

/* The planted bug: whoever still holds the old file writes into the new one. */
static void test_a_reused_file_is_the_old_one(void **state) {
        char content[4096];
        struct disk d;

        disk_init(&d);
        int old = create(&d, "file");
        assert_int_equal(d.io.openat(d.fs, d.root, "file", O_RDWR | O_CREAT | O_EXCL, 0644), -1);
        simfs_set_reuse_policy(d.fs, any_name);
        int fd = create(&d, "file");
        assert_int_equal(d.io.pwrite(d.fs, fd, "new", 3, 0), 3);
        assert_int_equal(d.io.pwrite(d.fs, old, "O", 1, 0), 1);
        assert_int_equal(d.io.pread(d.fs, fd, content, 3, 0), 3);
        assert_memory_equal(content, "Oew", 3);
        d.fs = simfs_free(d.fs);
}

static void test_names_need_the_sync_of_their_folder(void **state) {
        unsigned lost = 0;
        char content[4096];
        struct disk d;

        disk_init(&d);
        int fd = create(&d, "file");
        assert_int_equal(d.io.fsync(d.fs, fd), 0);
        for (uint64_t seed = 0; seed < 100; seed++)
                lost += after_crash(&d, seed, SIMFS_REORDER, "file", content) < 0;
        assert_true(lost > 20 && lost < 80);
        d.fs = simfs_free(d.fs);
}

/* A rename is whole or not at all, and a directory never has two names. */
static void test_renames_are_atomic(void **state) {
        struct disk d;

        disk_init(&d);
        assert_int_equal(d.io.mkdirat(d.fs, d.root, "a", 0755), 0);
        assert_int_equal(d.io.fsync(d.fs, d.root), 0);
        assert_int_equal(d.io.renameat(d.fs, d.root, "a", d.root, "b", RENAME_NOREPLACE), 0);
        assert_int_equal(d.io.renameat(d.fs, d.root, "b", d.root, "c", RENAME_NOREPLACE), 0);
        for (uint64_t seed = 0; seed < 100; seed++) {
                struct disk copy = {.fs = simfs_clone(d.fs)};
                simfs_crash(copy.fs, seed, seed % 2 ? SIMFS_IN_ORDER : SIMFS_REORDER);
                simfs_ops(copy.fs, &copy.io);
                copy.root = simfs_root(copy.fs);
                assert_int_equal(exists(&copy, "a") + exists(&copy, "b") + exists(&copy, "c"), 1);
                copy.fs = simfs_free(copy.fs);
        }
        d.fs = simfs_free(d.fs);
}

/* In order: what happened later is never there without what happened before. */
static void test_a_journal_keeps_the_order(void **state) {
        unsigned with = 0, without = 0;
        char content[4096];
        struct disk d;

        disk_init(&d);
        (void) create(&d, "first");
        (void) create(&d, "second");
        for (uint64_t seed = 0; seed < 200; seed++) {
                bool first = after_crash(&d, seed, SIMFS_IN_ORDER, "first", content) >= 0;
                bool second = after_crash(&d, seed, SIMFS_IN_ORDER, "second", content) >= 0;
                assert_true(first || !second);
                with += second;
                without += first && !second;
        }
        assert_true(with > 0 && without > 0);
        d.fs = simfs_free(d.fs);
}

static void test_a_failed_fsync_is_final(void **state) {
        char content[4096];
        struct disk d;

        disk_init(&d);
        int fd = create(&d, "file");
        assert_int_equal(d.io.fsync(d.fs, d.root), 0);
        assert_int_equal(d.io.pwrite(d.fs, fd, "data", 4, 0), 4);
        simfs_fail(d.fs, 1, EIO);
        assert_int_equal(d.io.fsync(d.fs, fd), -1);
        assert_int_equal(errno, EIO);
        assert_int_equal(d.io.fsync(d.fs, fd), 0); /* the lie */
        assert_int_equal(d.io.pread(d.fs, fd, content, 4, 0), 4);
        assert_int_equal(after_crash(&d, 3, SIMFS_IN_ORDER, "file", content), 0);
        d.fs = simfs_free(d.fs);
}

static void test_errors_are_those_of_the_system(void **state) {
        struct disk d;

        disk_init(&d);
        assert_int_equal(d.io.mkdirat(d.fs, d.root, "a", 0755), 0);
        assert_int_equal(d.io.mkdirat(d.fs, d.root, "a", 0755), -1);
        assert_int_equal(errno, EEXIST);
        int fd = create(&d, "a/file");
        assert_int_equal(d.io.unlinkat(d.fs, d.root, "a", AT_REMOVEDIR), -1);
        assert_int_equal(errno, ENOTEMPTY);
        assert_int_equal(d.io.unlinkat(d.fs, d.root, "a", 0), -1);
        assert_int_equal(errno, EISDIR);
        assert_int_equal(d.io.openat(d.fs, d.root, "../x", O_RDONLY, 0), -1);
        assert_int_equal(errno, EXDEV);
        assert_int_equal(d.io.openat(d.fs, d.root, "/a", O_RDONLY, 0), -1);
        assert_int_equal(errno, EXDEV);
        assert_int_equal(d.io.unlinkat(d.fs, d.root, "a/file", 0), 0);
        assert_int_equal(d.io.pwrite(d.fs, fd, "still open", 10, 0), 10);
        assert_int_equal(close(fd), -1); /* no real descriptor */
        assert_int_equal(d.io.close(d.fs, fd), 0);
        assert_int_equal(d.io.close(d.fs, fd), -1);
        d.fs = simfs_free(d.fs);
}

static void test_locks(void **state) {
        struct disk d;

        disk_init(&d);
        int a = create(&d, "lock"), b = d.io.openat(d.fs, d.root, "lock", O_RDWR, 0);
        assert_int_equal(d.io.try_lock(d.fs, a), 0);
        assert_int_equal(d.io.try_lock(d.fs, b), -1);
        assert_int_equal(errno, EAGAIN);
        assert_int_equal(d.io.close(d.fs, a), 0);
        assert_int_equal(d.io.try_lock(d.fs, b), 0);
        d.fs = simfs_free(d.fs);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_what_was_synced_stays),
                cmocka_unit_test(test_unsynced_data_is_kept_dropped_and_torn),
                cmocka_unit_test(test_tears_lie_at_sectors_and_blocks),
                cmocka_unit_test(test_a_reused_file_is_the_old_one),
                cmocka_unit_test(test_names_need_the_sync_of_their_folder),
                cmocka_unit_test(test_renames_are_atomic),
                cmocka_unit_test(test_a_journal_keeps_the_order),
                cmocka_unit_test(test_a_failed_fsync_is_final),
                cmocka_unit_test(test_errors_are_those_of_the_system),
                cmocka_unit_test(test_locks),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
