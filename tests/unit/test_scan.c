/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "format/scan.h"
#include "tests/test.h"
#include "tests/unit/format_sample.h"

#include <sys/stat.h>

#define RUN "run"

static char store_path[256];
static int store_fd = -1, run_fd = -1;
static struct run_scan scan;
static struct cairn_error error;

static int begin(void **state) {
        store_fd = test_folder(store_path, sizeof store_path);
        sample_store_marker(store_fd);
        assert_int_equal(mkdirat(store_fd, RUN, 0755), 0);
        assert_int_equal(run_open(&io_system, store_fd, RUN, &run_fd, NULL), 0);
        return 0;
}

static int end(void **state) {
        run_scan_done(&scan);
        (void) close(run_fd);
        (void) close(store_fd);
        return 0;
}

static void look(bool digests) {
        run_scan_done(&scan);
        error = (struct cairn_error) CAIRN_ERROR_INIT;
        if (run_scan(&io_system, run_fd, RUN, digests, &scan, &error) < 0)
                fail_msg("%s %s: %s", error.operation, error.object, error.message);
}

static const struct scan_checkpoint *find(const char *name) {
        for (size_t i = 0; i < scan.checkpoint_count; i++)
                if (strcmp(scan.checkpoints[i].name, name) == 0)
                        return &scan.checkpoints[i];
        fail_msg("%s is not listed", name);
        return NULL;
}

static void expect_newest(size_t skip, const char *name) {
        const struct scan_checkpoint *c = scan_newest(&scan, skip);
        if (!name) {
                assert_null(c);
                return;
        }
        assert_non_null(c);
        assert_string_equal(c->name, name);
}

static void generation(uint64_t number, uint32_t world, const char *parent) {
        sample_claim(run_fd, RUN, number, world);
        sample_start(run_fd, number, parent);
}

static void checkpoint(uint64_t number, int64_t step) {
        sample_checkpoint(run_fd, RUN, number, step, 2, NULL, 0);
}

/* Change one byte of a file (or, offset -1, cut it by one). */
static void damage(const char *path, off_t offset) {
        uint8_t byte;
        struct stat st = {0};
        _cleanup_close_ int fd = openat(run_fd, path, O_RDWR | O_CLOEXEC);

        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        if (offset < 0) {
                assert_int_equal(ftruncate(fd, st.st_size - 1), 0);
                return;
        }
        assert_true(pread(fd, &byte, 1, offset) == 1);
        byte ^= 0x10;
        assert_true(pwrite(fd, &byte, 1, offset) == 1);
}

/* ---- stores and runs ---- */

static void test_opening(void **state) {
        char path[300];
        int fd = -1;

        assert_int_equal(store_open(&io_system, store_path, &fd, NULL), 0);
        (void) close(fd);
        (void) snprintf(path, sizeof path, "%s/missing", store_path);
        assert_int_equal(store_open(&io_system, path, &fd, NULL), CAIRN_ERR_NOTFOUND);
        (void) snprintf(path, sizeof path, "%s/%s", store_path, STORE_MARKER_NAME);
        assert_int_equal(store_open(&io_system, path, &fd, NULL), CAIRN_ERR_MISMATCH);
        (void) snprintf(path, sizeof path, "%s/%s", store_path, RUN);
        assert_int_equal(store_open(&io_system, path, &fd, NULL), CAIRN_ERR_MISMATCH);
        sample_write(run_fd, STORE_MARKER_NAME, "what is this", 12);
        assert_int_equal(store_open(&io_system, path, &fd, NULL), CAIRN_ERR_MISMATCH);
        /* The operator may reach the store by a link. */
        char link[320];
        (void) snprintf(link, sizeof link, "%s/link", store_path);
        assert_int_equal(symlink(store_path, link), 0);
        assert_int_equal(store_open(&io_system, link, &fd, NULL), 0);
        (void) close(fd);
        assert_int_equal(run_open(&io_system, store_fd, "other", &fd, NULL), CAIRN_ERR_NOTFOUND);
        assert_int_equal(run_open(&io_system, store_fd, "..", &fd, NULL), CAIRN_ERR_API);
        assert_int_equal(run_open(&io_system, store_fd, "link", &fd, NULL) == 0, 0);
}

static void test_empty_run(void **state) {
        look(true);
        assert_int_equal(scan.checkpoint_count, 0);
        assert_int_equal(scan.generation_max, 0);
        assert_false(scan.finished);
        expect_newest(0, NULL);
        assert_null(scan_find_step(&scan, 1));
}

/* ---- B52 ---- */

static void b52_numeric_order(void **state) {
        static const int64_t steps[] = {8,   9,      10,      11,           99,
                                        100, 999999, 1000000, 999999999999, 1000000000000};
        char name[NAME_BYTES];

        generation(1, 2, NULL);
        for (size_t i = 10; i-- > 0;)
                checkpoint(1, steps[i]);
        look(true);
        assert_int_equal(scan.checkpoint_count, 10);
        for (size_t i = 0; i < 10; i++) {
                assert_int_equal(scan.checkpoints[i].step, steps[i]);
                assert_int_equal(scan.checkpoints[i].validity, CHECKPOINT_VALID);
                name_checkpoint(name, steps[9 - i], 1);
                expect_newest(i, name);
        }
        expect_newest(10, NULL);
        /* Generations too: 10000 is after 9999, though the text is shorter. */
        generation(9999, 2, "1000000000000-g0001");
        checkpoint(9999, 1000000000001);
        generation(10000, 2, "1000000000001-g9999");
        checkpoint(10000, 1000000000002);
        look(true);
        expect_newest(0, "1000000000002-g10000");
        assert_true(scan.generation_max == 10000);
}

/* ---- lineage ---- */

static void test_lineage_after_going_back(void **state) {
        generation(1, 2, NULL);
        for (int64_t step = 100; step <= 500; step += 100)
                checkpoint(1, step);
        generation(2, 2, "000000000500-g0001");
        checkpoint(2, 600);
        checkpoint(2, 700);
        /* --from 200: steps 300 to 700 are an abandoned branch. */
        generation(3, 2, "000000000200-g0001");
        look(true);
        expect_newest(0, "000000000200-g0001");
        expect_newest(1, "000000000100-g0001");
        expect_newest(2, NULL);
        assert_false(find("000000000700-g0002")->on_lineage);
        assert_int_equal(find("000000000700-g0002")->validity, CHECKPOINT_VALID);
        checkpoint(3, 300);
        look(true);
        expect_newest(0, "000000000300-g0003");
        expect_newest(1, "000000000200-g0001");
        /* Both are step 300; the one on the lineage is meant. */
        assert_string_equal(scan_find_step(&scan, 300)->name, "000000000300-g0003");
        assert_string_equal(scan_find_step(&scan, 700)->name, "000000000700-g0002");
        assert_null(scan_find_step(&scan, 701));
        /* A claim that was never started changes nothing but the highest number. */
        sample_claim(run_fd, RUN, 9, 2);
        look(true);
        expect_newest(0, "000000000300-g0003");
        assert_int_equal(scan.generation_max, 9);
        /* Going back to a step of the same name in another generation. */
        generation(10, 2, "000000000600-g0002");
        look(true);
        expect_newest(0, "000000000600-g0002");
        expect_newest(1, "000000000500-g0001");
        /* A fresh start within the run has no parent: nothing older is chosen. */
        generation(11, 2, NULL);
        look(true);
        expect_newest(0, NULL);
}

static void test_damaged_start_does_not_revive_the_old_branch(void **state) {
        generation(1, 2, NULL);
        checkpoint(1, 100);
        checkpoint(1, 200);
        generation(2, 2, "000000000100-g0001");
        sample_checkpoint(run_fd, RUN, 2, 150, 2, "000000000100-g0001", 0);
        damage("GEN-0002.start", 70);
        look(true);
        assert_int_equal(scan.generations[1].error.status, CAIRN_ERR_CORRUPT);
        assert_true(scan.generations[1].started);
        /* The parent is known from its checkpoint. */
        expect_newest(0, "000000000150-g0002");
        expect_newest(1, "000000000100-g0001");
        expect_newest(2, NULL);
}

static void test_start_of_another_claim(void **state) {
        generation(1, 2, NULL);
        checkpoint(1, 100);
        sample_claim(run_fd, RUN, 2, 2);
        sample_start(run_fd, 2, NULL);
        sample_claim(run_fd, RUN, 2, 2);
        sample_start(run_fd, 3, NULL);
        char from[NAME_BYTES], to[NAME_BYTES];
        name_generation_start(from, 3);
        name_generation_start(to, 2);
        assert_int_equal(renameat(run_fd, from, run_fd, to), 0);
        look(false);
        assert_int_equal(scan.generations[1].error.status, CAIRN_ERR_CORRUPT);
}

/* ---- validity ---- */

static void test_damage_is_told(void **state) {
        generation(1, 2, NULL);
        for (int64_t step = 1; step <= 8; step++)
                checkpoint(1, step);
        assert_int_equal(unlinkat(run_fd, "000000000001-g0001/COMMIT", 0), 0);
        damage("000000000002-g0001/COMMIT", 100);
        damage("000000000003-g0001/INDEX", 100);
        damage("000000000004-g0001/rank-00001.manifest", 100);
        assert_int_equal(unlinkat(run_fd, "000000000005-g0001/rank-00000.manifest", 0), 0);
        damage("000000000006-g0001/rank-00001.data", -1);
        damage("000000000007-g0001/rank-00000.data", 5000);
        look(true);
        for (int64_t step = 1; step <= 6; step++) {
                const struct scan_checkpoint *c = &scan.checkpoints[step - 1];
                assert_int_equal(c->validity, CHECKPOINT_DAMAGED);
                assert_true(c->error.status < 0);
                assert_int_equal(
                        checkpoint_check(&io_system, run_fd, c->name, RUN, false, NULL, &error),
                        CAIRN_ERR_CORRUPT);
        }
        assert_int_equal(find("000000000007-g0001")->validity, CHECKPOINT_VALID);
        expect_newest(0, "000000000008-g0001");
        expect_newest(1, "000000000007-g0001");
        expect_newest(2, NULL);
        /* Data bytes are looked at only when asked for. */
        assert_int_equal(
                checkpoint_check(&io_system, run_fd, "000000000007-g0001", RUN, false, NULL, NULL),
                0);
        assert_int_equal(
                checkpoint_check(&io_system, run_fd, "000000000007-g0001", RUN, true, NULL, &error),
                CAIRN_ERR_CORRUPT);
        look(false);
        assert_int_equal(find("000000000001-g0001")->validity, CHECKPOINT_DAMAGED);
        assert_int_equal(find("000000000004-g0001")->validity, CHECKPOINT_UNCHECKED);
}

/* Without reading everything: the newest is what a resume takes, and of the others what shows at
 * once is told. */
static void test_quick_look(void **state) {
        struct run_scan before;

        generation(1, 2, NULL);
        for (int64_t step = 1; step <= 7; step++)
                checkpoint(1, step);
        damage("000000000001-g0001/INDEX", 20); /* its header */
        damage("000000000002-g0001/INDEX", -1); /* shorter */
        assert_int_equal(unlinkat(run_fd, "000000000003-g0001/INDEX", 0), 0);
        damage("000000000004-g0001/INDEX", 100);
        damage("000000000006-g0001/rank-00001.manifest", 100);
        damage("000000000007-g0001/INDEX", 100);
        look(false);
        for (int64_t step = 1; step <= 3; step++)
                assert_int_equal(scan.checkpoints[step - 1].validity, CHECKPOINT_DAMAGED);
        expect_newest(0, "000000000007-g0001");
        before = scan;
        assert_int_equal(run_scan_check_newest(&io_system, run_fd, RUN, &scan, &error), 0);
        assert_int_equal(scan.checkpoint_count, before.checkpoint_count);
        expect_newest(0, "000000000005-g0001");
        assert_int_equal(find("000000000005-g0001")->validity, CHECKPOINT_VALID);
        assert_int_equal(find("000000000007-g0001")->validity, CHECKPOINT_DAMAGED);
        assert_non_null(strstr(find("000000000007-g0001")->error.object, "INDEX"));
        assert_int_equal(find("000000000006-g0001")->validity, CHECKPOINT_DAMAGED);
        assert_int_equal(find("000000000004-g0001")->validity, CHECKPOINT_UNCHECKED);
        assert_true(find("000000000005-g0001")->bytes == find("000000000004-g0001")->bytes);
        /* Pruned between the two looks. */
        look(false);
        assert_int_equal(renameat(run_fd, "000000000007-g0001", run_fd, ".trash-x"), 0);
        assert_int_equal(run_scan_check_newest(&io_system, run_fd, RUN, &scan, &error), 0);
        expect_newest(0, "000000000005-g0001");
        assert_int_equal(scan.checkpoint_count, 6);
}

static void test_whole_check(void **state) {
        struct verify_result result;

        generation(1, 3, NULL);
        sample_checkpoint(run_fd, RUN, 1, 5, 3, NULL, 0);
        if (checkpoint_check(&io_system, run_fd, "000000000005-g0001", RUN, true, &result, &error) <
            0)
                fail_msg("%s %s: %s", error.operation, error.object, error.message);
        assert_int_equal(result.files, 8);
        assert_int_equal(result.tensors, 6);
        assert_int_equal(result.bytes, 90 + 307 * 4 + 36 * 4 + 4);
        assert_int_equal(checkpoint_check(&io_system, run_fd, "000000000005-g0001", "other", true,
                                          NULL, NULL),
                         CAIRN_ERR_MISMATCH);
        assert_int_equal(
                checkpoint_check(&io_system, run_fd, "000000000006-g0001", RUN, true, NULL, NULL),
                CAIRN_ERR_NOTFOUND);
        /* Another checkpoint's directory under this name. */
        assert_int_equal(renameat(run_fd, "000000000005-g0001", run_fd, "000000000006-g0001"), 0);
        assert_int_equal(
                checkpoint_check(&io_system, run_fd, "000000000006-g0001", RUN, true, NULL, NULL),
                CAIRN_ERR_CORRUPT);
        look(true);
        assert_int_equal(find("000000000006-g0001")->validity, CHECKPOINT_DAMAGED);
}

/* Every bit of every file matters: no flip passes the whole check, and where there is padding in
 * the data file it is checked as well. */
static void test_every_flip_is_found(void **state) {
        static const char *const files[] = {
                "COMMIT",          "INDEX",          "rank-00000.manifest", "rank-00001.manifest",
                "rank-00000.data", "rank-00001.data"};
        char path[128];
        struct stat st;

        generation(1, 2, NULL);
        checkpoint(1, 5);
        for (size_t i = 0; i < 6; i++) {
                (void) snprintf(path, sizeof path, "000000000005-g0001/%s", files[i]);
                assert_int_equal(fstatat(run_fd, path, &st, 0), 0);
                off_t stride = st.st_size > 2000 ? 37 : 7;
                for (off_t at = 0; at < st.st_size; at += stride) {
                        damage(path, at);
                        int r = checkpoint_check(&io_system, run_fd, "000000000005-g0001", RUN,
                                                 true, NULL, &error);
                        if (r == 0)
                                fail_msg("byte %jd of %s may change", (intmax_t) at, files[i]);
                        assert_non_null(strstr(error.object, "000000000005-g0001"));
                        damage(path, at);
                }
        }
        assert_int_equal(
                checkpoint_check(&io_system, run_fd, "000000000005-g0001", RUN, true, NULL, NULL),
                0);
}

static void test_flagged_is_never_chosen_by_itself(void **state) {
        generation(1, 2, NULL);
        checkpoint(1, 100);
        sample_checkpoint(run_fd, RUN, 1, 200, 2, NULL, SAMPLE_SUSPECT);
        sample_checkpoint(run_fd, RUN, 1, 300, 2, NULL, SAMPLE_NON_FINITE);
        for (int digests = 0; digests < 2; digests++) {
                look(digests);
                assert_int_equal(find("000000000200-g0001")->validity, CHECKPOINT_FLAGGED);
                assert_int_equal(find("000000000300-g0001")->validity, CHECKPOINT_FLAGGED);
                expect_newest(0, "000000000100-g0001");
                expect_newest(1, NULL);
                assert_string_equal(scan_find_step(&scan, 300)->name, "000000000300-g0001");
        }
}

/* ---- attempts ---- */

static void test_attempts(void **state) {
        generation(1, 2, NULL);
        checkpoint(1, 100);
        sample_attempt(run_fd, ".stale-g0001-a000003-by0002", RUN, 1, 3, 200, 2, 2, 0);
        sample_attempt(run_fd, ".stale-g0001-a000002-by0002", RUN, 1, 2, 150, 2, 1, 0);
        sample_attempt(run_fd, ".stale-g0001-a000005-by0002", RUN, 1, 5, 250, 2, 2, SAMPLE_SUSPECT);
        sample_attempt(run_fd, ".stale-g0001-a000006-by0002", RUN, 1, 4, 250, 2, 2, 0);
        sample_attempt(run_fd, ".pending-g0001-a000007", RUN, 1, 7, 190, 2, 2, 0);
        sample_attempt(run_fd, ".stale-g0001-a000008-by0002", RUN, 1, 8, 100, 2, 2, 0);
        look(true);
        assert_int_equal(scan.checkpoint_count, 7);
        assert_false(scan.checkpoints[0].is_attempt);
        assert_int_equal(find(".stale-g0001-a000003-by0002")->validity, CHECKPOINT_ROLLABLE);
        assert_int_equal(find(".stale-g0001-a000003-by0002")->step, 200);
        assert_int_equal(find(".stale-g0001-a000002-by0002")->validity, CHECKPOINT_DAMAGED);
        assert_int_equal(find(".stale-g0001-a000005-by0002")->validity, CHECKPOINT_FLAGGED);
        assert_int_equal(find(".stale-g0001-a000006-by0002")->validity, CHECKPOINT_DAMAGED);
        assert_int_equal(find(".pending-g0001-a000007")->validity, CHECKPOINT_ROLLABLE);
        assert_int_equal(find(".stale-g0001-a000008-by0002")->validity, CHECKPOINT_UNCHECKED);
        expect_newest(0, ".stale-g0001-a000003-by0002");
        expect_newest(1, ".pending-g0001-a000007");
        expect_newest(2, "000000000100-g0001");
        expect_newest(3, NULL);
        /* A later generation went back to step 100: what was beyond is abandoned, attempts too. */
        generation(2, 2, "000000000100-g0001");
        look(true);
        expect_newest(0, "000000000100-g0001");
        assert_int_equal(find(".stale-g0001-a000003-by0002")->validity, CHECKPOINT_UNCHECKED);
        /* A data file that is too short makes the attempt impossible, not the scan. */
        sample_attempt(run_fd, ".pending-g0002-a000001", RUN, 2, 1, 120, 2, 2, 0);
        damage(".pending-g0002-a000001/rank-00001.data", -1);
        look(true);
        assert_int_equal(find(".pending-g0002-a000001")->validity, CHECKPOINT_DAMAGED);
        expect_newest(0, "000000000100-g0001");
}

/* ---- marks ---- */

static void test_marks(void **state) {
        generation(1, 2, NULL);
        checkpoint(1, 100);
        checkpoint(1, 200);
        sample_mark(run_fd, "PIN-000000000100-g0001", FILE_MARK_PIN, "", 100, 1);
        sample_mark(run_fd, "PIN-000000000900-g0001", FILE_MARK_PIN, "", 900, 1);
        sample_mark(run_fd, "FINISHED", FILE_MARK_FINISHED, "completed", 200, 1);
        look(true);
        assert_true(find("000000000100-g0001")->pinned);
        assert_false(find("000000000200-g0001")->pinned);
        assert_true(scan.finished);
        assert_string_equal(scan.finished_reason, "completed");
        assert_int_equal(scan.finished_step, 200);
        /* Extended: a generation started after the end. */
        generation(2, 2, "000000000200-g0001");
        look(true);
        assert_false(scan.finished);
        /* A mark that cannot be read must not start training again. */
        damage("marks/FINISHED", 90);
        run_scan_done(&scan);
        assert_int_equal(run_scan(&io_system, run_fd, RUN, true, &scan, &error), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(error.object, "FINISHED"));
        scan = (struct run_scan){0};
}

/* ---- B56 ---- */

static void b56_moved_and_copied(void **state) {
        char other[300];
        int fd;

        generation(1, 2, NULL);
        checkpoint(1, 100);
        generation(2, 2, "000000000100-g0001");
        checkpoint(2, 200);
        (void) snprintf(other, sizeof other, "%s-copy", store_path);
        sample_copy(store_path, other);
        assert_int_equal(renameat(store_fd, RUN, store_fd, "elsewhere"), 0);
        int copy_fd = -1;
        assert_int_equal(store_open(&io_system, other, &copy_fd, NULL), 0);
        assert_int_equal(run_open(&io_system, copy_fd, RUN, &fd, NULL), 0);
        (void) close(run_fd);
        run_fd = fd;
        look(true);
        expect_newest(0, "000000000200-g0002");
        expect_newest(1, "000000000100-g0001");
        assert_int_equal(
                checkpoint_check(&io_system, run_fd, "000000000200-g0002", RUN, true, NULL, NULL),
                0);
        /* A link inside the store is not followed. */
        assert_int_equal(symlinkat("000000000200-g0002", run_fd, "000000000300-g0002"), 0);
        assert_true(checkpoint_check(&io_system, run_fd, "000000000300-g0002", RUN, false, NULL,
                                     NULL) < 0);
        (void) close(copy_fd);
}

static void test_foreign_run(void **state) {
        generation(1, 2, NULL);
        sample_checkpoint(run_fd, "stranger", 1, 100, 2, NULL, 0);
        look(true);
        assert_int_equal(scan.checkpoints[0].validity, CHECKPOINT_DAMAGED);
        assert_int_equal(scan.checkpoints[0].error.status, CAIRN_ERR_MISMATCH);
        sample_claim(run_fd, "stranger", 2, 2);
        look(true);
        assert_int_equal(scan.generations[1].error.status, CAIRN_ERR_MISMATCH);
}

/* ---- data larger than a chunk ---- */

static void test_chunks(void **state) {
        static const char directory[] = "000000000001-g0001";
        struct sample s;

        sample_init(&s, RUN, 0, 1, 1, 1, 1);
        sample_tensor(&s, "a", CAIRN_OTHER, CAIRN_U8, 1, (uint64_t[]){3 * 1024 * 1024 + 77});
        Tensor *step = sample_tensor(&s, "step", CAIRN_STEP, CAIRN_F32, 1, (uint64_t[]){1});
        step->has_true_step = true;
        step->true_step = 7;
        sample_finish(&s);
        assert_int_equal(s.content.chunk_crcs[0]->n_crc32c, 4);
        assert_int_equal(mkdirat(run_fd, directory, 0755), 0);
        _cleanup_close_ int fd = openat(run_fd, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        sample_publish(&s, fd);
        sample_commit(fd, &s, (struct file_content *[]){&s.content}, NULL);
        assert_int_equal(checkpoint_check(&io_system, run_fd, directory, RUN, true, NULL, NULL), 0);
        damage("000000000001-g0001/rank-00000.data", 2 * 1024 * 1024 + 5);
        assert_int_equal(checkpoint_check(&io_system, run_fd, directory, RUN, true, NULL, &error),
                         CAIRN_ERR_CORRUPT);
        assert_int_equal(error.offset, 2 * 1024 * 1024);
        /* A counter that is not what its int64 rounds to, with right checksums. */
        step->true_step = 8;
        sample_publish(&s, fd);
        sample_commit(fd, &s, (struct file_content *[]){&s.content}, NULL);
        assert_int_equal(checkpoint_check(&io_system, run_fd, directory, RUN, true, NULL, &error),
                         CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(error.message, "true step"));
        sample_done(&s);
}

int main(void) {
#define SCAN_TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
        const struct CMUnitTest tests[] = {
                SCAN_TEST(test_opening),
                SCAN_TEST(test_empty_run),
                SCAN_TEST(b52_numeric_order),
                SCAN_TEST(test_lineage_after_going_back),
                SCAN_TEST(test_damaged_start_does_not_revive_the_old_branch),
                SCAN_TEST(test_start_of_another_claim),
                SCAN_TEST(test_damage_is_told),
                SCAN_TEST(test_quick_look),
                SCAN_TEST(test_whole_check),
                SCAN_TEST(test_every_flip_is_found),
                SCAN_TEST(test_flagged_is_never_chosen_by_itself),
                SCAN_TEST(test_attempts),
                SCAN_TEST(test_marks),
                SCAN_TEST(b56_moved_and_copied),
                SCAN_TEST(test_foreign_run),
                SCAN_TEST(test_chunks),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
