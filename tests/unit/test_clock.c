/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/limits.h"
#include "tests/test.h"

#include <limits.h>

static uint64_t fixed_now(void *context) {
        return *(uint64_t *) context;
}

static void test_poll_timeout(void **state) {
        uint64_t now = 1000 * NSEC_PER_SEC;
        struct clock_ops clock = {.now_ns = fixed_now, .context = &now};

        assert_int_equal(clock_poll_timeout(&clock, 0), 0);
        assert_int_equal(clock_poll_timeout(&clock, now), 0);
        assert_int_equal(clock_poll_timeout(&clock, now + 1), 1);
        assert_int_equal(clock_poll_timeout(&clock, now + NSEC_PER_MSEC), 1);
        assert_int_equal(clock_poll_timeout(&clock, now + NSEC_PER_MSEC + 1), 2);
        assert_int_equal(clock_poll_timeout(&clock, now + 5 * NSEC_PER_SEC), 5000);
        assert_int_equal(clock_poll_timeout(&clock, UINT64_MAX), INT_MAX);
}

static void ignore_signal(int number) {
}

/* A sleep lasts as long as it says, signals or not. */
static void test_sleep(void **state) {
        struct sigaction action = {.sa_handler = ignore_signal};
        assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
        uint64_t begin = clock_now(&clock_system);
        (void) ualarm(5000, 5000);
        clock_system.sleep_ns(clock_system.context, 40 * NSEC_PER_MSEC);
        (void) ualarm(0, 0);
        assert_true(clock_now(&clock_system) - begin >= 40 * NSEC_PER_MSEC);
}

static void test_realtime(void **state) {
        uint64_t year_2020 = UINT64_C(1577836800) * NSEC_PER_SEC;
        assert_true(clock_system.realtime_ns(clock_system.context) > year_2020);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_poll_timeout),
                cmocka_unit_test(test_sleep),
                cmocka_unit_test(test_realtime),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
