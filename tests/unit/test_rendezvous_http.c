/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rendezvous_http.h"
#include "base/cleanup.h"
#include "tests/test.h"

#include <arpa/inet.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* A server in a child that gives each connection the same answer; "" is silence. */
struct server {
        pid_t pid;
        unsigned port;
};

static void give(int fd, const char *answer) {
        char request[4096];
        (void) !recv(fd, request, sizeof request, 0);
        if (strcmp(answer, "endless") == 0) {
                static const char head[] = "HTTP/1.1 200 OK\r\n\r\n";
                static char block[65536];
                (void) send(fd, head, sizeof head - 1, MSG_NOSIGNAL);
                while (send(fd, block, sizeof block, MSG_NOSIGNAL) > 0)
                        ;
        } else if (strcmp(answer, "echo") == 0) {
                char head[200];
                const char *body = strstr(request, "\r\n\r\n");
                size_t count = body ? strnlen(body + 4, 100) : 0;
                int n = snprintf(head, sizeof head,
                                 "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", count);
                (void) send(fd, head, (size_t) n, MSG_NOSIGNAL | MSG_MORE);
                (void) send(fd, body + 4, count, MSG_NOSIGNAL);
        } else if (*answer) {
                (void) send(fd, answer, strlen(answer), MSG_NOSIGNAL);
        } else {
                (void) pause();
        }
}

static struct server serve(const char *answer) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        struct server s = {0};
        socklen_t bytes = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_true(fd >= 0 && bind(fd, (struct sockaddr *) &a, sizeof a) == 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *) &a, &bytes), 0);
        assert_int_equal(listen(fd, 8), 0);
        s.port = ntohs(a.sin_port);
        s.pid = fork();
        assert_true(s.pid >= 0);
        if (s.pid == 0) {
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;) {
                        int one = accept(fd, NULL, NULL);
                        give(one, answer);
                        (void) close(one);
                }
        }
        (void) close(fd);
        return s;
}

/* A port that refuses: nobody listens, and nobody else gets it while the descriptor is open. */
static int refuse(uint16_t *port) {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof a;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_true(fd >= 0 && bind(fd, (struct sockaddr *) &a, sizeof a) == 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *) &a, &bytes), 0);
        *port = ntohs(a.sin_port);
        return fd;
}

static void end(struct server s) {
        (void) kill(s.pid, SIGKILL);
        (void) waitpid(s.pid, NULL, 0);
}

#define REPLY(status, body) "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n" body

static struct cairn_error e;
static struct http_answer answer;
static char hosts[200];
static uint64_t took_ns;

/* POST "question" to hosts. */
static int post(uint64_t limit_ms) {
        struct http *h;
        uint64_t before = clock_now(&clock_system);

        e = (struct cairn_error) CAIRN_ERROR_INIT;
        assert_int_equal(http_new(hosts, &h, &e), 0);
        int r = http_post(h, "/path", "question", before + limit_ms * NSEC_PER_MSEC, &answer, &e);
        took_ns = clock_now(&clock_system) - before;
        (void) http_free(h);
        return r;
}

static void answer_done(void) {
        free(answer.bytes);
        answer = (struct http_answer){0};
}

static void asks_and_gets_an_answer(void **state) {
        struct server s = serve("echo");

        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u", s.port);
        /* Neither a proxy nor a netrc of the environment has a say. */
        (void) setenv("http_proxy", "http://127.0.0.1:1", 1);
        (void) setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
        assert_int_equal(post(60000), 0);
        assert_int_equal(answer.status, 200);
        assert_int_equal(answer.count, 8);
        assert_memory_equal(answer.bytes, "question", 8);
        answer_done();
        end(s);
}

static void passes_over_who_cannot_serve(void **state) {
        struct server busy = serve(REPLY("503 Service Unavailable", "no")), good = serve("echo"),
                      missing = serve(REPLY("404 Not Found", "what"));
        uint16_t dead;
        int dead_fd = refuse(&dead);

        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u,127.0.0.1:%u,127.0.0.1:%u", dead,
                        busy.port, good.port);
        assert_int_equal(post(60000), 0);
        assert_int_equal(answer.status, 200);
        answer_done();
        /* No better one: its words are the answer. */
        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u", busy.port);
        assert_int_equal(post(60000), 0);
        assert_int_equal(answer.status, 503);
        answer_done();
        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u,127.0.0.1:%u", missing.port, good.port);
        assert_int_equal(post(60000), 0);
        assert_int_equal(answer.status, 404); /* an answer */
        answer_done();
        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u", dead);
        assert_int_equal(post(60000), CAIRN_ERR_UNREACHABLE);
        assert_string_equal(e.object, hosts);
        assert_non_null(strstr(e.message, "is etcd running there"));
        (void) close(dead_fd);
        end(busy);
        end(good);
        end(missing);
}

static void waits_for_nobody_too_long(void **state) {
        struct server silent = serve(""), good = serve("echo");

        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u", silent.port);
        assert_int_equal(post(300), CAIRN_ERR_TIMEOUT);
        assert_true(took_ns >= 250 * NSEC_PER_MSEC && took_ns < 20 * NSEC_PER_SEC);
        assert_int_equal(post(60000), CAIRN_ERR_TIMEOUT); /* a host has HTTP_TRY_NS */
        assert_true(took_ns >= HTTP_TRY_NS / 2 && took_ns < 10 * HTTP_TRY_NS);
        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u,127.0.0.1:%u", silent.port, good.port);
        assert_int_equal(post(60000), 0);
        answer_done();
        assert_int_equal(post(0), CAIRN_ERR_TIMEOUT);
        assert_non_null(strstr(e.message, "no time left"));
        end(silent);
        end(good);
}

static void bounds_what_it_takes(void **state) {
        struct server s = serve("endless");

        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u", s.port);
        assert_int_equal(post(60000), CAIRN_ERR_PEER);
        assert_non_null(strstr(e.message, "longer than"));
        assert_null(answer.bytes);
        end(s);
        s = serve("SSH-2.0-OpenSSH\r\n");
        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u", s.port);
        assert_int_equal(post(60000), CAIRN_ERR_PEER);
        end(s);
        /* No other place is asked because an answer says so. */
        s = serve(
                "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n");
        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u", s.port);
        assert_int_equal(post(60000), 0);
        assert_int_equal(answer.status, 302);
        answer_done();
        end(s);
}

/* The host that answered is asked first the next time. */
static void stays_with_who_answered(void **state) {
        struct server silent = serve(""), good = serve("echo");
        struct http *h;
        uint64_t least_ns = UINT64_MAX;

        (void) snprintf(hosts, sizeof hosts, "127.0.0.1:%u,127.0.0.1:%u", silent.port, good.port);
        assert_int_equal(http_new(hosts, &h, &e), 0);
        for (int i = 0; i < 3; i++) {
                uint64_t before = clock_now(&clock_system);
                assert_int_equal(
                        http_post(h, "/p", "question", before + 60 * NSEC_PER_SEC, &answer, &e), 0);
                took_ns = clock_now(&clock_system) - before;
                least_ns = took_ns < least_ns ? took_ns : least_ns;
                answer_done();
        }
        assert_true(least_ns < HTTP_TRY_NS);
        (void) http_free(h);
        end(silent);
        end(good);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(asks_and_gets_an_answer),
                cmocka_unit_test(passes_over_who_cannot_serve),
                cmocka_unit_test(waits_for_nobody_too_long),
                cmocka_unit_test(bounds_what_it_takes),
                cmocka_unit_test(stays_with_who_answered),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
