/* SPDX-License-Identifier: Apache-2.0
 *
 * The link to a real child: a shell script in place of cairnd tells what it was started with.
 */
#include "agent/saver_link.h"
#include "tests/test.h"
#include <sys/stat.h>

static struct loop loop;
static struct saver_link saver;
static unsigned ended;
static bool was_reaped;
static int last_status;
static char script[600];

static void on_message(void *context, const struct saver_message *m, struct wire_fds *fds) {
        (void) context;
        (void) m;
        (void) fds;
}

static void on_end(void *context, bool reaped, int wait_status) {
        (void) context;
        ended++;
        was_reaped = reaped;
        last_status = wait_status;
}

static void write_script(const char *text) {
        char folder[512];
        (void) close(test_folder(folder, sizeof folder));
        (void) snprintf(script, sizeof script, "%s/saver", folder);
        FILE *f = fopen(script, "we");
        assert_non_null(f);
        (void) fprintf(f, "#!/bin/sh\n%s\n", text);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(chmod(script, 0700), 0);
}

static void turn_until_ended(unsigned ms) {
        uint64_t until_ns = loop_now(&loop) + ms * NSEC_PER_MSEC;
        while (!ended && loop_now(&loop) < until_ns)
                assert_int_equal(loop_step(&loop, until_ns, NULL), 0);
}

static int setup(void **state) {
        (void) state;
        memset(&saver, 0, sizeof saver);
        ended = 0;
        return loop_init(&loop, &clock_system, NULL);
}

static int teardown(void **state) {
        (void) state;
        saver_link_done(&saver);
        loop_done(&loop);
        return 0;
}

static void start(void) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_int_equal(saver_link_start(&saver, &loop, script, on_message, on_end, NULL, &e), 0);
        assert_true(saver_link_running(&saver));
}

static void test_ends_by_itself(void **state) {
        (void) state;
        write_script("[ \"$1\" = --saver ] && [ -S /proc/self/fd/3 ] && exit 7; exit 1");
        start();
        turn_until_ended(5000);
        assert_int_equal(ended, 1);
        assert_true(was_reaped);
        assert_true(WIFEXITED(last_status));
        assert_int_equal(WEXITSTATUS(last_status), 7);
        struct saver_message m = {.verb = SAVER_TAKE};
        assert_int_equal(saver_link_send(&saver, &m, NULL, 0), CAIRN_ERR_PEER);
}

static void test_stop(void **state) {
        (void) state;
        write_script("exec sleep 60");
        start();
        saver_link_stop(&saver);
        assert_false(saver_link_running(&saver));
        turn_until_ended(5000);
        assert_int_equal(ended, 1);
        assert_true(was_reaped);
        assert_true(WIFSIGNALED(last_status));
        assert_int_equal(WTERMSIG(last_status), SIGKILL);
}

/* One that reads nothing: messages queue up to a limit, nothing blocks. */
static void test_full(void **state) {
        struct saver_message m = {.verb = SAVER_TAKE};
        unsigned sent = 0;
        (void) state;
        write_script("exec sleep 60");
        start();
        while (sent < 100000 && saver_link_send(&saver, &m, NULL, 0) == 0)
                sent++;
        assert_true(sent >= SAVER_LINK_OUT_MAX && sent < 100000);
}

static void test_no_program(void **state) {
        (void) state;
        (void) snprintf(script, sizeof script, "/nonexistent/cairnd");
        start();
        turn_until_ended(5000);
        assert_int_equal(WEXITSTATUS(last_status), 127);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_ends_by_itself),
                TEST(test_stop),
                TEST(test_full),
                TEST(test_no_program),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
