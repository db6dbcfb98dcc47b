/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/store_fixture.h"

#include <sys/mount.h>

static struct fixture *started(void) {
        struct fixture *f = fixture_new();
        assert_int_equal(fixture_start_mode(f, START_FRESH), 0);
        return f;
}

/* A run with checkpoints of steps 10, 20, 30 whose agent has ended. */
static struct fixture *used(void) {
        struct fixture *f = started();
        fixture_commit(f, 10);
        fixture_commit(f, 20);
        fixture_commit(f, 30);
        store_run_done(&f->run);
        return f;
}

static void test_fresh_makes_store_run_and_generation(void **state) {
        struct fixture *f = started();

        assert_int_equal(f->reply.generation, 1);
        assert_int_equal(f->reply.decided, START_FRESH);
        assert_int_equal(f->reply.checkpoint_step, -1);
        assert_true(fixture_has(f, "GEN-0001") && fixture_has(f, "GEN-0001.start"));
        assert_true(fixture_has(f, "marks/LOCK"));
        fixture_free(f);
}

static void test_fresh_makes_an_empty_folder_a_store(void **state) {
        struct fixture *f = fixture_new();

        assert_int_equal(mkdir(f->path, 0755), 0);
        assert_int_equal(fixture_start_mode(f, START_FRESH), 0);
        fixture_free(f);
}

static void test_h_no_store(void **state) {
        struct fixture *f = fixture_new();

        (void) fixture_request(f, START_RESUME);
        assert_refused(f, CAIRN_ERR_UNREACHABLE, "no such folder");
        (void) fixture_request(f, START_AUTO);
        assert_refused(f, CAIRN_ERR_UNREACHABLE, "mounted");
        assert_int_equal(mkdir(f->path, 0755), 0);
        assert_refused(f, CAIRN_ERR_UNREACHABLE, "the folder is empty");
        fixture_request(f, START_FRESH)->create_store = false;
        assert_refused(f, CAIRN_ERR_UNREACHABLE, "cairn init");
        fixture_free(f);
}

static void test_h_not_a_cairn_store(void **state) {
        struct fixture *f = fixture_new();
        char path[700];

        assert_int_equal(mkdir(f->path, 0755), 0);
        (void) snprintf(path, sizeof path, "%s/notes", f->path);
        assert_int_equal(mkdir(path, 0755), 0);
        for (enum start_mode mode = START_FRESH; mode <= START_AUTO; mode++) {
                (void) fixture_request(f, mode);
                assert_refused(f, CAIRN_ERR_MISMATCH, "cairn init");
        }
        fixture_free(f);
}

static void test_h_fresh_on_a_used_run(void **state) {
        struct fixture *f = used();

        (void) fixture_request(f, START_FRESH);
        assert_refused(f, CAIRN_ERR_EXISTS, "`--mode resume` or `--mode auto`");
        fixture_free(f);
}

static void test_h_resume_of_a_missing_run(void **state) {
        struct fixture *f = started();

        fixture_request(f, START_RESUME)->run[0] = 'b';
        assert_refused(f, CAIRN_ERR_NOTFOUND, "nothing to resume");
        store_run_done(&f->run);
        (void) fixture_request(f, START_RESUME); /* there, but nothing is committed */
        assert_refused(f, CAIRN_ERR_NOTFOUND, "nothing to resume");
        fixture_free(f);
}

static void test_h_finished(void **state) {
        struct fixture *f = used();

        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        assert_int_equal(mark_finished(&f->run, "steps done", 30, f->reply.generation, NULL), 0);
        store_run_done(&f->run);
        (void) fixture_request(f, START_RESUME);
        assert_refused(f, CAIRN_ERR_FINISHED, "steps done, step 30");
        (void) fixture_request(f, START_FRESH);
        assert_refused(f, CAIRN_ERR_EXISTS, "finished");

        uint64_t before = fixture_digest(f);
        assert_int_equal(fixture_start_mode(f, START_AUTO), 0);
        assert_true(f->reply.finished);
        assert_string_equal(f->reply.finished_reason, "steps done");
        assert_true(before == fixture_digest(f) && f->run.fd == -1);

        /* On purpose it goes on, and is not finished any more. */
        fixture_request(f, START_FRESH)->has_from_step = true;
        f->q.from_step = 20;
        assert_int_equal(fixture_start(f), 0);
        assert_int_equal(fixture_start_mode(f, START_AUTO), 0);
        assert_false(f->reply.finished);
        fixture_free(f);
}

static void test_h_foreign_run(void **state) {
        struct fixture *f = used();
        char from[700], to[700];

        (void) snprintf(from, sizeof from, "%s/run", f->path);
        (void) snprintf(to, sizeof to, "%s/other", f->path);
        assert_int_equal(rename(from, to), 0);
        memcpy(fixture_request(f, START_RESUME)->run, "other", 6);
        assert_refused(f, CAIRN_ERR_MISMATCH, "another run");
        f->q.mode = START_AUTO;
        assert_refused(f, CAIRN_ERR_MISMATCH, "another run");
        fixture_free(f);
}

static void test_h_all_damaged(void **state) {
        struct fixture *f = used();

        fixture_damage(f, "000000000010-g0001/INDEX");
        fixture_damage(f, "000000000020-g0001/COMMIT");
        fixture_damage(f, "000000000030-g0001/rank-00001.manifest");
        for (enum start_mode mode = START_RESUME; mode <= START_AUTO; mode++) {
                (void) fixture_request(f, mode);
                assert_refused(f, CAIRN_ERR_CORRUPT, "rank-00001.manifest");
                assert_non_null(strstr(f->e.message, "cairn verify"));
        }
        (void) fixture_request(f, START_FRESH);
        assert_refused(f, CAIRN_ERR_EXISTS, "--mode resume");
        fixture_free(f);
}

static void test_h_damaged_newest_falls_back_and_says_so(void **state) {
        struct fixture *f = used();

        fixture_damage(f, "000000000030-g0001/INDEX");
        assert_int_equal(fixture_start_mode(f, START_AUTO), 0);
        assert_int_equal(f->reply.decided, START_RESUME);
        assert_string_equal(f->reply.checkpoint, "000000000020-g0001");
        assert_non_null(strstr(f->reply.note, "000000000030-g0001 is damaged"));
        assert_non_null(strstr(f->reply.note, "fell back to 000000000020-g0001"));
        fixture_free(f);
}

static void test_a_shortened_data_file_is_damage(void **state) {
        struct fixture *f = used();
        char path[800];

        (void) snprintf(path, sizeof path, "%s/run/000000000030-g0001/rank-00000.data", f->path);
        assert_int_equal(truncate(path, 4096), 0);
        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        assert_string_equal(f->reply.checkpoint, "000000000020-g0001");
        fixture_free(f);
}

static void test_h_unlisted_store_is_not_empty(void **state) {
        struct fixture *f = used();
        struct io_ops io = io_system;
        char path[700];

        fixture_reopen(f);
        /* A file where the run's folder should be: not a run, and not an empty one. */
        (void) snprintf(path, sizeof path, "%s/file", f->path);
        int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
        (void) close(fd);
        memcpy(fixture_request(f, START_AUTO)->run, "file", 5);
        assert_refused(f, CAIRN_ERR_CORRUPT, "not a run");
        (void) io;
        fixture_free(f);
}

static int failing_list(void *context, int dirfd, int (*visit)(const char *name, void *argument),
                        void *argument) {
        errno = EIO;
        return -1;
}

static void test_h_store_that_does_not_answer(void **state) {
        struct fixture *f = used();
        struct io_ops io = io_system;

        io.list = failing_list;
        f->store.io = &io;
        for (enum start_mode mode = START_FRESH; mode <= START_AUTO; mode++) {
                (void) fixture_request(f, mode);
                assert_refused(f, CAIRN_ERR_UNREACHABLE, "");
        }
        f->store.io = &io_system;
        fixture_free(f);
}

static void test_h_second_run_of_a_living_one(void **state) {
        struct fixture *f = started();
        struct store second = f->store;
        struct store_run run;

        fixture_commit(f, 10);
        uint64_t before = fixture_digest(f);
        for (enum start_mode mode = START_FRESH; mode <= START_AUTO; mode++) {
                (void) fixture_request(f, mode);
                assert_int_equal(generation_start(&second, &f->q, &run, &f->reply, &f->e),
                                 CAIRN_ERR_EXISTS);
                assert_non_null(strstr(f->e.message, "is running"));
                /* Its own runner, whose agent was lost, waits instead. */
                f->q.again = true;
                assert_int_equal(generation_start(&second, &f->q, &run, &f->reply, &f->e),
                                 CAIRN_ERR_BUSY);
        }
        assert_true(before == fixture_digest(f));
        fixture_free(f);
}

static void test_h_only_flagged(void **state) {
        struct fixture *f = started();
        struct ranks_cut cut = fixture_cut(f, 10);
        struct commit_result result;

        cut.suspect = true;
        assert_int_equal(ranks_commit(&f->run, &cut, &result, &f->e), 0);
        store_run_done(&f->run);
        for (enum start_mode mode = START_RESUME; mode <= START_AUTO; mode++) {
                (void) fixture_request(f, mode);
                assert_refused(f, CAIRN_ERR_CORRUPT, "--from 10");
        }
        fixture_request(f, START_FRESH)->has_from_step = true;
        f->q.from_step = 10;
        assert_int_equal(fixture_start(f), 0);
        assert_string_equal(f->reply.checkpoint, "000000000010-g0001");
        fixture_free(f);
}

static void test_h_contradictions(void **state) {
        struct fixture *f = used();

        fixture_request(f, START_AUTO)->has_from_step = true;
        assert_refused(f, CAIRN_ERR_API, "--mode auto");
        memcpy(fixture_request(f, START_RESUME)->init_from, "x", 2);
        assert_refused(f, CAIRN_ERR_API, "--init-from");
        fixture_request(f, START_RESUME)->run[0] = '/';
        assert_refused(f, CAIRN_ERR_API, "");
        fixture_free(f);
}

static void test_resume_chooses_the_newest(void **state) {
        struct fixture *f = used();

        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        assert_int_equal(f->reply.generation, 2);
        assert_string_equal(f->reply.checkpoint, "000000000030-g0001");
        assert_int_equal(f->reply.checkpoint_step, 30);
        assert_int_equal(f->reply.checkpoint_generation, 1);
        assert_int_equal(f->reply.checkpoint_world, 2);
        assert_string_equal(f->reply.note, "");
        fixture_free(f);
}

static void test_from_step_leaves_a_branch(void **state) {
        struct fixture *f = used();

        fixture_request(f, START_FRESH)->has_from_step = true;
        f->q.from_step = 10;
        assert_int_equal(fixture_start(f), 0);
        assert_string_equal(f->reply.checkpoint, "000000000010-g0001");
        /* A restart before the first commit goes on from there, not from the branch. */
        f->q.is_restart = true;
        assert_int_equal(fixture_start(f), 0);
        assert_string_equal(f->reply.checkpoint, "000000000010-g0001");
        fixture_commit(f, 15);
        assert_int_equal(fixture_start_mode(f, START_AUTO), 0);
        assert_string_equal(f->reply.checkpoint, "000000000015-g0003");
        /* The branch is still there and can be taken on purpose. */
        fixture_request(f, START_FRESH)->has_from_step = true;
        f->q.from_step = 30;
        assert_int_equal(fixture_start(f), 0);
        assert_string_equal(f->reply.checkpoint, "000000000030-g0001");
        store_run_done(&f->run);
        f->q.from_step = 31;
        assert_refused(f, CAIRN_ERR_NOTFOUND, "no checkpoint of step 31");
        assert_non_null(strstr(f->e.message, "10, 20, 30, 15"));
        fixture_free(f);
}

static void test_skip_newest(void **state) {
        struct fixture *f = used();

        fixture_request(f, START_RESUME)->skip_newest = 1;
        assert_int_equal(fixture_start(f), 0);
        assert_string_equal(f->reply.checkpoint, "000000000020-g0001");
        assert_non_null(strstr(f->reply.note, "000000000030-g0001 was passed over"));
        store_run_done(&f->run);
        f->q.skip_newest = 3;
        assert_refused(f, CAIRN_ERR_CORRUPT, "none older");
        fixture_free(f);
}

/* The crash-loop guard: where there is nothing older the oldest is tried again. */
static void test_before_step(void **state) {
        struct fixture *f = used();

        fixture_request(f, START_RESUME)->before_step = 30;
        assert_int_equal(fixture_start(f), 0);
        assert_string_equal(f->reply.checkpoint, "000000000020-g0001");
        assert_non_null(strstr(f->reply.note, "000000000030-g0001 was passed over"));
        store_run_done(&f->run);
        fixture_request(f, START_RESUME)->before_step = 5;
        assert_int_equal(fixture_start(f), 0);
        assert_string_equal(f->reply.checkpoint, "000000000010-g0001");
        assert_non_null(strstr(f->reply.note, "there is none older"));
        fixture_free(f);
}

static void test_roll_forward(void **state) {
        struct fixture *f = used();

        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        fixture_attempt(f, 40);
        store_run_done(&f->run);
        (void) fixture_request(f, START_FRESH); /* it counts as a checkpoint, and stays pending */
        assert_refused(f, CAIRN_ERR_EXISTS, "--mode resume");
        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        assert_string_equal(f->reply.checkpoint, "000000000040-g0002");
        assert_non_null(strstr(f->reply.note, "rolled forward 000000000040-g0002"));
        assert_int_equal(checkpoint_check(&io_system, f->run.fd, "000000000040-g0002", "run", true,
                                          NULL, &f->e),
                         0);
        fixture_free(f);
}

/* A new agent in the same generation: the whole attempt is committed, the other one is gone. */
static void test_take_up(void **state) {
        struct fixture *f = used();
        struct attempt a;
        struct start_reply reply = {.generation = 2};

        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        fixture_attempt(f, 40);
        struct ranks_cut cut = fixture_cut(f, 50);
        assert_int_equal(attempt_open(&f->run, cut.generation, cut.attempt + 1, 2, &a, NULL), 0);
        attempt_done(&a, &io_system);
        assert_int_equal(generation_take_up(&f->run, 2, &reply, &f->e), 0);
        assert_string_equal(reply.committed, "000000000040-g0002");
        assert_int_equal(reply.committed_step, 40);
        assert_non_null(strstr(reply.note, "rolled forward 000000000040-g0002"));
        assert_int_equal(checkpoint_check(&io_system, f->run.fd, "000000000040-g0002", "run", true,
                                          NULL, &f->e),
                         0);
        assert_false(fixture_has(f, a.name));
        fixture_free(f);
}

static void test_an_incomplete_attempt_is_set_aside(void **state) {
        struct fixture *f = used();
        struct attempt a;
        int data_fd, manifest_fd;

        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        struct ranks_cut cut = fixture_cut(f, 40);
        assert_int_equal(attempt_open(&f->run, cut.generation, cut.attempt, 2, &a, NULL), 0);
        assert_int_equal(attempt_open_rank(&a, &io_system, 0, &data_fd, &manifest_fd, NULL), 0);
        assert_int_equal(ranks_write(&io_system, &cut, 0, data_fd, manifest_fd, NULL), 0);
        assert_int_equal(attempt_publish_manifest(&a, &io_system, 0, NULL), 0);
        (void) close(data_fd);
        (void) close(manifest_fd);
        struct store_run old = f->run; /* a leader that has not noticed */
        f->run.fd = f->run.lock_fd = -1;
        (void) close(old.lock_fd);
        old.lock_fd = -1;
        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        assert_string_equal(f->reply.checkpoint, "000000000030-g0001");
        assert_int_equal(f->reply.generation, 3);

        struct commit_result result;
        struct attempt b;
        assert_int_equal(attempt_commit(&old, &a, 0, "", &result, &f->e), CAIRN_ERR_STALE);
        assert_int_equal(attempt_open(&old, 2, 99, 2, &b, &f->e), CAIRN_ERR_STALE);
        assert_non_null(strstr(f->e.message, "restart 3"));
        assert_false(fixture_has(f, ".pending-g0002-a000099"));
        attempt_done(&a, &io_system);
        store_run_done(&old);
        fixture_free(f);
}

static void test_restart_repeats_the_intent_where_nothing_is_committed(void **state) {
        struct fixture *f = started();

        fixture_request(f, START_FRESH)->is_restart = true;
        assert_int_equal(fixture_start(f), 0);
        assert_int_equal(f->reply.decided, START_FRESH);
        assert_int_equal(f->reply.generation, 2);
        fixture_commit(f, 10);
        assert_int_equal(fixture_start(f), 0);
        assert_int_equal(f->reply.decided, START_RESUME);
        assert_int_equal(f->reply.checkpoint_step, 10);
        fixture_free(f);
}

static void test_init_from(void **state) {
        struct fixture *f = used();

        memcpy(fixture_request(f, START_INIT_FROM)->run, "tuned", 6);
        memcpy(f->q.init_from, "run/000000000020-g0001", 23);
        assert_int_equal(fixture_start(f), 0);
        assert_int_equal(f->reply.decided, START_INIT_FROM);
        assert_string_equal(f->reply.checkpoint, "run/000000000020-g0001");
        fixture_commit(f, 5);
        /* auto initialises only where nothing is committed. */
        f->q.mode = START_AUTO;
        assert_int_equal(fixture_start(f), 0);
        assert_int_equal(f->reply.decided, START_RESUME);
        assert_int_equal(f->reply.checkpoint_step, 5);
        store_run_done(&f->run);

        memcpy(f->q.run, "third", 6);
        (void) snprintf(f->q.init_from, sizeof f->q.init_from, "%s/run/000000000030-g0001",
                        f->path);
        assert_int_equal(fixture_start(f), 0);
        assert_int_equal(f->reply.decided, START_INIT_FROM);
        store_run_done(&f->run);
        memcpy(f->q.run, "fourt", 6);
        memcpy(f->q.init_from, "run/000000000021-g0001", 23);
        assert_refused(f, CAIRN_ERR_NOTFOUND, "");
        fixture_free(f);
}

static void test_a_claim_without_a_start_is_ignored(void **state) {
        struct fixture *f = used();
        char path[700];

        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        (void) snprintf(path, sizeof path, "%s/run/GEN-0002.start", f->path);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        assert_int_equal(f->reply.generation, 3);
        assert_string_equal(f->reply.checkpoint, "000000000030-g0001");
        fixture_free(f);
}

/* Decoys, links and a folder that was moved or copied: there is no pointer that could dangle. */
static void test_B56_moved_store_decoys_and_links(void **state) {
        struct fixture *f = used();
        char from[700], to[900], command[2000];

        /* A link with the name of a newer checkpoint, to a valid one elsewhere: not followed. */
        (void) snprintf(from, sizeof from, "%s/outside", f->folder);
        (void) snprintf(command, sizeof command, "%s/run/000000000020-g0001", f->path);
        pid_t child = fork();
        if (child == 0) {
                (void) execlp("cp", "cp", "-a", command, from, (char *) NULL);
                _exit(127);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        (void) snprintf(to, sizeof to, "%s/run/000000000099-g0001", f->path);
        assert_int_equal(symlink(from, to), 0);
        (void) snprintf(to, sizeof to, "%s/run/latest", f->path);
        assert_int_equal(symlink("000000000010-g0001", to), 0);
        (void) snprintf(to, sizeof to, "%s/run/000000000077-g0001", f->path);
        assert_int_equal(mkdir(to, 0755), 0); /* an empty decoy */

        fixture_reopen(f);
        (void) snprintf(to, sizeof to, "%s/moved", f->folder);
        assert_int_equal(rename(f->path, to), 0);
        (void) snprintf(f->path, sizeof f->path, "%s/moved", f->folder);
        (void) snprintf(f->store.path, sizeof f->store.path, "%s", f->path);
        int r = fixture_start_mode(f, START_RESUME);
        if (r < 0)
                fail_msg("%s %s: %s", f->e.operation, f->e.object, f->e.message);
        assert_string_equal(f->reply.checkpoint, "000000000030-g0001");
        fixture_commit(f, 31);
        fixture_free(f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_fresh_makes_store_run_and_generation),
                cmocka_unit_test(test_fresh_makes_an_empty_folder_a_store),
                cmocka_unit_test(test_h_no_store),
                cmocka_unit_test(test_h_not_a_cairn_store),
                cmocka_unit_test(test_h_fresh_on_a_used_run),
                cmocka_unit_test(test_h_resume_of_a_missing_run),
                cmocka_unit_test(test_h_finished),
                cmocka_unit_test(test_h_foreign_run),
                cmocka_unit_test(test_h_all_damaged),
                cmocka_unit_test(test_h_damaged_newest_falls_back_and_says_so),
                cmocka_unit_test(test_a_shortened_data_file_is_damage),
                cmocka_unit_test(test_h_unlisted_store_is_not_empty),
                cmocka_unit_test(test_h_store_that_does_not_answer),
                cmocka_unit_test(test_h_second_run_of_a_living_one),
                cmocka_unit_test(test_h_only_flagged),
                cmocka_unit_test(test_h_contradictions),
                cmocka_unit_test(test_resume_chooses_the_newest),
                cmocka_unit_test(test_from_step_leaves_a_branch),
                cmocka_unit_test(test_skip_newest),
                cmocka_unit_test(test_take_up),
                cmocka_unit_test(test_before_step),
                cmocka_unit_test(test_roll_forward),
                cmocka_unit_test(test_an_incomplete_attempt_is_set_aside),
                cmocka_unit_test(test_restart_repeats_the_intent_where_nothing_is_committed),
                cmocka_unit_test(test_init_from),
                cmocka_unit_test(test_a_claim_without_a_start_is_ignored),
                cmocka_unit_test(test_B56_moved_store_decoys_and_links),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
