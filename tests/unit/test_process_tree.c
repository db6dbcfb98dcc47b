/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "tools/process_tree.h"

#include <poll.h>

/* A child with two grandchildren; all hold the pipe's writing end, so end-of-file means that all
 * are gone. */
static pid_t start_family(int *ret_pipe) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                for (int i = 0; i < 2; i++)
                        if (fork() == 0)
                                for (;;)
                                        (void) pause();
                (void) !write(ends[1], "r", 1);
                for (;;)
                        (void) pause();
        }
        (void) close(ends[1]);
        char ready;
        assert_int_equal(read(ends[0], &ready, 1), 1);
        *ret_pipe = ends[0];
        return child;
}

static void assert_all_gone(int pipe_end) {
        struct pollfd p = {.fd = pipe_end, .events = POLLIN};
        char byte;
        assert_int_equal(poll(&p, 1, 60000), 1);
        assert_int_equal(read(pipe_end, &byte, 1), 0);
        (void) close(pipe_end);
}

static void test_kills_the_whole_tree(void **state) {
        int pipe_end, wait_status;
        pid_t child = start_family(&pipe_end);
        assert_int_equal(process_tree_kill(child), 3);
        assert_int_equal(waitpid(child, &wait_status, 0), child);
        assert_true(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);
        assert_all_gone(pipe_end);
}

static void test_descendants_without_the_root(void **state) {
        int pipe_end;
        pid_t child = start_family(&pipe_end);
        assert_int_equal(process_tree_kill_descendants(child), 2);
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_all_gone(pipe_end);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_kills_the_whole_tree),
                cmocka_unit_test(test_descendants_without_the_root),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
