/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/limits.h"
#include "comm/worker.h"
#include "tests/test.h"

#include <pthread.h>
#include <stdatomic.h>

struct job {
        atomic_int begun, calls;
        atomic_bool go;
        pthread_t thread;
        sigset_t blocked;
};

static void begin(void *context) {
        struct job *j = context;
        j->thread = pthread_self();
        j->begun++;
}

static void work(void *argument) {
        struct job *j = argument;
        assert_true(j->begun == 1 && pthread_equal(j->thread, pthread_self()));
        (void) pthread_sigmask(SIG_SETMASK, NULL, &j->blocked);
        while (!j->go)
                clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
        j->calls++;
}

static uint64_t in_ms(uint64_t ms) {
        return clock_now(&clock_system) + ms * NSEC_PER_MSEC;
}

static void calls_are_made_in_one_thread(void **state) {
        struct job j = {.go = true};
        struct worker *w;
        assert_int_equal(worker_new(&w, begin, &j, NULL), 0);
        assert_true(worker_wait(w, 0));
        for (int i = 0; i < 1000; i++) {
                worker_start(w, work, &j);
                while (!worker_wait(w, in_ms(1000)))
                        ;
        }
        assert_int_equal(j.calls, 1000);
        assert_int_equal(sigismember(&j.blocked, SIGTERM), 1);
        assert_true(worker_free(w));
        assert_true(worker_free(NULL));
}

static void a_call_that_does_not_return_is_left(void **state) {
        static struct worker *w; /* what is left behind is known */
        struct job j = {0};
        assert_int_equal(worker_new(&w, begin, &j, NULL), 0);
        worker_start(w, work, &j);
        uint64_t deadline_ns = in_ms(50);
        assert_false(worker_wait(w, deadline_ns));
        assert_true(clock_now(&clock_system) >= deadline_ns);
        assert_false(worker_free(w));
        j.go = true; /* it uses j until it is done */
        while (j.calls == 0)
                clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(calls_are_made_in_one_thread),
                cmocka_unit_test(a_call_that_does_not_return_is_left),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
