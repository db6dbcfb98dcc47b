/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/agent.h"
#include "tests/test.h"

static const int watched[] = {SIGTERM, SIGINT, SIGHUP};

/* Fails to make its socket; exits with how many signals could have ended it by then. */
static void start_without_a_socket(void *socket) {
        static struct agent agent;
        struct config config;
        struct cairn_error e = CAIRN_ERROR_INIT;
        sigset_t blocked;
        int deadly = 0;

        (void) signal(SIGHUP, SIG_DFL); /* nohup's would stay ignored */
        config_init(&config);
        (void) snprintf(config.socket, sizeof config.socket, "%s", (const char *) socket);
        if (agent_init(&agent, &config, NULL, "none", &e) != CAIRN_ERR_EXISTS)
                _exit(77);
        (void) sigprocmask(SIG_BLOCK, NULL, &blocked);
        for (size_t i = 0; i < sizeof watched / sizeof *watched; i++)
                deadly += sigismember(&blocked, watched[i]) != 1;
        _exit(deadly);
}

/* Whoever sees the socket may ask for the end at once. */
static void test_signals_are_watched_before_the_socket_is_there(void **state) {
        char folder[200], path[256];

        (void) close(test_folder(folder, sizeof folder));
        (void) snprintf(path, sizeof path, "%s/agent.sock", folder);
        int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600); /* in its way */
        assert_true(fd >= 0);
        (void) close(fd);
        assert_int_equal(test_in_child(start_without_a_socket, path), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_signals_are_watched_before_the_socket_is_there),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
