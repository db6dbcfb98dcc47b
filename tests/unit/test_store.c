/* SPDX-License-Identifier: Apache-2.0
 *
 * The store process by itself: what store_link's tests, which see it through its other end, do not.
 */
#include "tests/unit/store_fixture.h"

#include <sys/socket.h>

static pid_t begin(const char *path, int *ret_socket) {
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                (void) close(pair[0]);
                _exit(store_main(pair[1], path));
        }
        (void) close(pair[1]);
        *ret_socket = pair[0];
        return pid;
}

static int end(pid_t pid, int socket) {
        int status;
        (void) close(socket);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static int ask(int socket, struct store_message *m) {
        static uint64_t id;
        m->id = ++id;
        assert_int_equal(send(socket, m, sizeof *m, 0), sizeof *m);
        assert_int_equal(recv(socket, m, sizeof *m, 0), sizeof *m);
        assert_int_equal(m->id, id);
        return m->status;
}

static int start(int socket, struct fixture *f, const char *run) {
        struct store_message m = {.verb = STORE_START};
        m.start = *fixture_request(f, START_FRESH);
        (void) snprintf(m.start.run, sizeof m.start.run, "%s", run);
        return ask(socket, &m);
}

static void test_ends_with_its_agent(void **state) {
        struct fixture *f = fixture_new();
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

static void test_a_broken_request_ends_it(void **state) {
        struct fixture *f = fixture_new();
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(send(socket, "short", 5, 0), 5);
        assert_int_equal(end(pid, socket), status_exit_code(CAIRN_ERR_PEER));
        fixture_free(f);
}

static void test_a_wrong_fault_point_is_told(void **state) {
        struct fixture *f = fixture_new();
        int socket;

        (void) setenv("CAIRN_FAULT", "no-such-point:1:crash", 1);
        pid_t pid = begin(f->path, &socket);
        (void) unsetenv("CAIRN_FAULT");
        assert_int_equal(end(pid, socket), status_exit_code(CAIRN_ERR_API));
        fixture_free(f);
}

static void test_a_table_of_runs(void **state) {
        struct fixture *f = fixture_new();
        char run[32];
        int socket;
        pid_t pid = begin(f->path, &socket);

        for (int i = 0; i < 16; i++) {
                (void) snprintf(run, sizeof run, "run%d", i);
                assert_int_equal(start(socket, f, run), 0);
        }
        assert_int_equal(start(socket, f, "run16"), CAIRN_ERR_NOMEM);
        assert_int_equal(start(socket, f, "run3"), CAIRN_ERR_NOMEM); /* it is running, besides */
        struct store_message m = {.verb = STORE_END_RUN, .run = "run7"};
        assert_int_equal(ask(socket, &m), 0);
        assert_int_equal(start(socket, f, "run3"), CAIRN_ERR_EXISTS);
        assert_int_equal(start(socket, f, "run16"), 0);
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

static void test_more_attempts_than_it_keeps_open(void **state) {
        struct fixture *f = fixture_new();
        struct store_message m = {0};
        int socket;
        pid_t pid = begin(f->path, &socket);

        assert_int_equal(start(socket, f, "run"), 0);
        for (uint32_t i = 1; i <= 20; i++) {
                m = (struct store_message){.verb = STORE_ATTEMPT_OPEN,
                                           .run = "run",
                                           .generation = 1,
                                           .world = 2,
                                           .attempt = i};
                assert_int_equal(ask(socket, &m), 0);
        }
        for (uint32_t i = 1; i <= 20; i++) {
                m = (struct store_message){.verb = STORE_DISCARD,
                                           .run = "run",
                                           .generation = 1,
                                           .world = 2,
                                           .attempt = i};
                assert_int_equal(ask(socket, &m), 0);
        }
        m.verb = STORE_ATTEMPT_OPEN;
        m.count = 9;
        assert_int_equal(ask(socket, &m), CAIRN_ERR_API);
        assert_false(fixture_has(f, ".pending-g0001-a000001"));
        assert_int_equal(end(pid, socket), 0);
        fixture_free(f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ends_with_its_agent),
                cmocka_unit_test(test_a_broken_request_ends_it),
                cmocka_unit_test(test_a_wrong_fault_point_is_told),
                cmocka_unit_test(test_a_table_of_runs),
                cmocka_unit_test(test_more_attempts_than_it_keeps_open),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
