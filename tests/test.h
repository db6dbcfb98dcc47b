/* SPDX-License-Identifier: Apache-2.0
 *
 * test.h - what cmocka needs before it, and what several tests need beside it.
 */
#ifndef CAIRN_TESTS_TEST_H
#define CAIRN_TESTS_TEST_H

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A new empty folder under TMPDIR, which the runner removes. The caller closes the fd. */
static inline int test_folder(char *ret_path, size_t bytes) {
        const char *base = getenv("TMPDIR");
        (void) snprintf(ret_path, bytes, "%s/cairn-test-XXXXXX", base ? base : "/tmp");
        assert_non_null(mkdtemp(ret_path));
        int fd = open(ret_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(fd >= 0);
        return fd;
}

/* Runs f(argument) in a child and returns its wait status: for what ends or stops a process. What
 * the child says on standard error is expected and hidden. */
static inline int test_in_child(void (*f)(void *argument), void *argument) {
        int status;
        (void) fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
                (void) dup2(null, STDERR_FILENO);
                f(argument);
                _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        return status;
}

static inline void test_assert_aborts(void (*f)(void *argument), void *argument) {
        int status = test_in_child(f, argument);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

#endif
