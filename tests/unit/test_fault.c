/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/fault.h"
#include "base/limits.h"
#include "tests/test.h"

#include <errno.h>

static void test_off(void **state) {
        assert_int_equal(fault_init(NULL, NULL), 0);
        assert_false(fault_enabled);
        assert_int_equal(fault_init("", NULL), 0);
        assert_false(fault_enabled);
        assert_int_equal(fault_point(FAULT_DATA_WRITE), 0);
        assert_false(fault_fired());
}

static void test_nth_passage(void **state) {
        assert_int_equal(fault_init("data-write:3:error", NULL), 0);
        assert_int_equal(fault_point(FAULT_DATA_WRITE), 0);
        assert_int_equal(fault_point(FAULT_DATA_SYNC), 0);
        assert_int_equal(fault_point(FAULT_DATA_WRITE), 0);
        assert_false(fault_fired());
        assert_int_equal(fault_point(FAULT_DATA_WRITE), EIO);
        assert_true(fault_fired());
        assert_int_equal(fault_point(FAULT_DATA_WRITE), 0);
        /* A new specification starts to count anew. */
        assert_int_equal(fault_init("data-write:1:error:28", NULL), 0);
        assert_false(fault_fired());
        assert_int_equal(fault_point(FAULT_DATA_WRITE), ENOSPC);
}

static void test_every_passage_and_lists(void **state) {
        assert_int_equal(fault_init("data-sync:0:error:28,commit-rename:2:error:5", NULL), 0);
        for (int i = 0; i < 3; i++)
                assert_int_equal(fault_point(FAULT_DATA_SYNC), ENOSPC);
        assert_int_equal(fault_point(FAULT_COMMIT_RENAME), 0);
        assert_int_equal(fault_point(FAULT_COMMIT_RENAME), EIO);
}

static void test_every_point_has_its_name(void **state) {
        char specification[64];
        for (int i = 0; i < FAULT_COUNT; i++) {
                enum fault point = (enum fault) i;
                (void) snprintf(specification, sizeof specification, "%s:1:error",
                                fault_name(point));
                assert_int_equal(fault_init(specification, NULL), 0);
                assert_int_equal(fault_point(point), EIO);
        }
        assert_string_equal(fault_name(FAULT_COMMIT_PARENT_SYNC), "commit-parent-sync");
        assert_string_equal(fault_name(FAULT_COUNT), "unknown");
}

static void test_refused_specifications(void **state) {
        static const char *const wrong[] = {
                "nothing:1:error",
                "data-write",
                "data-write:1",
                "data-write::error",
                "data-write:x:error",
                "data-write:-1:error",
                "data-write:99999999999999999999:error",
                "data-write:1:explode",
                "data-write:1:error:",
                "data-write:1:error:EIO",
                "data-write:1:error:0",
                "data-write:1:error:5000",
                "data-write:1:error:5:6",
                "data-write:1:crash:1",
                "data-write:1:stop:1",
                "data-write:1:delay",
                "data-write:1:delay:",
                "data-write:1:error,",
                ",data-write:1:error",
                "data-write:1:error,nothing:1:error",
                "data-write :1:error",
        };
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                assert_int_equal(fault_init(wrong[i], &e), CAIRN_ERR_API);
                assert_true(strlen(e.message) > 20);
                assert_int_equal(status_exit_code(e.status), 64);
                assert_false(fault_enabled);
                assert_int_equal(fault_point(FAULT_DATA_WRITE), 0);
        }
}

static void test_too_many(void **state) {
        char specification[33 * 32] = "";
        size_t used = 0;
        for (int i = 0; i < 33; i++)
                used += (size_t) snprintf(specification + used, sizeof specification - used,
                                          "%sdata-write:%d:error", i ? "," : "", i);
        assert_int_equal(fault_init(specification, NULL), CAIRN_ERR_API);
        *strrchr(specification, ',') = '\0';
        assert_int_equal(fault_init(specification, NULL), 0);
}

static void pass_point(void *argument) {
        (void) fault_point(FAULT_COPY_CHUNK);
}

static void test_crash(void **state) {
        assert_int_equal(fault_init("copy-chunk:1:crash", NULL), 0);
        int status = test_in_child(pass_point, NULL);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void test_stop(void **state) {
        int status;
        assert_int_equal(fault_init("copy-chunk:1:stop", NULL), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
                _exit(fault_point(FAULT_COPY_CHUNK) == 0 ? 42 : 1);
        assert_int_equal(waitpid(child, &status, WUNTRACED), child);
        assert_true(WIFSTOPPED(status));
        assert_int_equal(kill(child, SIGCONT), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static void test_delay(void **state) {
        assert_int_equal(fault_init("copy-chunk:1:delay:30", NULL), 0);
        uint64_t begin = clock_now(&clock_system);
        assert_int_equal(fault_point(FAULT_COPY_CHUNK), 0);
        assert_true(clock_now(&clock_system) - begin >= 30 * NSEC_PER_MSEC);
        assert_true(fault_fired());
}

/* Two processes with the same environment; the file tells what fired, and whether. */
static void pass_twice(void *argument) {
        if (fault_init_environment(NULL) < 0)
                _exit(1);
        int first = fault_point(FAULT_COPY_CHUNK), second = fault_point(FAULT_COPY_CHUNK);
        _exit(first == 0 && second == EIO ? 2 : first == 0 && second == 0 ? 3 : 4);
}

static void test_once_over_all_processes(void **state) {
        char folder[200], path[256], content[64] = "";
        int folder_fd = test_folder(folder, sizeof folder);

        (void) snprintf(path, sizeof path, "%s/fired", folder);
        (void) setenv("CAIRN_FAULT", "copy-chunk:2:error,copy-chunk:1:error:28", 1);
        (void) setenv("CAIRN_FAULT_ONCE", path, 1);
        assert_int_equal(WEXITSTATUS(test_in_child(pass_twice, NULL)), 4);
        (void) unlink(path);
        (void) setenv("CAIRN_FAULT", "copy-chunk:2:error", 1);
        assert_int_equal(WEXITSTATUS(test_in_child(pass_twice, NULL)), 2);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(read(fd, content, sizeof content - 1) > 0);
        assert_memory_equal(content, "copy-chunk:2 pid ", 17);
        assert_int_equal(WEXITSTATUS(test_in_child(pass_twice, NULL)), 3);
        (void) setenv("CAIRN_FAULT", "copy-chunk:3:error", 1);
        (void) unlink(path);
        assert_int_equal(WEXITSTATUS(test_in_child(pass_twice, NULL)), 3);
        assert_int_equal(access(path, F_OK), -1);
        /* A file that cannot be made lets it fire: better than a test that passes for nothing. */
        (void) setenv("CAIRN_FAULT", "copy-chunk:2:error", 1);
        (void) setenv("CAIRN_FAULT_ONCE", "/proc/nowhere/fired", 1);
        assert_int_equal(WEXITSTATUS(test_in_child(pass_twice, NULL)), 2);
        (void) close(fd);
        (void) close(folder_fd);
}

static void read_environment(void *argument) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = fault_init_environment(&e);
        bool armed = fault_enabled;
        /* The second time changes nothing, whatever the variables say by then. */
        (void) setenv("CAIRN_FAULT", "nothing:1:error", 1);
        _exit(r < 0                                      ? status_exit_code(e.status)
              : armed && fault_init_environment(&e) == 0 ? 2
                                                         : 3);
}

static void test_environment(void **state) {
        static char long_path[8192];

        (void) unsetenv("CAIRN_FAULT_ONCE");
        (void) setenv("CAIRN_FAULT", "data-write:1:error", 1);
        assert_int_equal(WEXITSTATUS(test_in_child(read_environment, NULL)), 2);
        (void) setenv("CAIRN_FAULT", "data-write:1:explode", 1);
        assert_int_equal(WEXITSTATUS(test_in_child(read_environment, NULL)), 64);
        memset(long_path, 'a', sizeof long_path - 1);
        (void) setenv("CAIRN_FAULT_ONCE", long_path, 1);
        (void) setenv("CAIRN_FAULT", "data-write:1:error", 1);
        assert_int_equal(WEXITSTATUS(test_in_child(read_environment, NULL)), 64);
        (void) unsetenv("CAIRN_FAULT");
        (void) unsetenv("CAIRN_FAULT_ONCE");
        assert_int_equal(fault_init(NULL, NULL), 0);
        assert_int_equal(fault_init_environment(NULL), 0);
        assert_false(fault_enabled);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_off),
                cmocka_unit_test(test_nth_passage),
                cmocka_unit_test(test_every_passage_and_lists),
                cmocka_unit_test(test_every_point_has_its_name),
                cmocka_unit_test(test_refused_specifications),
                cmocka_unit_test(test_too_many),
                cmocka_unit_test(test_crash),
                cmocka_unit_test(test_stop),
                cmocka_unit_test(test_delay),
                cmocka_unit_test(test_once_over_all_processes),
                cmocka_unit_test(test_environment),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
