/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/control.h"
#include "tests/unit/fake_agent.h"
#include <fcntl.h>
#include <sys/socket.h>

static struct control control;
static int peer;

static int set_up(void **state) {
        int pair[2];
        control_init(&control, &clock_system);
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        control.socket = pair[0];
        peer = pair[1];
        return 0;
}
static int tear_down(void **state) {
        control_done(&control);
        if (peer >= 0)
                close(peer);
        return 0;
}

static uint64_t in_ms(uint64_t ms) {
        return clock_now(&clock_system) + ms * NSEC_PER_MSEC;
}

static void say(uint64_t id, Cairn__Control__Envelope__BodyCase body, int status, const int *fds,
                size_t count) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Done done = CAIRN__CONTROL__DONE__INIT;
        Cairn__Control__StopReply stop = CAIRN__CONTROL__STOP_REPLY__INIT;
        Cairn__Control__Failure failure = CAIRN__CONTROL__FAILURE__INIT;
        e.id = id;
        if (status < 0) {
                failure.status = status;
                e.failure = &failure;
        } else if (body == CONTROL_REPLY(DONE))
                CONTROL_SET(&e, DONE, done, &done);
        else
                CONTROL_SET(&e, STOP_REPLY, stop_reply, &stop);
        assert_int_equal(wire_send(peer, &e, fds, count, in_ms(60000), NULL), 0);
}

static int call_within(uint64_t ms, struct cairn_error *e) {
        Cairn__Control__Envelope request = CAIRN__CONTROL__ENVELOPE__INIT, *reply = NULL;
        Cairn__Control__StopRequest stop = CAIRN__CONTROL__STOP_REQUEST__INIT;
        CONTROL_SET(&request, STOP_REQUEST, stop_request, &stop);
        *e = (struct cairn_error) CAIRN_ERROR_INIT;
        return control_call(&control, &request, NULL, 0, CONTROL_REPLY(STOP_REPLY), in_ms(ms),
                            &reply, NULL, e);
}
static int call(struct cairn_error *e) {
        return call_within(60000, e);
}

static void other_answers_are_passed_over(void **state) {
        struct cairn_error e;
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        say(99, CONTROL_REPLY(DONE), 0, &fd, 1); /* late: its descriptor is closed */
        say(0, CONTROL_REPLY(DONE), 0, NULL, 0);
        say(1, CONTROL_REPLY(STOP_REPLY), 0, NULL, 0);
        assert_int_equal(call(&e), 0);
        close(fd);
}

static void failures_become_errors(void **state) {
        struct cairn_error e;
        say(1, CONTROL_REPLY(STOP_REPLY), CAIRN_ERR_NOTFOUND, NULL, 0);
        assert_int_equal(call(&e), CAIRN_ERR_NOTFOUND);
        assert_int_equal(e.status, CAIRN_ERR_NOTFOUND);
        assert_true(control.socket >= 0);
}

static void another_answer_is_corrupt(void **state) {
        struct cairn_error e;
        say(1, CONTROL_REPLY(DONE), 0, NULL, 0);
        assert_int_equal(call(&e), CAIRN_ERR_CORRUPT);
        assert_int_equal(control.socket, -1);
        assert_int_equal(call(&e), CAIRN_ERR_PEER);
}

static void silence_is_a_timeout(void **state) {
        struct cairn_error e;
        assert_int_equal(call_within(300, &e), CAIRN_ERR_TIMEOUT);
        assert_true(control.socket >= 0);
        say(1, CONTROL_REPLY(STOP_REPLY), 0, NULL, 0); /* too late for the first call */
        say(2, CONTROL_REPLY(STOP_REPLY), 0, NULL, 0);
        assert_int_equal(call(&e), 0);
}

static void an_ended_peer_is_told(void **state) {
        struct cairn_error e;
        close(peer);
        peer = -1;
        assert_int_equal(call(&e), CAIRN_ERR_PEER);
        assert_int_equal(control.socket, -1);
}

static void greeting(void **state) {
        struct fake_agent agent;
        struct cairn_error e = CAIRN_ERROR_INIT;
        fake_agent_init(&agent);
        assert_int_equal(control_connect(&control, agent.path, &e), CAIRN_ERR_UNREACHABLE);
        agent.waits = 2;
        fake_agent_start(&agent);
        assert_int_equal(control_connect(&control, agent.path, &e), 0);
        assert_int_equal(control_greet(&control, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, "run",
                                       in_ms(60000), &e),
                         0);
        control_close(&control);
        fake_agent_done(&agent);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(other_answers_are_passed_over), TEST(failures_become_errors),
                TEST(another_answer_is_corrupt),     TEST(silence_is_a_timeout),
                TEST(an_ended_peer_is_told),         TEST(greeting),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
