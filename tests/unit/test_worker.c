/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/worker.h"
#include "base/limits.h"
#include "tests/test.h"

#include <errno.h>
#include <poll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>

/* Children that echo, without exec. */
struct echoes {
        pid_t last;
        bool broken;
};

static int spawn(void *context, const char *object, int *ret_socket, int *ret_pidfd,
                 struct cairn_error *reterr) {
        struct echoes *echoes = context;
        int pair[2];

        if (echoes->broken)
                return error_set_errno(reterr, EAGAIN, "start echo", object);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                char byte;
                (void) close(pair[0]);
                while (recv(pair[1], &byte, 1, 0) == 1)
                        (void) send(pair[1], &byte, 1, 0);
                _exit(0);
        }
        (void) close(pair[1]);
        echoes->last = pid;
        *ret_socket = pair[0];
        *ret_pidfd = pidfd_open(pid, 0);
        return 0;
}

static bool ready(const struct worker *w, int timeout_ms) {
        struct pollfd p = {.fd = w->epoll_fd, .events = POLLIN};
        return poll(&p, 1, timeout_ms) == 1;
}

static void answers_are_events(void **state) {
        struct echoes echoes = {0};
        struct worker w = {0};
        char byte = 'x';

        assert_int_equal(worker_init(&w, "echo process", "object", NULL), 0);
        assert_int_equal(worker_begin(&w, spawn, &echoes, NULL), 0);
        assert_false(ready(&w, 0));
        assert_int_equal(send(w.socket, &byte, 1, MSG_NOSIGNAL), 1);
        assert_true(ready(&w, 10000));
        worker_heard(&w);
        assert_int_equal(recv(w.socket, &byte, 1, MSG_DONTWAIT), 1);
        worker_done(&w);
        worker_done(&w);
        (void) waitpid(echoes.last, NULL, 0); /* unless it was reaped at once */
}

static void wakes_at_its_time(void **state) {
        struct worker w = {0};

        assert_int_equal(worker_init(&w, "echo process", "object", NULL), 0);
        assert_false(ready(&w, 0));
        worker_wake(&w, 0);
        assert_true(ready(&w, 10000));
        worker_heard(&w);
        assert_false(ready(&w, 0));
        uint64_t at = clock_now(&clock_system) + 20 * NSEC_PER_MSEC;
        worker_wake(&w, at);
        assert_true(ready(&w, 10000));
        assert_true(clock_now(&clock_system) >= at);
        worker_done(&w);
}

static void ended_ones_are_reaped(void **state) {
        struct echoes echoes = {0};
        struct worker w = {0};

        assert_int_equal(worker_init(&w, "echo process", "object", NULL), 0);
        for (int i = 0; i < 3 * WORKER_LOST_MAX; i++) {
                assert_int_equal(worker_begin(&w, spawn, &echoes, NULL), 0);
                uint64_t before = clock_now(&clock_system);
                w.answered = i % 2;
                worker_end(&w);
                assert_int_equal(w.socket, -1);
                /* Not at once again after one that never answered. */
                assert_true(w.answered ? w.respawn_ns == 0 : w.respawn_ns > before);
                while (w.lost_count > 0) {
                        assert_true(ready(&w, 10000));
                        worker_heard(&w);
                }
                assert_int_equal(waitpid(echoes.last, NULL, WNOHANG), -1);
        }
        worker_end(&w); /* nothing to end */
        worker_done(&w);
}

static void failing_to_start_waits(void **state) {
        struct echoes echoes = {.broken = true};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct worker w = {0};

        assert_int_equal(worker_init(&w, "echo process", "object", NULL), 0);
        uint64_t before = clock_now(&clock_system);
        assert_true(worker_begin(&w, spawn, &echoes, &e) < 0);
        assert_string_equal(e.object, "object");
        assert_true(w.respawn_ns > before);
        assert_int_equal(w.pidfd, -1);
        worker_done(&w);
}

/* The role of an argument is this binary's own business: here it is none of cmocka's. */
static void the_same_binary_gets_the_socket(void **state) {
        const char *const arguments[] = {"worker", "--echo", NULL};
        int socket = -1, pidfd = -1;
        char byte = 'y';

        assert_int_equal(
                worker_spawn_self(arguments, "echo process", "object", &socket, &pidfd, NULL), 0);
        assert_int_equal(send(socket, &byte, 1, MSG_NOSIGNAL), 1);
        struct pollfd p = {.fd = socket, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 10000), 1);
        assert_int_equal(recv(socket, &byte, 1, 0), 1);
        assert_int_equal(byte, 'y');
        (void) close(socket);
        siginfo_t info;
        assert_int_equal(waitid(P_PIDFD, (id_t) pidfd, &info, WEXITED), 0);
        assert_int_equal(info.si_status, 0);
        (void) close(pidfd);
}

int main(int argc, char **argv) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(answers_are_events),
                cmocka_unit_test(wakes_at_its_time),
                cmocka_unit_test(ended_ones_are_reaped),
                cmocka_unit_test(failing_to_start_waits),
                cmocka_unit_test(the_same_binary_gets_the_socket),
        };
        if (argc == 2 && strcmp(argv[1], "--echo") == 0) {
                char byte;
                while (recv(WORKER_SOCKET_FD, &byte, 1, 0) == 1)
                        (void) send(WORKER_SOCKET_FD, &byte, 1, 0);
                return 0;
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
