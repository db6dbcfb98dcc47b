/* SPDX-License-Identifier: Apache-2.0
 *
 * Two agents' ends of a connection in one loop, directly or through a relay that the test holds in
 * its hands: it may stop, flip a bit or speak itself. Time is real time plus what the test adds.
 */
#include "agent/peer.h"
#include "base/bytes.h"
#include "tests/test.h"
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#define BODY(name) CAIRN__PEER__PEER_ENVELOPE__BODY_##name

static uint64_t added_ns;

static uint64_t test_now(void *context) {
        (void) context;
        return clock_now(&clock_system) + added_ns;
}

struct side {
        struct peer_link *link;
        unsigned opened, received, closed;
        uint64_t attempts; /* sum of what Open said */
        size_t bytes;      /* of the last tag of a Demand */
        struct cairn_error why;
        int refuse; /* status of identify */
        bool free_on_receive;
        uint8_t secret;
};
static struct clock_ops test_clock;
static struct loop loop;
static struct peer_listener listener;
static struct side acceptor, connector;
static struct {                 /* between the two */
        int listen_fd, in, out; /* in: the connector's, out: the acceptor's */
        uint16_t port;
        bool paused;
        uint64_t passed, flip_at; /* byte of the connector's that is flipped; 0: none */
} relay;

static int identify(void *context, const char *run, uint64_t generation, const char *node,
                    struct peer_identity *ret, struct cairn_error *reterr) {
        struct side *s = context;
        if (strcmp(run, "demo") != 0 || generation != 3 || strcmp(node, "node-b") != 0)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "join group", run, "nobody we know");
        if (s->refuse)
                return error_set(reterr, s->refuse, "join group", run, "restart 4 took over");
        *ret = (struct peer_identity){.run = "demo", .generation = 3, .node = "node-a"};
        memset(ret->secret, s->secret, sizeof ret->secret);
        return 0;
}
static void opened(void *context, struct peer_link *link) {
        struct side *s = context;
        s->link = link;
        s->opened++;
}
static void received(void *context, struct peer_link *link, const Cairn__Peer__PeerEnvelope *e) {
        struct side *s = context;
        s->received++;
        if (e->body_case == BODY(OPEN))
                s->attempts += e->open->attempt;
        if (e->body_case == BODY(DEMAND))
                s->bytes = e->demand->tag.len;
        if (s->free_on_receive) {
                peer_free(link);
                s->link = NULL;
        }
}
static void closed(void *context, struct peer_link *link, const struct cairn_error *why) {
        struct side *s = context;
        s->why = *why;
        s->closed++;
        peer_free(link);
        s->link = NULL;
}

static int setup(void **state) {
        (void) state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        added_ns = 0;
        test_clock = clock_system;
        test_clock.now_ns = test_now;
        acceptor = connector = (struct side){.secret = 7};
        relay.listen_fd = relay.in = relay.out = -1;
        relay.paused = false;
        relay.passed = relay.flip_at = 0;
        assert_int_equal(loop_init(&loop, &test_clock, &e), 0);
        const struct peer_callbacks callbacks = {&acceptor, identify, opened, received, closed};
        assert_int_equal(peer_listen(&listener, &loop, "127.0.0.1", &callbacks, &e), 0);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        peer_free(acceptor.link);
        peer_free(connector.link);
        peer_listener_done(&listener);
        loop_done(&loop);
        for (size_t i = 0; i < 3; i++) {
                int fd = (int[]){relay.listen_fd, relay.in, relay.out}[i];
                if (fd >= 0)
                        (void) close(fd);
        }
        return 0;
}

static void connect_to(uint16_t port) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct peer_identity me = {.run = "demo", .generation = 3, .node = "node-b"};
        memset(me.secret, connector.secret, sizeof me.secret);
        const struct peer_callbacks callbacks = {&connector, NULL, opened, received, closed};
        assert_int_equal(
                peer_connect(&loop, &me, "127.0.0.1", port, &callbacks, &connector.link, &e), 0);
}

/* ---- the relay ---- */

static int raw_connect(void) {
        struct sockaddr_in to = {.sin_family = AF_INET,
                                 .sin_port = htons(listener.port),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, (struct sockaddr *) &to, sizeof to), 0);
        return fd;
}

static void relay_start(void) {
        struct sockaddr_in here = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof here;
        relay.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        assert_int_equal(bind(relay.listen_fd, (struct sockaddr *) &here, sizeof here), 0);
        assert_int_equal(listen(relay.listen_fd, 1), 0);
        assert_int_equal(getsockname(relay.listen_fd, (struct sockaddr *) &here, &bytes), 0);
        relay.port = ntohs(here.sin_port);
}

static void relay_copy(int from, int to, bool counted) {
        unsigned char buffer[65536];
        ssize_t n = recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n == 0)
                (void) shutdown(to, SHUT_WR);
        if (n <= 0)
                return;
        if (counted) {
                if (relay.flip_at > relay.passed && relay.flip_at <= relay.passed + (uint64_t) n)
                        buffer[relay.flip_at - relay.passed - 1] ^= 0x10;
                relay.passed += (uint64_t) n;
        }
        (void) !send(to, buffer, (size_t) n, MSG_NOSIGNAL); /* it may have closed meanwhile */
}

static void relay_turn(void) {
        if (relay.listen_fd < 0 || relay.paused)
                return;
        if (relay.in < 0) {
                relay.in = accept4(relay.listen_fd, NULL, NULL, SOCK_CLOEXEC);
                if (relay.in < 0)
                        return;
                relay.out = raw_connect();
        }
        relay_copy(relay.in, relay.out, true);
        relay_copy(relay.out, relay.in, false);
}

static void turn(unsigned ms) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t end_ns = clock_now(&clock_system) + ms * NSEC_PER_MSEC;
        /* A pause of the machine is one turn: what takes several has them all the same. */
        for (unsigned i = 0; i < ms || clock_now(&clock_system) < end_ns; i++) {
                relay_turn();
                assert_int_equal(loop_step(&loop, loop_now(&loop) + NSEC_PER_MSEC, &e), 0);
        }
}
static void turn_until(const unsigned *counter, unsigned value) {
        uint64_t end_ns = clock_now(&clock_system) + 60 * NSEC_PER_SEC;
        while (*counter < value) {
                assert_true(clock_now(&clock_system) < end_ns);
                turn(1);
        }
}

static int say_open(struct peer_link *link, uint32_t attempt) {
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Open m = CAIRN__PEER__OPEN__INIT;
        m.attempt = attempt;
        e.body_case = BODY(OPEN);
        e.open = &m;
        return peer_send(link, &e);
}
static int say_bytes(struct peer_link *link, size_t bytes) {
        static uint8_t data[PEER_PAYLOAD_BYTES_MAX + 1];
        Cairn__Peer__PeerEnvelope e = CAIRN__PEER__PEER_ENVELOPE__INIT;
        Cairn__Peer__Demand m = CAIRN__PEER__DEMAND__INIT;
        m.tag = (ProtobufCBinaryData){.len = bytes, .data = data};
        e.body_case = BODY(DEMAND);
        e.demand = &m;
        return peer_send(link, &e);
}

static void test_talk(void **state) {
        (void) state;
        connect_to(listener.port);
        assert_int_equal(say_open(connector.link, 1), CAIRN_ERR_PEER); /* not yet */
        turn_until(&acceptor.opened, 1);
        turn_until(&connector.opened, 1);
        assert_string_equal(peer_node(acceptor.link), "node-b");
        assert_string_equal(peer_node(connector.link), "node-a");
        assert_string_equal(peer_run(acceptor.link), "demo");
        assert_int_equal(peer_generation(acceptor.link), 3);
        uint64_t sum = 0;
        for (uint32_t i = 1; i <= 1000; i++, sum += i - 1) {
                assert_int_equal(say_open(acceptor.link, i), 0);
                assert_int_equal(say_open(connector.link, i), 0);
        }
        turn_until(&acceptor.received, 1000);
        turn_until(&connector.received, 1000);
        assert_int_equal(acceptor.attempts, sum);
        assert_int_equal(connector.attempts, sum);
        assert_int_equal(say_bytes(connector.link, PEER_PAYLOAD_BYTES_MAX - 64), 0);
        turn_until(&acceptor.received, 1001);
        assert_int_equal(acceptor.bytes, PEER_PAYLOAD_BYTES_MAX - 64);
        assert_int_equal(say_bytes(connector.link, PEER_PAYLOAD_BYTES_MAX), CAIRN_ERR_API);
        peer_free(connector.link);
        connector.link = NULL;
        turn_until(&acceptor.closed, 1);
        assert_int_equal(acceptor.why.status, CAIRN_ERR_PEER);
}

static void test_freed_in_callback(void **state) {
        (void) state;
        connect_to(listener.port);
        turn_until(&acceptor.opened, 1);
        turn_until(&connector.opened, 1);
        acceptor.free_on_receive = true;
        for (uint32_t i = 0; i < 10; i++)
                assert_int_equal(say_open(connector.link, 1), 0);
        turn_until(&connector.closed, 1);
        assert_int_equal(acceptor.received, 1);
        assert_int_equal(acceptor.closed, 0);
}

static void test_wrong_secret(void **state) {
        (void) state;
        connector.secret = 8;
        connect_to(listener.port);
        turn_until(&connector.closed, 1);
        assert_int_equal(connector.why.status, CAIRN_ERR_PERMISSION);
        assert_int_equal(connector.opened, 0);
        turn(50);
        assert_int_equal(acceptor.opened, 0);
        assert_int_equal(listener.stranger_count, 0);
}

static void test_refused(void **state) {
        (void) state;
        acceptor.refuse = CAIRN_ERR_STALE;
        connect_to(listener.port);
        turn_until(&connector.closed, 1);
        assert_int_equal(connector.why.status, CAIRN_ERR_STALE);
        assert_non_null(strstr(connector.why.message, "restart 4"));
}

static void test_nobody_listens(void **state) {
        (void) state;
        struct sockaddr_in here = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof here;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* has the port, refuses */
        assert_int_equal(bind(fd, (struct sockaddr *) &here, sizeof here), 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *) &here, &bytes), 0);
        connect_to(ntohs(here.sin_port));
        turn_until(&connector.closed, 1);
        (void) close(fd);
        assert_true(connector.why.status < 0);
        assert_int_equal(connector.why.system_code, ECONNREFUSED);
}

/* Every byte that the connector sends is flipped once: what was said is never taken as said. */
static void test_flipped(void **state) {
        for (uint64_t at = 1; at < 400; at += at < 200 ? 1 : 7) {
                relay_start();
                relay.flip_at = at;
                connect_to(relay.port);
                uint64_t end_ns = clock_now(&clock_system) + 20 * NSEC_PER_SEC;
                bool said = false;
                while (!acceptor.closed && !connector.closed && acceptor.received < 4) {
                        assert_true(clock_now(&clock_system) < end_ns);
                        turn(1);
                        for (uint32_t i = 0; connector.opened && connector.link && !said && i < 4;
                             i++)
                                assert_int_equal(say_open(connector.link, 1), 0);
                        said = said || connector.opened;
                        if (relay.passed >= at + 64) /* a length was flipped: more never comes */
                                added_ns += NSEC_PER_SEC;
                }
                assert_true(at > relay.passed || acceptor.received < 4);
                assert_int_equal(acceptor.attempts, acceptor.received);
                if (acceptor.received == 4) {
                        assert_true(at > relay.passed);
                        teardown(state);
                        setup(state);
                        break; /* past the end of the conversation */
                }
                teardown(state);
                setup(state);
        }
}

static void test_strangers(void **state) {
        (void) state;
        int fds[PEER_STRANGERS_MAX + 8];
        for (size_t i = 0; i < PEER_STRANGERS_MAX + 8; i++) {
                fds[i] = raw_connect();
                turn(2);
        }
        turn(50);
        assert_int_equal(listener.stranger_count, PEER_STRANGERS_MAX);
        assert_int_equal(send(fds[0], "GET / HTTP/1.1\r\nHost: nobody.example\r\n\r\n", 41, 0), 41);
        unsigned char long_one[32] = {'C', 'R', 'P', '1'};
        store_le32(long_one + 4, UINT32_MAX);
        assert_int_equal(send(fds[1], long_one, sizeof long_one, 0), sizeof long_one);
        turn(50);
        assert_int_equal(listener.stranger_count, PEER_STRANGERS_MAX); /* two that waited */
        added_ns += PEER_OPEN_NS + NSEC_PER_MSEC;                      /* the others say nothing */
        turn(50);
        assert_int_equal(listener.stranger_count, 6);
        added_ns += PEER_OPEN_NS + NSEC_PER_MSEC;
        turn(50);
        assert_int_equal(listener.stranger_count, 0);
        for (size_t i = 0; i < PEER_STRANGERS_MAX + 8; i++)
                (void) close(fds[i]);
        connect_to(listener.port); /* and whoever belongs here is served */
        turn_until(&acceptor.opened, 1);
}

static void test_silence(void **state) {
        (void) state;
        relay_start();
        connect_to(relay.port);
        turn_until(&acceptor.opened, 1);
        turn_until(&connector.opened, 1);
        for (int i = 0; i < 20; i++) { /* 20 s of pings only */
                added_ns += NSEC_PER_SEC;
                turn(20);
        }
        assert_int_equal(acceptor.closed + connector.closed, 0);
        relay.paused = true;
        for (int i = 0; i < 6; i++) {
                added_ns += NSEC_PER_SEC;
                turn(20);
        }
        assert_int_equal(acceptor.closed, 1);
        assert_int_equal(connector.closed, 1);
        assert_int_equal(acceptor.why.status, CAIRN_ERR_TIMEOUT);
        assert_int_equal(connector.why.status, CAIRN_ERR_TIMEOUT);
}

/* A peer that does not read: sending never blocks, and fails when the bound is reached. */
static void test_does_not_read(void **state) {
        (void) state;
        relay_start();
        connect_to(relay.port);
        turn_until(&acceptor.opened, 1);
        turn_until(&connector.opened, 1);
        relay.paused = true;
        int r = 0, sent = 0;
        while (r == 0 && sent < 1000) {
                r = say_bytes(connector.link, 200000);
                sent += r == 0;
        }
        assert_int_equal(r, CAIRN_ERR_BUSY);
        assert_true(sent >= (int) (PEER_OUT_BYTES_MAX / 200100));
        relay.paused = false;
        turn_until(&acceptor.received, (unsigned) sent);
        assert_int_equal(say_open(connector.link, 1), 0);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_talk),      TEST(test_freed_in_callback), TEST(test_wrong_secret),
                TEST(test_refused),   TEST(test_nobody_listens),    TEST(test_flipped),
                TEST(test_strangers), TEST(test_silence),           TEST(test_does_not_read),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
