/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/small_session.h"
#include <sys/stat.h>
#include <sys/wait.h>

static struct fake_agent agent;

static int set_up(void **state) {
        unsetenv("RANK");
        unsetenv("SLURM_PROCID");
        unsetenv("CAIRN_RUN");
        unsetenv("CAIRN_SOCKET");
        fake_agent_init(&agent);
        return 0;
}
static int tear_down(void **state) {
        fake_agent_done(&agent);
        return 0;
}

static struct cairn_options options(void) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        o.run = "run";
        o.socket = agent.path;
        o.open_timeout_ns = 2000000000;
        return o;
}

static void expect_failure(const struct cairn_options *o, int status, int exit_code,
                           const char *text) {
        struct cairn *c = NULL;
        assert_int_equal(cairn_open(o, &c), status);
        assert_non_null(c);
        assert_int_equal(cairn_exit_code(c), exit_code);
        if (!strstr(cairn_error_text(c), text))
                print_error("%s\n", cairn_error_text(c));
        assert_non_null(strstr(cairn_error_text(c), text));
        assert_int_equal(cairn_update_begin(c), CAIRN_ERR_API);
        assert_int_equal(cairn_seal(c), CAIRN_ERR_API);
        assert_false(cairn_should_stop(c));
        cairn_close(c);
}

static void no_agent_is_69_and_says_what_to_do(void **state) {
        struct cairn_options o = options();
        expect_failure(&o, CAIRN_ERR_UNREACHABLE, 69, "cairn run");
}

static void a_wrong_fault_point_is_told(void **state) {
        struct cairn_options o = options();
        (void) setenv("CAIRN_FAULT", "no-such-point:1:crash", 1);
        expect_failure(&o, CAIRN_ERR_API, 64, "no such fault point");
        (void) unsetenv("CAIRN_FAULT");
}

static void no_run_is_named(void **state) {
        struct cairn_options o = options();
        o.run = NULL;
        expect_failure(&o, CAIRN_ERR_API, 64, "CAIRN_RUN");
        o.run = "../escape";
        expect_failure(&o, CAIRN_ERR_API, 64, "");
}

static void the_launchers_variables_are_read(void **state) {
        struct cairn_session s = {.size = sizeof s};
        struct cairn_options o = options();
        struct cairn *c;
        o.run = NULL;
        setenv("CAIRN_RUN", "from-launcher", 1);
        setenv("RANK", "3", 1);
        agent.world = 4;
        agent.restart = 2;
        agent.every_steps = 50;
        fake_agent_start(&agent);
        assert_int_equal(cairn_open(&o, &c), 0);
        assert_int_equal(cairn_session(c, &s), 0);
        assert_string_equal(s.run, "from-launcher");
        assert_string_equal(s.run_dir, "/store/run");
        assert_string_equal(s.checkpoint, "");
        assert_int_equal(s.checkpoint_step, -1);
        assert_int_equal(s.rank, 3);
        assert_int_equal(s.world, 4);
        assert_int_equal(s.restart, 2);
        assert_int_equal(s.every_steps, 50);
        assert_int_equal(s.start, CAIRN_START_FRESH);
        cairn_close(c);
        setenv("RANK", "4x", 1);
        expect_failure(&o, CAIRN_ERR_API, 64, "RANK");
        setenv("RANK", "9", 1);
        fake_agent_forget(&agent);
        expect_failure(&o, CAIRN_ERR_MISMATCH, 78, "world of 4");
}

static void a_rank_that_waits_is_told_why(void **state) {
        struct cairn_options o = options();
        struct cairn *c;
        agent.waits = 3;
        fake_agent_start(&agent);
        assert_int_equal(cairn_open(&o, &c), 0);
        assert_true(agent.pidfd_seen);
        cairn_close(c);
        fake_agent_forget(&agent);
        agent.wait_for_ever = true;
        o.open_timeout_ns = 2 * NSEC_PER_SEC;
        expect_failure(&o, CAIRN_ERR_TIMEOUT, 124, "the predecessor is being written");
}

static void a_fenced_rank_is_refused(void **state) {
        struct cairn_options o = options();
        agent.hello_status = CAIRN_ERR_STALE;
        fake_agent_start(&agent);
        expect_failure(&o, CAIRN_ERR_STALE, status_exit_code(CAIRN_ERR_STALE),
                       "refused by the fake agent");
}

static void an_agent_that_is_restarting_is_waited_for(void **state) {
        struct cairn_options o = options();
        struct cairn *c;
        /* The socket is there, but nobody listens yet. */
        fake_agent_start(&agent);
        fake_agent_stop(&agent);
        pid_t child = fork();
        if (child == 0) {
                clock_system.sleep_ns(clock_system.context, 100 * NSEC_PER_MSEC);
                fake_agent_start(&agent);
                for (;;)
                        (void) pause();
        }
        assert_int_equal(cairn_open(&o, &c), 0);
        cairn_close(c);
        (void) kill(child, SIGKILL);
        (void) waitpid(child, NULL, 0);
}

static void without_checkpoints_everything_is_a_no_op(void **state) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        struct cairn_report report = {.size = sizeof report};
        struct small_session s;
        cairn_ticket ticket;
        o.without_checkpoints = true;
        small_init(&s);
        assert_int_equal(cairn_open(&o, &s.c), 0);
        small_declare(&s);
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, &report), 0);
        assert_int_equal(report.step, 0);
        assert_non_null(strstr(report.text, "without checkpoints"));
        small_update(&s, 1);
        assert_true(*s.step == 1.0f);
        assert_false(cairn_should_stop(s.c));
        assert_int_equal(cairn_snapshot(s.c, &ticket), CAIRN_ERR_UNREACHABLE);
        assert_int_equal(cairn_finish(s.c, "done"), 0);
        cairn_close(s.c);
}

static void a_forked_child_is_refused(void **state) {
        struct small_session s;
        fake_agent_start(&agent);
        small_init(&s);
        small_begin(&s, &agent);
        pid_t child = fork();
        if (child == 0) {
                bool good = cairn_update_begin(s.c) == CAIRN_ERR_API &&
                            strstr(cairn_error_text(s.c), "forked child") != NULL &&
                            cairn_snapshot(s.c, NULL) == CAIRN_ERR_API && !cairn_should_stop(s.c);
                cairn_close(s.c);
                _exit(good ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        small_update(&s, 1);
        cairn_close(s.c);
}

static void options_of_other_sizes(void **state) {
        struct cairn_options o;
        cairn_options_init(&o, sizeof o);
        assert_int_equal(o.size, sizeof o);
        assert_int_equal(o.rank, -1);
        cairn_options_init(NULL, 8);
        assert_int_equal(cairn_open(NULL, NULL), CAIRN_ERR_API);
        cairn_close(NULL);
        /* Zeroed, it would mean rank 0 of no run, or be passed over. */
        struct cairn *c;
        o = (struct cairn_options){0};
        assert_int_equal(cairn_open(&o, &c), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(c), "CAIRN_OPTIONS_INIT"));
        assert_int_equal(cairn_exit_code(c), 64);
        cairn_close(c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(no_agent_is_69_and_says_what_to_do),
                TEST(a_wrong_fault_point_is_told),
                TEST(no_run_is_named),
                TEST(the_launchers_variables_are_read),
                TEST(a_rank_that_waits_is_told_why),
                TEST(a_fenced_rank_is_refused),
                TEST(an_agent_that_is_restarting_is_waited_for),
                TEST(without_checkpoints_everything_is_a_no_op),
                TEST(a_forked_child_is_refused),
                TEST(options_of_other_sizes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
