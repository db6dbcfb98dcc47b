/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/server.h"
#include "base/log.h"
#include "tests/test.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define TOOL CAIRN__CONTROL__PEER_KIND__PEER_TOOL

static struct loop loop;
static struct server server;
static struct arena arena;
static char folder[512], path[600];
static unsigned calls, closed;
static size_t flood; /* answers a request is given */

static int hello(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                 struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        (void) context;
        (void) fds;
        (void) reterr;
        server_done_reply(&to);
        return 0;
}

static int status(void *context, struct connection *c, const Cairn__Control__Envelope *e,
                  struct wire_fds *fds, struct cairn_error *reterr) {
        struct reply_to to = server_later(c, e->id);
        static uint8_t text[64 * 1024];
        (void) context;
        (void) fds;
        calls++;
        if (e->status_request->run.len)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "find run", "x", "no such run");
        for (size_t i = 0; i < flood; i++) {
                Cairn__Control__Envelope reply = CAIRN__CONTROL__ENVELOPE__INIT;
                Cairn__Control__StatusReply m = CAIRN__CONTROL__STATUS_REPLY__INIT;
                m.json = (ProtobufCBinaryData){sizeof text, text};
                m.more = i + 1 < flood;
                reply.body_case = BODY(STATUS_REPLY);
                reply.status_reply = &m;
                server_reply(&to, &reply, NULL, 0);
        }
        return 0;
}

static void on_closed(void *context, struct connection *c) {
        (void) context;
        (void) c;
        closed++;
}

static const struct server_row rows[] = {
        {BODY(HELLO), 1u << TOOL | 1u << CAIRN__CONTROL__PEER_KIND__PEER_CLIENT, hello},
        {BODY(STATUS_REQUEST), 1u << TOOL, status},
};

static int setup(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        (void) state;
        (void) close(test_folder(folder, sizeof folder));
        (void) snprintf(path, sizeof path, "%s/private/agent.sock", folder);
        log_init("test", LOG_LEVEL_ERROR);
        arena_init(&arena, 4 * MiB);
        calls = closed = 0;
        flood = 1;
        assert_int_equal(loop_init(&loop, &clock_system, &e), 0);
        struct server_options o = {.socket_path = path,
                                   .group_id = (gid_t) -1,
                                   .rows = rows,
                                   .row_count = 2,
                                   .closed = on_closed};
        assert_int_equal(server_init(&server, &loop, &o, &e), 0);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        server_done(&server);
        loop_done(&loop);
        arena_done(&arena);
        return 0;
}

static void turn(unsigned ms) {
        /* A pause of the machine is one turn: what takes several has them all the same. */
        unsigned turns = ms < 20 ? ms : 20;
        for (unsigned i = 0; i < turns; i++) {
                uint64_t until_ns = loop_now(&loop) + ms * NSEC_PER_MSEC / turns;
                do
                        assert_int_equal(loop_step(&loop, until_ns, NULL), 0);
                while (loop_now(&loop) < until_ns);
        }
}

static Cairn__Control__Envelope *receive(int fd, int *ret) {
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e = NULL;
        arena_clear(&arena);
        for (int i = 0; i < 2000; i++) {
                *ret = wire_receive(fd, &arena, &e, &fds, 0, NULL);
                if (*ret != CAIRN_ERR_BUSY)
                        break;
                turn(1);
        }
        wire_fds_done(&fds);
        return *ret == 0 ? e : NULL;
}

static int connected(void) {
        int fd;
        assert_int_equal(wire_connect(path, &fd, NULL), 0);
        return fd;
}

static void say_hello(int fd, uint32_t protocol, int kind) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
        h.protocol = protocol;
        h.kind = kind;
        h.features = UINT64_MAX; /* of a newer side: what we do not know is not used */
        e.id = 1;
        e.body_case = BODY(HELLO);
        e.hello = &h;
        assert_int_equal(wire_send(fd, &e, NULL, 0, 0, NULL), 0);
}

static void ask_status(int fd, const char *run) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__StatusRequest m = CAIRN__CONTROL__STATUS_REQUEST__INIT;
        m.run = (ProtobufCBinaryData){strlen(run), (uint8_t *) run};
        e.id = 7;
        e.body_case = BODY(STATUS_REQUEST);
        e.status_request = &m;
        assert_int_equal(wire_send(fd, &e, NULL, 0, 0, NULL), 0);
}

static void test_conversation(void **state) {
        int fd = connected(), r;
        (void) state;
        say_hello(fd, WIRE_PROTOCOL, TOOL);
        assert_int_equal(receive(fd, &r)->body_case, BODY(DONE));
        ask_status(fd, "");
        const Cairn__Control__Envelope *e = receive(fd, &r);
        assert_int_equal(e->id, 7);
        assert_int_equal(e->body_case, BODY(STATUS_REPLY));
        ask_status(fd, "unknown");
        e = receive(fd, &r);
        assert_int_equal(e->failure->status, CAIRN_ERR_NOTFOUND);
        say_hello(fd, WIRE_PROTOCOL, TOOL); /* twice is refused, the connection stays */
        assert_int_equal(receive(fd, &r)->failure->status, CAIRN_ERR_API);
        ask_status(fd, "");
        assert_non_null(receive(fd, &r));
        (void) close(fd);
        turn(20);
        assert_int_equal(closed, 1);
}

static void test_refusals(void **state) {
        int r, fd = connected();
        (void) state;
        say_hello(fd, WIRE_PROTOCOL + 1, TOOL); /* another protocol: a sentence, then the end */
        const Cairn__Control__Envelope *e = receive(fd, &r);
        assert_int_equal(e->failure->status, CAIRN_ERR_UNSUPPORTED);
        assert_null(receive(fd, &r));
        assert_int_equal(r, CAIRN_ERR_PEER);
        (void) close(fd);
        fd = connected();
        ask_status(fd, ""); /* before Hello */
        assert_int_equal(receive(fd, &r)->failure->status, CAIRN_ERR_API);
        assert_null(receive(fd, &r));
        (void) close(fd);
        fd = connected();
        say_hello(fd, WIRE_PROTOCOL, CAIRN__CONTROL__PEER_KIND__PEER_CLIENT);
        assert_non_null(receive(fd, &r));
        ask_status(fd, ""); /* not of this kind of peer */
        assert_int_equal(receive(fd, &r)->failure->status, CAIRN_ERR_PERMISSION);
        assert_int_equal(calls, 0);
        (void) close(fd);
}

static void test_garbage(void **state) {
        int r, fd = connected(), good = connected();
        (void) state;
        assert_int_equal(send(fd, "nonsense", 8, 0), 8);
        assert_null(receive(fd, &r));
        assert_int_equal(r, CAIRN_ERR_PEER);
        say_hello(good, WIRE_PROTOCOL, TOOL); /* the others are served */
        assert_non_null(receive(good, &r));
        (void) close(fd);
        (void) close(good);
}

/* A peer that does not read: its answers wait, and when too many do it is dropped. */
static void test_queue(void **state) {
        int r, fd = connected();
        size_t got = 0;
        (void) state;
        say_hello(fd, WIRE_PROTOCOL, TOOL);
        assert_non_null(receive(fd, &r));
        flood = 30;
        ask_status(fd, "");
        turn(20);
        assert_false(server_idle(&server));
        for (const Cairn__Control__Envelope *e; (e = receive(fd, &r));) {
                got++;
                if (!e->status_reply->more)
                        break;
        }
        assert_int_equal(got, 30);
        assert_true(server_idle(&server));
        flood = 300;
        ask_status(fd, "");
        turn(20);
        assert_int_equal(closed, 1);
        (void) close(fd);
}

/* Nobody keeps the others out: the oldest connection that does no work makes room, others stay. */
static void test_limit(void **state) {
        int fds[CONNECTION_COUNT_MAX + 2], r;
        (void) state;
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++) {
                fds[i] = connected();
                turn(1);
        }
        server.connections[0].run = (struct run *) folder; /* only compared with NULL */
        for (size_t i = CONNECTION_COUNT_MAX; i < CONNECTION_COUNT_MAX + 2; i++) {
                fds[i] = connected();
                say_hello(fds[i], WIRE_PROTOCOL, TOOL);
                assert_non_null(receive(fds[i], &r));
        }
        assert_int_equal(closed, 2);
        for (size_t i = 1; i <= 2; i++) {
                assert_null(receive(fds[i], &r));
                assert_int_equal(r, CAIRN_ERR_PEER);
        }
        say_hello(fds[0], WIRE_PROTOCOL, TOOL);
        assert_non_null(receive(fds[0], &r));
        say_hello(fds[3], WIRE_PROTOCOL, TOOL);
        assert_non_null(receive(fds[3], &r));
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++) /* all at work: the next one is refused */
                server.connections[i].run = (struct run *) folder;
        int late = connected();
        assert_null(receive(late, &r));
        assert_int_equal(r, CAIRN_ERR_PEER);
        (void) close(late);
        for (size_t i = 0; i < CONNECTION_COUNT_MAX + 2; i++)
                (void) close(fds[i]);
}

/* Who has most connections loses one, not who came first. */
static void test_fairness(void **state) {
        int fds[CONNECTION_COUNT_MAX + 1], r;
        (void) state;
        for (size_t i = 0; i < CONNECTION_COUNT_MAX; i++) {
                fds[i] = connected();
                turn(1);
                server.connections[i].uid = i < CONNECTION_COUNT_MAX / 2 - 1 ? 1000 : 1001;
        }
        fds[CONNECTION_COUNT_MAX] = connected();
        say_hello(fds[CONNECTION_COUNT_MAX], WIRE_PROTOCOL, TOOL);
        assert_non_null(receive(fds[CONNECTION_COUNT_MAX], &r));
        assert_null(receive(fds[CONNECTION_COUNT_MAX / 2 - 1], &r));
        assert_int_equal(r, CAIRN_ERR_PEER);
        say_hello(fds[0], WIRE_PROTOCOL, TOOL);
        assert_non_null(receive(fds[0], &r));
        for (size_t i = 0; i < CONNECTION_COUNT_MAX + 1; i++)
                (void) close(fds[i]);
}

static void test_socket_file(void **state) {
        struct server second;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct stat st;
        (void) state;
        char private[560];
        (void) snprintf(private, sizeof private, "%s/private", folder);
        assert_int_equal(stat(private, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        /* Somebody answers: refused. */
        struct server_options o = {.socket_path = path, .group_id = (gid_t) -1};
        assert_int_equal(server_init(&second, &loop, &o, &e), CAIRN_ERR_EXISTS);
        assert_true(strlen(e.message) > 0);
        second.listen_fd = -1;
        server_done(&second);
        assert_int_equal(stat(path, &st), 0);
        /* Left by one that died: replaced. */
        loop_unwatch(&loop, &server.listen_source);
        (void) close(server.listen_fd);
        server.listen_fd = -1;
        assert_int_equal(server_init(&second, &loop, &o, &e), 0);
        server_done(&second);
        assert_int_not_equal(stat(path, &st), 0);
        /* Something else lies there: left alone. */
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        (void) fclose(file);
        assert_int_equal(server_init(&second, &loop, &o, &e), CAIRN_ERR_EXISTS);
        server_done(&second);
        assert_int_equal(stat(path, &st), 0);
        /* A folder where everybody writes. */
        assert_int_equal(chmod(private, 0777), 0);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(server_init(&second, &loop, &o, &e), CAIRN_ERR_PERMISSION);
        server_done(&second);
}

static void test_file_removed(void **state) {
        struct stat before, after;
        char private[600];
        (void) state;
        int fd = connected();
        assert_int_equal(lstat(path, &before), 0);
        (void) snprintf(private, sizeof private, "%s/private", folder);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(rmdir(private), 0);
        turn(1500);
        assert_int_equal(lstat(path, &after), 0); /* made again, and somebody listens */
        int second = connected();
        (void) close(second);
        (void) close(fd);
        /* Another agent's file is left alone at the end. */
        assert_int_equal(unlink(path), 0);
        int other = open(path, O_CREAT | O_WRONLY, 0600);
        assert_true(other >= 0);
        (void) close(other);
        server_close_listener(&server);
        assert_int_equal(lstat(path, &after), 0);
        assert_true(S_ISREG(after.st_mode));
}

/* Without descriptors nobody can be accepted; the loop must not turn in vain, and goes on as soon
 * as there are some. */
static void test_no_descriptors(void **state) {
        struct rlimit limit, none;
        int status;
        (void) state;
        int fd = connected(); /* waits to be accepted */
        say_hello(fd, WIRE_PROTOCOL, TOOL);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        none = limit;
        none.rlim_cur = (rlim_t) dup(fd); /* the lowest number that is free */
        (void) close((int) none.rlim_cur);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        unsigned turns = 0;
        uint64_t until_ns = loop_now(&loop) + 300 * NSEC_PER_MSEC;
        for (; loop_now(&loop) < until_ns; turns++)
                assert_int_equal(loop_step(&loop, until_ns, NULL), 0);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_true(server.accept_failed);
        assert_true(turns < 10);
        const Cairn__Control__Envelope *e = receive(fd, &status);
        assert_int_equal(status, 0);
        assert_int_equal(e->body_case, BODY(DONE));
        assert_false(server.accept_failed);
        (void) close(fd);
}

/* A request whose descriptors found no room is answered with why, not by a hang-up. */
static void test_no_room_for_a_request(void **state) {
        struct rlimit limit, none;
        int status;
        (void) state;
        int fd = connected();
        say_hello(fd, WIRE_PROTOCOL, TOOL);
        assert_non_null(receive(fd, &status));
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__StatusRequest m = CAIRN__CONTROL__STATUS_REQUEST__INIT;
        e.id = 7;
        e.body_case = BODY(STATUS_REQUEST);
        e.status_request = &m;
        assert_int_equal(wire_send(fd, &e, (int[]){0, 1}, 2, 0, NULL), 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        none = limit;
        none.rlim_cur = (rlim_t) dup(fd);
        (void) close((int) none.rlim_cur);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        turn(50);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        const Cairn__Control__Envelope *reply = receive(fd, &status);
        assert_non_null(reply);
        assert_int_equal(reply->id, 7);
        assert_int_equal(reply->failure->status, CAIRN_ERR_NOMEM);
        assert_int_equal(calls, 0);
        assert_null(receive(fd, &status)); /* and that was the last word */
        assert_int_equal(status, CAIRN_ERR_PEER);
        (void) close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(test_conversation),   TEST(test_refusals),
                TEST(test_garbage),        TEST(test_queue),
                TEST(test_limit),          TEST(test_fairness),
                TEST(test_socket_file),    TEST(test_file_removed),
                TEST(test_no_descriptors), TEST(test_no_room_for_a_request),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
