/* SPDX-License-Identifier: Apache-2.0
 *
 * Lives that end at given steps: when an older checkpoint is tried, and when it is forgotten.
 */
#include "tests/test.h"
#include "tools/crash_guard.h"

static struct crash_guard g;

static int setup(void **state) {
        (void) state;
        g = (struct crash_guard) CRASH_GUARD_INIT;
        return 0;
}

/* One life; the newest checkpoint it left, and the last step that it finished. */
static bool life(int64_t start, int64_t committed, int64_t died) {
        crash_guard_started(&g, start);
        crash_guard_settled(&g, committed, died);
        return crash_guard_failed(&g);
}

static void test_progress(void **state) {
        (void) state;
        assert_false(life(-1, 10, 13));
        assert_false(life(10, 20, 21));
        assert_false(life(20, 20, 22));
        assert_false(life(20, 20, 23));
        assert_int_equal(g.before_step, 0);
}

/* Each life leaves a post-mortem cut at the very step that fails. */
static void test_same_step_goes_back(void **state) {
        (void) state;
        assert_false(life(-1, 37, 37));
        assert_true(life(37, 37, 37));
        assert_int_equal(g.before_step, 37);
        assert_true(life(20, 37, 37)); /* 37 was reached again, and failed again */
        assert_int_equal(g.before_step, 20);
        assert_true(life(10, 37, 37));
        assert_int_equal(g.before_step, 10);
}

/* Three older checkpoints are tried, not all. */
static void test_hopeless(void **state) {
        (void) state;
        (void) life(-1, 37, 37);
        assert_true(life(37, 37, 37));
        assert_true(life(30, 37, 37));
        assert_true(life(20, 37, 37));
        assert_false(crash_guard_is_hopeless(&g));
        assert_true(life(10, 37, 37));
        assert_true(crash_guard_is_hopeless(&g));
        assert_false(life(10, 40, 41)); /* it got further after all */
        assert_false(crash_guard_is_hopeless(&g));
}

/* Inside the update there is no new cut: the older checkpoint is tried all the same. */
static void test_without_new_checkpoint(void **state) {
        (void) state;
        assert_false(life(-1, 20, 25));
        assert_true(life(20, 20, 25));
        assert_int_equal(g.before_step, 20);
}

static void test_forgets_after_progress(void **state) {
        (void) state;
        (void) life(-1, 37, 37);
        assert_true(life(37, 37, 37));
        g.restarts = 2;
        assert_false(life(20, 37, 30)); /* elsewhere, and nothing new */
        assert_int_equal(g.before_step, 37);
        assert_int_equal(g.restarts, 2);
        assert_false(life(30, 40, 41));
        assert_int_equal(g.before_step, 0);
        assert_int_equal(g.restarts, 0);
}

static void test_nothing_older(void **state) {
        (void) state;
        assert_false(life(-1, -1, 5));
        assert_false(life(-1, -1, 5));
        assert_int_equal(g.before_step, 0);
}

/* A trainer that cannot even start says nothing about its checkpoint. */
static void test_unknown_step(void **state) {
        (void) state;
        assert_false(life(20, 20, -1));
        assert_false(life(20, 20, -1));
        assert_false(life(20, 20, 25));
        assert_false(life(20, 20, -1));
        assert_true(life(20, 20, 25));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(test_progress, setup),
                cmocka_unit_test_setup(test_same_step_goes_back, setup),
                cmocka_unit_test_setup(test_hopeless, setup),
                cmocka_unit_test_setup(test_without_new_checkpoint, setup),
                cmocka_unit_test_setup(test_forgets_after_progress, setup),
                cmocka_unit_test_setup(test_nothing_older, setup),
                cmocka_unit_test_setup(test_unknown_step, setup),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
