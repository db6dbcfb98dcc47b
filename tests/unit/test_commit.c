/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "tests/unit/store_fixture.h"

static struct fixture *started(void) {
        struct fixture *f = fixture_new();
        assert_int_equal(fixture_start_mode(f, START_FRESH), 0);
        return f;
}

static size_t count_entries(struct fixture *f, const char *prefix) {
        char path[700];
        size_t count = 0;

        (void) snprintf(path, sizeof path, "%s/run", f->path);
        DIR *directory = opendir(path);
        for (const struct dirent *e; (e = readdir(directory));)
                count += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
        (void) closedir(directory);
        return count;
}

static void test_commit_is_valid_to_the_last_byte(void **state) {
        struct fixture *f = started();
        struct ranks_cut cut = fixture_cut(f, 1200);
        struct commit_result result;
        struct verify_result verified;

        cut.data_bytes_min = 3 * MiB + 4096;
        assert_int_equal(ranks_commit(&f->run, &cut, &result, &f->e), 0);
        assert_string_equal(result.name, "000000001200-g0001");
        assert_int_equal(result.step, 1200);
        assert_int_equal(result.bytes, 2 * (3 * MiB + 4096));
        assert_false(result.existed);
        assert_int_equal(
                checkpoint_check(&io_system, f->run.fd, result.name, "run", true, &verified, &f->e),
                0);
        assert_int_equal(verified.tensors, 2);
        assert_int_equal(count_entries(f, ".pending"), 0);
        fixture_free(f);
}

static void test_record_names_parent_reason_and_tag(void **state) {
        struct fixture *f = started();
        struct file_content record;
        struct commit_result result;
        struct arena arena;
        struct attempt a;

        fixture_commit(f, 10);
        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        struct ranks_cut cut = fixture_cut(f, 20);
        cut.non_finite = 3;
        assert_int_equal(ranks_attempt(&f->run, &cut, &a, &f->e), 0);
        assert_int_equal(attempt_commit(&f->run, &a, 2, "before surgery", &result, &f->e), 0);
        arena_init(&arena, 1 * MiB);
        assert_int_equal(
                commit_load_record(&io_system, f->run.fd, result.name, &arena, &record, &f->e), 0);
        assert_memory_equal(record.commit->parent.data, "000000000010-g0001", 18);
        assert_memory_equal(record.commit->tag.data, "before surgery", 14);
        assert_int_equal(record.commit->reason, 2);
        assert_int_equal(record.head->non_finite_count, 6); /* of both ranks */
        arena_done(&arena);
        fixture_free(f);
}

/* A step that exists already has a defined result: the valid checkpoint stays. */
static void test_B03b_a_step_that_exists(void **state) {
        struct fixture *f = started();
        struct commit_result first, second;
        struct ranks_cut cut = fixture_cut(f, 50);
        struct stat before, after;
        char path[800];

        assert_int_equal(ranks_commit(&f->run, &cut, &first, &f->e), 0);
        (void) snprintf(path, sizeof path, "%s/run/%s/COMMIT", f->path, first.name);
        assert_int_equal(stat(path, &before), 0);
        cut = fixture_cut(f, 50);
        assert_int_equal(ranks_commit(&f->run, &cut, &second, &f->e), 0);
        assert_true(second.existed);
        assert_string_equal(second.name, first.name);
        assert_int_equal(second.bytes, first.bytes);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(before.st_ino, after.st_ino);
        assert_int_equal(count_entries(f, ".pending"), 0);
        fixture_free(f);
}

/* What is said is true of the checkpoint that stays, not of the attempt that goes: in both orders,
 * and in both ways to commit. */
static void test_B03b_the_answer_describes_the_one_that_stays(void **state) {
        struct fixture *f = started();
        struct commit_result first, second;

        for (int i = 0; i < 4; i++) {
                bool flagged = i % 2, at_once = i < 2;
                struct ranks_cut cut = fixture_cut(f, 50 + i);
                struct attempt a;
                cut.non_finite = flagged ? 3 : 0;
                assert_int_equal(ranks_commit(&f->run, &cut, &first, &f->e), 0);
                assert_int_equal(first.flagged, flagged);
                cut = fixture_cut(f, 50 + i);
                cut.non_finite = flagged ? 0 : 3;
                cut.data_bytes_min = 1 * MiB;
                assert_int_equal(ranks_attempt(&f->run, &cut, &a, &f->e), 0);
                if (at_once)
                        assert_int_equal(attempt_commit(&f->run, &a, 0, "", &second, &f->e), 0);
                else {
                        struct commit_files files;
                        struct commit_source source = {.dir_fd = a.dir_fd,
                                                       .name = a.name,
                                                       .generation = a.generation,
                                                       .attempt = a.attempt,
                                                       .world = a.world};
                        assert_int_equal(commit_compose(&f->run, &source, &files, &f->e), 0);
                        assert_int_equal(commit_write_files(&f->run, &a, &files, &f->e), 0);
                        commit_files_done(&files);
                        assert_int_equal(commit_rename(&f->run, &a, &second, &f->e), 0);
                }
                assert_true(second.existed);
                assert_string_equal(second.name, first.name);
                assert_int_equal(second.bytes, first.bytes);
                assert_int_equal(second.flagged, flagged);
        }
        fixture_free(f);
}

static void test_B03b_a_damaged_one_in_the_way_is_replaced(void **state) {
        struct fixture *f = started();
        struct commit_result result;

        fixture_commit(f, 50);
        fixture_damage(f, "000000000050-g0001/rank-00000.manifest");
        struct ranks_cut cut = fixture_cut(f, 50);
        assert_int_equal(ranks_commit(&f->run, &cut, &result, &f->e), 0);
        assert_false(result.existed);
        assert_int_equal(
                checkpoint_check(&io_system, f->run.fd, result.name, "run", true, NULL, &f->e), 0);
        assert_int_equal(count_entries(f, ".trash-"), 1);
        assert_int_equal(retention_run(&f->run, 3, NULL, &f->e), 0);
        assert_int_equal(count_entries(f, ".trash-"), 0);
        fixture_free(f);
}

/* A past step is trained again after going back: another generation, another name. */
static void test_B03b_a_step_of_an_abandoned_branch(void **state) {
        struct fixture *f = started();

        fixture_commit(f, 10);
        fixture_commit(f, 20);
        fixture_request(f, START_FRESH)->has_from_step = true;
        f->q.from_step = 10;
        assert_int_equal(fixture_start(f), 0);
        fixture_commit(f, 20);
        assert_true(fixture_has(f, "000000000020-g0001/COMMIT"));
        assert_true(fixture_has(f, "000000000020-g0002/COMMIT"));
        assert_int_equal(fixture_start_mode(f, START_AUTO), 0);
        assert_string_equal(f->reply.checkpoint, "000000000020-g0002");
        fixture_free(f);
}

static void test_refuses_what_does_not_belong_together(void **state) {
        struct fixture *f = started();
        struct ranks_cut cut = fixture_cut(f, 10);
        struct commit_result result;
        struct attempt a;
        int data_fd, manifest_fd;

        /* rank 1 of another step */
        assert_int_equal(attempt_open(&f->run, 1, cut.attempt, 2, &a, &f->e), 0);
        for (uint32_t rank = 0; rank < 2; rank++) {
                cut.step = 10 + rank;
                assert_int_equal(
                        attempt_open_rank(&a, &io_system, rank, &data_fd, &manifest_fd, &f->e), 0);
                assert_int_equal(ranks_write(&io_system, &cut, rank, data_fd, manifest_fd, &f->e),
                                 0);
                assert_int_equal(attempt_publish_manifest(&a, &io_system, rank, &f->e), 0);
                (void) close(data_fd);
                (void) close(manifest_fd);
        }
        assert_int_equal(attempt_commit(&f->run, &a, 0, "", &result, &f->e), CAIRN_ERR_CORRUPT);
        /* and nothing more can be done with it */
        assert_int_equal(attempt_commit(&f->run, &a, 0, "", &result, &f->e), CAIRN_ERR_STALE);
        assert_int_equal(attempt_discard(&f->run, &a, &f->e), 0);
        assert_int_equal(count_entries(f, ".pending"), 0);
        assert_int_equal(count_entries(f, ".trash"), 0);

        /* a data file that lost its end */
        cut = fixture_cut(f, 20);
        assert_int_equal(ranks_attempt(&f->run, &cut, &a, &f->e), 0);
        int fd = openat(a.dir_fd, "rank-00001.data", O_WRONLY | O_CLOEXEC);
        assert_int_equal(ftruncate(fd, 4096), 0);
        (void) close(fd);
        assert_int_equal(attempt_commit(&f->run, &a, 0, "", &result, &f->e), CAIRN_ERR_CORRUPT);
        assert_non_null(strstr(f->e.object, "rank-00001.data"));
        assert_int_equal(attempt_discard(&f->run, &a, &f->e), 0);

        /* a rank that has not acknowledged */
        cut = fixture_cut(f, 30);
        assert_int_equal(attempt_open(&f->run, 1, cut.attempt, 2, &a, &f->e), 0);
        assert_int_equal(attempt_open_rank(&a, &io_system, 2, &data_fd, &manifest_fd, &f->e),
                         CAIRN_ERR_API);
        assert_int_equal(attempt_commit(&f->run, &a, 0, "", &result, &f->e), CAIRN_ERR_NOTFOUND);
        assert_int_equal(attempt_discard(&f->run, &a, &f->e), 0);
        fixture_commit(f, 40);
        fixture_free(f);
}

static void test_publishing_twice_is_one_acknowledgement(void **state) {
        struct fixture *f = started();
        struct ranks_cut cut = fixture_cut(f, 10);
        struct attempt a;
        int data_fd, manifest_fd;

        assert_int_equal(ranks_attempt(&f->run, &cut, &a, &f->e), 0);
        assert_int_equal(attempt_publish_manifest(&a, &io_system, 1, &f->e), 0);
        assert_int_equal(attempt_open_rank(&a, &io_system, 1, &data_fd, &manifest_fd, &f->e),
                         CAIRN_ERR_EXISTS);
        assert_int_equal(attempt_discard(&f->run, &a, &f->e), 0);
        fixture_free(f);
}

/* What a successor of a killed store process finds out. */
static void test_asking_again_reports_what_happened(void **state) {
        struct fixture *f = started();
        struct ranks_cut cut = fixture_cut(f, 10);
        struct commit_result result;
        struct attempt a, again;

        cut.non_finite = 3;
        assert_int_equal(ranks_attempt(&f->run, &cut, &a, &f->e), 0);
        /* killed between INDEX and COMMIT: its remains are not reused */
        int fd = openat(a.dir_fd, "INDEX", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        (void) close(fd);
        attempt_done(&a, &io_system);
        assert_int_equal(attempt_reopen(&f->run, 1, cut.attempt, 2, &again, &f->e), 0);
        assert_int_equal(attempt_commit(&f->run, &again, 0, "", &result, &f->e), 0);
        /* killed after the rename */
        assert_int_equal(attempt_reopen(&f->run, 1, cut.attempt, 2, &again, &f->e), 0);
        memset(&result, 0, sizeof result);
        assert_int_equal(attempt_commit(&f->run, &again, 0, "", &result, &f->e), 0);
        assert_string_equal(result.name, "000000000010-g0001");
        assert_int_equal(result.bytes, 2 * 8192);
        assert_true(result.flagged);
        /* never there */
        assert_int_equal(attempt_reopen(&f->run, 1, 77, 2, &again, &f->e), 0);
        assert_int_equal(attempt_commit(&f->run, &again, 0, "", &result, &f->e),
                         CAIRN_ERR_CANNOT_WRITE);
        assert_int_equal(attempt_discard(&f->run, &again, &f->e), 0);
        fixture_free(f);
}

static void test_an_old_leader_touches_nothing_of_the_new_one(void **state) {
        struct fixture *f = started();
        struct ranks_cut cut = fixture_cut(f, 10);
        struct commit_result result;
        struct attempt a;

        assert_int_equal(ranks_attempt(&f->run, &cut, &a, &f->e), 0);
        struct store_run old = f->run;
        f->run.fd = f->run.lock_fd = -1;
        (void) close(old.lock_fd);
        old.lock_fd = -1;
        assert_int_equal(fixture_start_mode(f, START_RESUME), 0); /* rolls it forward */
        assert_string_equal(f->reply.checkpoint, "000000000010-g0001");
        assert_int_equal(attempt_commit(&old, &a, 0, "", &result, &f->e), CAIRN_ERR_STALE);
        assert_int_equal(attempt_discard(&old, &a, &f->e), 0);
        assert_int_equal(checkpoint_check(&io_system, f->run.fd, "000000000010-g0001", "run", true,
                                          NULL, &f->e),
                         0);
        store_run_done(&old);
        fixture_free(f);
}

/* The store's part of B01 and B05: a write that fails leaves nothing under a checkpoint's name, the
 * remains go, and the next one works. */
static void test_B01_B05_a_failed_commit_leaves_the_previous(void **state) {
        static const char *const points[] = {"manifest-rename", "attempt-open",
                                             "commit-index",    "commit-record",
                                             "commit-rename",   "commit-parent-sync"};
        struct fixture *f = started();
        struct commit_result result;

        fixture_commit(f, 10);
        for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
                char specification[64];
                struct ranks_cut cut = fixture_cut(f, 20);
                (void) snprintf(specification, sizeof specification, "%s:1:error:28", points[i]);
                assert_int_equal(fault_init(specification, &f->e), 0);
                assert_int_equal(ranks_commit(&f->run, &cut, &result, &f->e), CAIRN_ERR_NOSPACE);
                assert_true(fault_fired());
                assert_int_equal(fault_init(NULL, NULL), 0);
                assert_non_null(strstr(f->e.message, "free space"));
                assert_false(fixture_has(f, "000000000020-g0001"));
                assert_int_equal(count_entries(f, ".pending"), 0);
        }
        assert_int_equal(fixture_start_mode(f, START_AUTO), 0);
        assert_int_equal(f->reply.checkpoint_step, 10);
        fixture_commit(f, 20);
        fixture_free(f);
}

static void crash_at(void *argument) {
        struct fixture *f = argument;
        struct ranks_cut cut = fixture_cut(f, 20);
        struct commit_result result;
        (void) ranks_commit(&f->run, &cut, &result, &f->e);
}

/* SIGKILL in the middle, from each place; what is restored is never older than what was reported.
 */
static void test_B01_killed_while_committing(void **state) {
        static const struct {
                const char *point;
                int64_t step; /* what the next start finds */
        } rows[] = {{"attempt-open", 10},  {"manifest-rename", 10}, {"commit-index", 20},
                    {"commit-record", 20}, {"commit-rename", 20},   {"commit-parent-sync", 20}};

        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                struct fixture *f = started();
                char specification[64];
                fixture_commit(f, 10);
                (void) snprintf(specification, sizeof specification, "%s:1:crash", rows[i].point);
                assert_int_equal(fault_init(specification, &f->e), 0);
                int status = test_in_child(crash_at, f);
                assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
                assert_int_equal(fault_init(NULL, NULL), 0);
                assert_int_equal(fixture_start_mode(f, START_AUTO), 0);
                assert_int_equal(f->reply.checkpoint_step, rows[i].step);
                assert_int_equal(checkpoint_check(&io_system, f->run.fd, f->reply.checkpoint, "run",
                                                  true, NULL, &f->e),
                                 0);
                fixture_free(f);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_commit_is_valid_to_the_last_byte),
                cmocka_unit_test(test_record_names_parent_reason_and_tag),
                cmocka_unit_test(test_B03b_a_step_that_exists),
                cmocka_unit_test(test_B03b_the_answer_describes_the_one_that_stays),
                cmocka_unit_test(test_B03b_a_damaged_one_in_the_way_is_replaced),
                cmocka_unit_test(test_B03b_a_step_of_an_abandoned_branch),
                cmocka_unit_test(test_refuses_what_does_not_belong_together),
                cmocka_unit_test(test_publishing_twice_is_one_acknowledgement),
                cmocka_unit_test(test_asking_again_reports_what_happened),
                cmocka_unit_test(test_an_old_leader_touches_nothing_of_the_new_one),
                cmocka_unit_test(test_B01_B05_a_failed_commit_leaves_the_previous),
                cmocka_unit_test(test_B01_killed_while_committing),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
