/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/retention.h"
#include "base/fault.h"
#include "tests/unit/store_fixture.h"

static struct fixture *started(void) {
        struct fixture *f = fixture_new();
        assert_int_equal(fixture_start_mode(f, START_FRESH), 0);
        return f;
}

static uint32_t retain(struct fixture *f, uint32_t keep_last) {
        uint32_t deleted = 0;
        assert_int_equal(retention_run(&f->run, keep_last, &deleted, &f->e), 0);
        return deleted;
}

static bool has_step(struct fixture *f, int64_t step, uint64_t generation) {
        char name[NAME_BYTES];
        name_checkpoint(name, step, generation);
        return fixture_has(f, name);
}

static void check_newest(struct fixture *f, int64_t step) {
        assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
        assert_int_equal(f->reply.checkpoint_step, step);
}

static void test_B52_steps_are_numbers(void **state) {
        struct fixture *f = started();

        for (int64_t step = 8; step <= 11; step++) {
                fixture_commit(f, step);
                (void) retain(f, 3);
        }
        assert_false(has_step(f, 8, 1));
        assert_true(has_step(f, 9, 1) && has_step(f, 10, 1) && has_step(f, 11, 1));
        check_newest(f, 11);
        fixture_free(f);
}

static void test_B52_keep_10_of_9000_to_10500(void **state) {
        struct fixture *f = started();

        for (int64_t step = 9000; step <= 10500; step += 100) {
                fixture_commit(f, step);
                (void) retain(f, 10);
        }
        for (int64_t step = 9000; step <= 10500; step += 100)
                assert_int_equal(has_step(f, step, 1), step >= 9600);
        check_newest(f, 10500);
        fixture_free(f);
}

static void test_B52_around_powers_of_ten(void **state) {
        static const int64_t steps[] = {99, 100, 999999, 1000000, 999999999999, 1000000000000};
        struct fixture *f = started();

        for (size_t i = 0; i < 6; i++)
                fixture_commit(f, steps[i]);
        assert_int_equal(retain(f, 3), 3);
        assert_true(has_step(f, 1000000000000, 1) && has_step(f, 999999999999, 1) &&
                    has_step(f, 1000000, 1));
        check_newest(f, 1000000000000);
        fixture_free(f);
}

/* The newer generation counts as newer, also where its steps are lower. */
static void test_a_branch_stays_until_the_new_one_has_enough(void **state) {
        struct fixture *f = started();

        for (int64_t step = 10; step <= 40; step += 10)
                fixture_commit(f, step);
        fixture_request(f, START_FRESH)->has_from_step = true;
        f->q.from_step = 20;
        assert_int_equal(fixture_start(f), 0);
        assert_int_equal(retain(f, 2), 0); /* lineage: 10, 20; the branch is newer than 10 */
        fixture_commit(f, 25);
        assert_int_equal(retain(f, 2), 1); /* 10 goes */
        assert_true(has_step(f, 30, 1) && has_step(f, 40, 1));
        fixture_commit(f, 28);
        assert_int_equal(retain(f, 2), 2);
        assert_false(has_step(f, 30, 1) || has_step(f, 40, 1));
        assert_true(has_step(f, 20, 1)); /* the parent of the newest generation */
        fixture_free(f);
}

static void test_what_is_never_deleted(void **state) {
        struct fixture *f = started();

        fixture_commit(f, 10);
        fixture_commit(f, 20);
        assert_int_equal(mark_pin(&f->run, "000000000010-g0001", true, &f->e), 0);
        check_newest(f, 20); /* 20 becomes a parent */
        fixture_commit(f, 30);
        fixture_commit(f, 40);
        assert_int_equal(retain(f, 1), 1);
        assert_true(has_step(f, 10, 1) && has_step(f, 20, 1) && has_step(f, 40, 2));
        assert_int_equal(mark_pin(&f->run, "000000000010-g0001", false, &f->e), 0);
        assert_int_equal(retain(f, 1), 1);
        assert_false(has_step(f, 10, 1));
        assert_int_equal(retain(f, 0), 0); /* keep all */
        assert_true(has_step(f, 20, 1));
        fixture_free(f);
}

/* Deleting in slices ends where deleting at once does; what is chosen is out of the way at once. */
static void test_slices(void **state) {
        struct fixture *f = started();
        struct prune p = {.keep_last = 1, .slice_ns = 1};
        uint32_t deleted = 0;
        int calls = 0;

        for (int64_t step = 10; step <= 40; step += 10)
                fixture_commit(f, step);
        do {
                assert_int_equal(retention_prune(&f->run, &p, &f->e), 0);
                deleted += p.deleted;
                for (int64_t step = 10; step <= 40; step += 10)
                        assert_int_equal(has_step(f, step, 1), step == 40);
        } while (p.more && ++calls < 100);
        assert_false(p.more);
        assert_in_range(calls, 3 * 3, 99); /* of each at least data, manifest and the folder */
        assert_int_equal(deleted, 3);
        for (int64_t step = 10; step < 40; step += 10) {
                char name[NAME_BYTES], trash[NAME_BYTES];
                name_checkpoint(name, step, 1);
                name_trash(trash, name);
                assert_false(fixture_has(f, trash));
        }
        check_newest(f, 40);
        fixture_free(f);
}

static void test_keep_every_and_dry_run(void **state) {
        struct fixture *f = started();
        char names[64]; /* three whole ones fit */
        struct prune p = {.keep_last = 1, .keep_every = 20, .dry_run = true};

        p.names = names;
        p.names_bytes = sizeof names;
        for (int64_t step = 10; step <= 70; step += 10)
                fixture_commit(f, step);
        fixture_damage(f, "000000000040-g0001/INDEX"); /* a multiple, but worth nothing */
        assert_int_equal(retention_prune(&f->run, &p, &f->e), 0);
        assert_int_equal(p.deleted, 4); /* 10, 30, 40, 50 */
        assert_string_equal(names, "000000000010-g0001\n000000000030-g0001\n000000000040-g0001\n");
        assert_true(has_step(f, 10, 1) && has_step(f, 40, 1));
        p.dry_run = false;
        p.names = NULL;
        assert_int_equal(retention_prune(&f->run, &p, &f->e), 0);
        assert_int_equal(p.deleted, 4);
        for (int64_t step = 10; step <= 70; step += 10)
                assert_int_equal(has_step(f, step, 1), step == 20 || step == 60 || step == 70);
        check_newest(f, 70);
        fixture_free(f);
}

static void test_damaged_ones_do_not_count(void **state) {
        struct fixture *f = started();

        for (int64_t step = 10; step <= 40; step += 10)
                fixture_commit(f, step);
        fixture_damage(f, "000000000040-g0001/INDEX");
        fixture_damage(f, "000000000030-g0001/rank-00000.manifest");
        assert_int_equal(retain(f, 2), 0); /* 20 and 10 are the two that can be trusted */
        assert_int_equal(retain(f, 1), 1);
        check_newest(f, 20);
        fixture_free(f);
}

static void test_attempts_go_after_a_newer_commit(void **state) {
        struct fixture *f = started();
        struct attempt a;

        fixture_commit(f, 10);
        assert_int_equal(attempt_open(&f->run, 1, 50, 2, &a, &f->e), 0); /* never completed */
        attempt_done(&a, &io_system);
        (void) retain(f, 3);
        assert_true(fixture_has(f, ".pending-g0001-a000050")); /* it may be in flight */
        check_newest(f, 10);
        (void) retain(f, 3);
        assert_true(fixture_has(f, ".stale-g0001-a000050-by0002"));
        fixture_commit(f, 20);
        (void) retain(f, 3);
        assert_false(fixture_has(f, ".stale-g0001-a000050-by0002"));
        fixture_free(f);
}

static void test_remains_are_deleted_and_links_not_followed(void **state) {
        struct fixture *f = started();
        char path[800], target[700];

        fixture_commit(f, 10);
        (void) snprintf(target, sizeof target, "%s/precious", f->folder);
        assert_int_equal(mkdir(target, 0755), 0);
        (void) snprintf(path, sizeof path, "%s/run/.trash-x", f->path);
        assert_int_equal(mkdir(path, 0755), 0);
        (void) snprintf(path, sizeof path, "%s/run/.trash-x/inner", f->path);
        assert_int_equal(mkdir(path, 0755), 0);
        (void) snprintf(path, sizeof path, "%s/run/.trash-x/link", f->path);
        assert_int_equal(symlink(target, path), 0);
        (void) snprintf(path, sizeof path, "%s/run/.trash-link", f->path);
        assert_int_equal(symlink(target, path), 0);
        (void) snprintf(path, sizeof path, "%s/run/.tmp-0123456789abcdef", f->path);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        (void) close(fd);
        (void) retain(f, 3);
        assert_false(fixture_has(f, ".trash-x") || fixture_has(f, ".trash-link"));
        assert_false(fixture_has(f, ".tmp-0123456789abcdef"));
        assert_int_equal(access(target, F_OK), 0);
        fixture_free(f);
}

static void commit_and_retain(void *argument) {
        struct fixture *f = argument;
        struct ranks_cut cut = fixture_cut(f, 20);
        struct commit_result result;
        if (ranks_commit(&f->run, &cut, &result, &f->e) == 0)
                (void) retention_run(&f->run, 1, NULL, &f->e);
}

/* Keep 1, killed between the start of the save and the report: there is always a complete one. */
static void test_B54_the_previous_goes_after_the_new_one(void **state) {
        static const char *const points[] = {
                "attempt-open",  "manifest-rename",    "commit-index", "commit-record",
                "commit-rename", "commit-parent-sync", "prune-rename"};

        for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
                struct fixture *f = started();
                char specification[64];
                fixture_commit(f, 10);
                (void) snprintf(specification, sizeof specification, "%s:1:crash", points[i]);
                assert_int_equal(fault_init(specification, &f->e), 0);
                assert_true(WIFSIGNALED(test_in_child(commit_and_retain, f)));
                assert_int_equal(fault_init(NULL, NULL), 0);
                assert_true(has_step(f, 10, 1));
                assert_int_equal(fixture_start_mode(f, START_RESUME), 0);
                assert_int_equal(checkpoint_check(&io_system, f->run.fd, f->reply.checkpoint, "run",
                                                  true, NULL, &f->e),
                                 0);
                fixture_free(f);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_B52_steps_are_numbers),
                cmocka_unit_test(test_B52_keep_10_of_9000_to_10500),
                cmocka_unit_test(test_B52_around_powers_of_ten),
                cmocka_unit_test(test_a_branch_stays_until_the_new_one_has_enough),
                cmocka_unit_test(test_what_is_never_deleted),
                cmocka_unit_test(test_keep_every_and_dry_run),
                cmocka_unit_test(test_slices),
                cmocka_unit_test(test_damaged_ones_do_not_count),
                cmocka_unit_test(test_attempts_go_after_a_newer_commit),
                cmocka_unit_test(test_remains_are_deleted_and_links_not_followed),
                cmocka_unit_test(test_B54_the_previous_goes_after_the_new_one),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
