/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "tools/ranks.h"

static const struct ranks_environment environment = {.run = "probe",
                                                     .store = "/store",
                                                     .socket = "/socket",
                                                     .master_address = "10.0.0.1",
                                                     .address = "10.0.0.2",
                                                     .master_port = 4711,
                                                     .first_rank = 2,
                                                     .world = 4,
                                                     .node_rank = 1,
                                                     .nodes = 2,
                                                     .restart = 3};

static void reap_all(struct ranks *r) {
        while (ranks_running(r) > 0) {
                int wait_status;
                pid_t pid = waitpid(-1, &wait_status, 0);
                assert_true(pid > 0);
                assert_true(ranks_reap(r, pid, wait_status) >= 0);
        }
}

static char shell[] = "sh", flag[] = "-c"; /* execvp takes no constants */

/* Whatever a launcher above had set. */
static void test_launcher_variables(void **state) {
        static char script[] =
                "[ \"$WORLD_SIZE:$LOCAL_WORLD_SIZE:$ROLE_WORLD_SIZE:$GROUP_WORLD_SIZE:$GROUP_RANK:"
                "$NODE_RANK\" = 4:2:4:2:1:1 ] && "
                "[ \"$CAIRN_RUN:$CAIRN_RESTART_COUNT:$CAIRN_SOCKET:$CAIRN_STORE:$CAIRN_ADDRESS\" = "
                "probe:3:/socket:/store:10.0.0.2 ] && "
                "[ \"$MASTER_ADDR:$MASTER_PORT\" = 10.0.0.1:4711 ] && "
                "[ -z \"${TORCHELASTIC_USE_AGENT_STORE+set}\" ] && "
                "[ \"$RANK:$ROLE_RANK\" = \"$((LOCAL_RANK + 2)):$RANK\" ] && "
                "exit $((40 + RANK))";
        static const char *const above[] = {"RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_PORT",
                                            "TORCHELASTIC_USE_AGENT_STORE"};
        char *command[] = {shell, flag, script, NULL};
        struct ranks r;
        for (size_t i = 0; i < sizeof above / sizeof *above; i++)
                assert_int_equal(setenv(above[i], "77", 1), 0);
        assert_int_equal(ranks_spawn(&r, 2, &environment, command, NULL), 0);
        assert_int_equal(ranks_running(&r), 2);
        reap_all(&r);
        assert_int_equal(ranks_exit_status(r.all[0].wait_status), 42);
        assert_int_equal(ranks_exit_status(r.all[1].wait_status), 43);
}

/* Rank 1 fails; the others notice and end, too, and may be reaped before it. */
static void test_first_failed(void **state) {
        static char script[] = "case $LOCAL_RANK in 0) exit 69 ;; 1) exit 3 ;; 2) kill -KILL $$ ;; "
                               "*) exit 0 ;; esac";
        char *command[] = {shell, flag, script, NULL};
        static const uint32_t orders[][4] = {{0, 1, 2, 3}, {3, 2, 0, 1}, {0, 2, 1, 3}};
        static const uint32_t expected[] = {1, 2, 2};
        struct ranks r;
        int wait_status;
        for (size_t i = 0; i < 3; i++) {
                assert_int_equal(ranks_spawn(&r, 4, &environment, command, NULL), 0);
                assert_int_equal(ranks_first_failed(&r), 0);
                for (size_t k = 0; k < 4; k++) {
                        pid_t pid = r.all[orders[i][k]].pid;
                        assert_int_equal(waitpid(pid, &wait_status, 0), pid);
                        assert_int_equal(ranks_reap(&r, pid, wait_status), orders[i][k]);
                        assert_int_equal(ranks_reap(&r, pid, wait_status), -1);
                }
                assert_int_equal(ranks_first_failed(&r), expected[i]);
        }
}

/* Whom we ended ourselves tells nothing, whether it dies of the signal or answers it with 75. */
static void test_first_failed_of_some_that_were_ended(void **state) {
        static char script[] = "case $LOCAL_RANK in 0) exit 124 ;; 1) trap 'exit 75' TERM ;; esac; "
                               "sleep 100 & wait";
        char *command[] = {shell, flag, script, NULL};
        int wait_status;
        for (int killed = 0; killed < 2; killed++) {
                struct ranks r;
                assert_int_equal(ranks_spawn(&r, 3, &environment, command, NULL), 0);
                assert_int_equal(waitpid(r.all[0].pid, &wait_status, 0), r.all[0].pid);
                assert_int_equal(ranks_reap(&r, r.all[0].pid, wait_status), 0);
                (void) usleep(300000); /* the trap is set; or not: the signal ends it, too */
                if (killed)
                        assert_int_equal(kill(r.all[2].pid, SIGKILL), 0);
                ranks_signal(&r, SIGTERM);
                reap_all(&r);
                assert_int_equal(ranks_first_failed(&r), killed ? 2 : 0);
        }
}

static void test_signals_reach_the_group(void **state) {
        static char script[] = "sleep 100 & wait";
        char *command[] = {shell, flag, script, NULL};
        char text[64];
        struct ranks r;
        assert_int_equal(ranks_spawn(&r, 1, &environment, command, NULL), 0);
        ranks_signal(&r, SIGKILL);
        reap_all(&r);
        assert_int_equal(ranks_exit_status(r.all[0].wait_status), 128 + SIGKILL);
        assert_string_equal(ranks_describe(0, r.all[0].wait_status, text, sizeof text),
                            "rank 0 was killed by SIGKILL");
        ranks_clear(&r);
        assert_int_equal(ranks_reap(&r, r.all[0].pid, 0), -1); /* ended before */
}

static void test_unknown_program(void **state) {
        static char program[] = "/nonexistent/program";
        char *command[] = {program, NULL};
        struct ranks r;
        assert_int_equal(ranks_spawn(&r, 1, &environment, command, NULL), 0);
        reap_all(&r);
        assert_int_equal(ranks_exit_status(r.all[0].wait_status), 127);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_launcher_variables),
                cmocka_unit_test(test_first_failed),
                cmocka_unit_test(test_first_failed_of_some_that_were_ended),
                cmocka_unit_test(test_signals_reach_the_group),
                cmocka_unit_test(test_unknown_program),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
