/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/stop.h"

static void test_only_recorded(void **state) {
        stop_init();
        assert_int_equal(stop_signal(), 0);
        assert_int_equal(raise(SIGINT), 0);
        assert_int_equal(stop_signal(), SIGINT);
        assert_int_equal(raise(SIGTERM), 0);
        assert_int_equal(raise(SIGTERM), 0);
        assert_int_equal(stop_signal(), SIGTERM);
}

static void interrupt_twice(void *argument) {
        const int64_t *pause_ms = argument;

        stop_init();
        (void) raise(SIGINT);
        (void) usleep((useconds_t) (*pause_ms * 1000));
        (void) raise(SIGINT);
        _exit(0);
}

static void test_second_interrupt(void **state) {
        int64_t at_once = 0, later = 600;
        int status = -1;

        /* Where the machine pauses just between them they are not. */
        for (int i = 0; i < 20 && !(status >= 0 && WIFEXITED(status)); i++)
                status = test_in_child(interrupt_twice, &at_once);
        assert_true(WIFEXITED(status));
        status = test_in_child(interrupt_twice, &later);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_only_recorded),
                cmocka_unit_test(test_second_interrupt),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
