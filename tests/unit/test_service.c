/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/service.h"

#include "base/clock.h"
#include "tests/test.h"
#include <fcntl.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
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

        /* Of this machine, where others may have the same process id in a namespace of theirs. */
        (void) snprintf(name, sizeof name, "@cairn-test-%d-%llx", (int) getpid(),
                        (unsigned long long) clock_now(&clock_system));
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

/* In a child, for descriptor 3 and the variables are the process's. */
static int socket_of(int type, bool listens, const char *path, const char *count, bool own_pid) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                struct sockaddr_un address = {.sun_family = AF_UNIX};
                char pid[24], got[200] = "";
                int fd = socket(AF_UNIX, type, 0);
                (void) snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
                if (fd < 0 || bind(fd, (const struct sockaddr *) &address, sizeof address) < 0 ||
                    (listens && listen(fd, 1) < 0) || (fd != 3 && dup2(fd, 3) < 0))
                        _exit(99);
                (void) snprintf(pid, sizeof pid, "%d", own_pid ? (int) getpid() : 1);
                (void) setenv("LISTEN_PID", pid, 1);
                (void) setenv("LISTEN_FDS", count, 1);
                int r = service_socket(got, sizeof got, NULL);
                if (getenv("LISTEN_PID") || getenv("LISTEN_FDS"))
                        _exit(98);
                if (r == 3 && (strcmp(got, path) != 0 || !(fcntl(3, F_GETFD) & FD_CLOEXEC)))
                        _exit(97);
                _exit(r < 0 ? 64 : r);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        (void) unlink(path);
        return WEXITSTATUS(status);
}

static void test_socket(void **state) {
        const char *temporary = getenv("TMPDIR");
        char path[90];
        (void) state;
        (void) snprintf(path, sizeof path, "%.60s/socket-%d", temporary ? temporary : "/tmp",
                        (int) getpid());
        assert_int_equal(socket_of(SOCK_SEQPACKET, true, path, "1", true), 3);
        assert_int_equal(socket_of(SOCK_SEQPACKET, true, path, "1", false), 0); /* not for us */
        assert_int_equal(socket_of(SOCK_SEQPACKET, true, path, "0", true), 0);
        assert_int_equal(socket_of(SOCK_SEQPACKET, true, path, "2", true), 64);
        assert_int_equal(socket_of(SOCK_SEQPACKET, false, path, "1", true), 64);
        assert_int_equal(socket_of(SOCK_STREAM, true, path, "1", true), 64);
        assert_int_equal(socket_of(SOCK_DGRAM, false, path, "1", true), 64);
        assert_int_equal(service_socket(path, sizeof path, NULL), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_path_and_abstract),
                cmocka_unit_test(test_nobody_to_tell),
                cmocka_unit_test(test_socket),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
