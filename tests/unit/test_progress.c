/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/progress.h"

static void test_when_a_line_is_due(void **state) {
        struct progress p;
        size_t lines = 0;

        progress_init(&p, 300, 40, false, 0);
        p.is_terminal = false;
        for (int64_t step = 41; step <= 300; step++)
                lines += progress_is_due(&p, step, 0);
        assert_true(lines == 1 + 9); /* the first, then each tenth of the run */

        p.is_terminal = true;
        p.next_ns = 1000;
        assert_false(progress_is_due(&p, 41, 999));
        assert_true(progress_is_due(&p, 41, 1000));
        progress_init(&p, 300, 40, true, 0);
        p.next_ns = 1000;
        assert_false(progress_is_due(&p, 41, 1000));
}

static void test_short_runs(void **state) {
        struct progress p;

        progress_init(&p, 3, 0, false, 0);
        p.is_terminal = false;
        for (int64_t step = 1; step <= 3; step++)
                assert_true(progress_is_due(&p, step, 0));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_when_a_line_is_due),
                cmocka_unit_test(test_short_runs),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
