/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "client/generation_lock.h"
#include "format/wire.h"
#include "tests/test.h"
#include <signal.h>
#include <sys/wait.h>

#define RUN "gpt"

static int take(struct link *link, uint64_t generation, uint64_t timeout_ms, int *ret_fd,
                struct cairn_error *reterr) {
        uint64_t deadline_ns = clock_now(&clock_system) + timeout_ms * NSEC_PER_MSEC;
        return generation_lock_take(ret_fd, link, RUN, generation, deadline_ns, &clock_system,
                                    reterr);
}

/* A process that holds this generation until it is killed. */
static pid_t start_holder(uint64_t generation) {
        int ready[2];
        char byte;
        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct link link;
                int fd;
                if (link_init(&link, &clock_system, NULL) < 0 ||
                    take(&link, generation, 5000, &fd, NULL) < 0 || write(ready[1], "x", 1) != 1)
                        _exit(1);
                for (;;)
                        (void) pause();
        }
        (void) close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        (void) close(ready[0]);
        return pid;
}

static void end_holder(pid_t pid) {
        int status;
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void expect_waiting_for(struct link *link, uint64_t generation, pid_t holder) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[900], number[32];
        int fd;
        assert_int_equal(take(link, generation, 100, &fd, &e), CAIRN_ERR_BUSY);
        (void) snprintf(number, sizeof number, "process %d,", (int) holder);
        assert_non_null(strstr(error_format(&e, text, sizeof text), number));
}

/* An older one, a newer one, and one of the last generation that there can be. */
static void test_other_generations_are_waited_for(void **state) {
        const uint64_t others[] = {0, 1, 4, 6, 7, UINT32_MAX};
        struct link *link = *state;
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
                int fd;
                pid_t holder = start_holder(others[i]);
                expect_waiting_for(link, 5, holder);
                end_holder(holder);
                assert_int_equal(take(link, 5, 100, &fd, NULL), 0);
                assert_int_equal(close(fd), 0);
        }
}

static void test_ranks_of_one_generation_share_it(void **state) {
        struct link *link = *state;
        int fd;
        pid_t first = start_holder(5), second = start_holder(5);
        assert_int_equal(take(link, 5, 100, &fd, NULL), 0);
        end_holder(first);
        assert_int_equal(close(fd), 0);
        expect_waiting_for(link, 6, second);
        end_holder(second);
}

/* Waiting ends when the last one does, not when the first one does. */
static void test_waits_until_the_last_one_ended(void **state) {
        struct link *link = *state;
        int fd;
        pid_t first = start_holder(1), second = start_holder(1), killer = fork();
        assert_true(killer >= 0);
        if (killer == 0) {
                clock_system.sleep_ns(NULL, 50 * NSEC_PER_MSEC);
                (void) kill(first, SIGKILL);
                clock_system.sleep_ns(NULL, 50 * NSEC_PER_MSEC);
                (void) kill(second, SIGKILL);
                _exit(0);
        }
        assert_int_equal(take(link, 2, 20000, &fd, NULL), 0);
        assert_int_equal(waitpid(second, NULL, 0), second); /* or it would not be over */
        assert_int_equal(waitpid(first, NULL, 0), first);
        assert_int_equal(waitpid(killer, NULL, 0), killer);
        assert_int_equal(close(fd), 0);
}

/* The run's end takes the file away, unless somebody needs it; who comes then makes another. */
static void test_file_is_removed(void **state) {
        struct link *link = *state;
        char path[4096];
        int fd;
        assert_int_equal(wire_private_path(RUN, ".trainers", path, sizeof path, NULL), 0);
        pid_t holder = start_holder(8);
        generation_lock_remove(RUN);
        assert_int_equal(access(path, F_OK), 0);
        expect_waiting_for(link, 9, holder);
        end_holder(holder);
        generation_lock_remove(RUN);
        assert_int_equal(access(path, F_OK), -1);
        generation_lock_remove(RUN);
        assert_int_equal(take(link, 1, 100, &fd, NULL), 0);
        assert_int_equal(close(fd), 0);
        generation_lock_remove(RUN);
}

static int set_up(void **state) {
        static struct link link;
        static char folder[200];
        (void) close(test_folder(folder, sizeof folder));
        *state = &link;
        return setenv("XDG_RUNTIME_DIR", folder, 1) < 0 ||
               link_init(&link, &clock_system, NULL) < 0;
}

static int tear_down(void **state) {
        link_done(*state);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_other_generations_are_waited_for),
                cmocka_unit_test(test_ranks_of_one_generation_share_it),
                cmocka_unit_test(test_waits_until_the_last_one_ended),
                cmocka_unit_test(test_file_is_removed),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
