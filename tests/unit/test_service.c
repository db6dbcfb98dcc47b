/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/service.h"

#include "tests/test.h"
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void check_received(int fd, const char *expected) {
        char text[128];
        ssize_t n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
        assert_int_equal(n, strlen(expected));
        text[n] = '\0';
        assert_string_equal(text, expected);
}

static int listen_at(const char *name, size_t length) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        memcpy(address.sun_path, name, length);
        assert_int_equal(bind(fd, (const struct sockaddr *) &address,
                              (socklen_t) (offsetof(struct sockaddr_un, sun_path) + length)),
                         0);
        return fd;
}

static void test_path_and_abstract(void **state) {
        const char *temporary = getenv("TMPDIR");
        char path[90], name[64];
        (void) snprintf(path, sizeof path, "%.60s/notify-%d", temporary ? temporary : "/tmp",
                        (int) getpid());
        int fd = listen_at(path, strlen(path));
        (void) setenv("NOTIFY_SOCKET", path, 1);
        service_notify("READY=1");
        check_received(fd, "READY=1");
        (void) close(fd);
        service_notify("nobody listens");
        assert_int_equal(unlink(path), 0);
        service_notify("nothing is there");

        (void) snprintf(name, sizeof name, "@cairn-test-%d", (int) getpid());
        (void) setenv("NOTIFY_SOCKET", name, 1);
        name[0] = '\0';
        fd = listen_at(name, 1 + strlen(name + 1));
        service_notify("STOPPING=1");
        check_received(fd, "STOPPING=1");
        (void) close(fd);
}

static void test_nobody_to_tell(void **state) {
        static const char *const names[] = {"", "/", "relative"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                (void) setenv("NOTIFY_SOCKET", names[i], 1);
                service_notify("READY=1");
        }
        char longest[300];
        memset(longest, '/', sizeof longest - 1);
        longest[sizeof longest - 1] = '\0';
        (void) setenv("NOTIFY_SOCKET", longest, 1);
        service_notify("READY=1");
        (void) unsetenv("NOTIFY_SOCKET");
        service_notify("READY=1");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_path_and_abstract),
                cmocka_unit_test(test_nobody_to_tell),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
