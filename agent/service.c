/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/service.h"

#include "base/cleanup.h"
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

void service_notify(const char *state) {
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        size_t length = path ? strlen(path) : 0;
        if (length < 2 || length >= sizeof address.sun_path || (*path != '/' && *path != '@'))
                return;
        memcpy(address.sun_path, path, length);
        if (*path == '@') /* an abstract name */
                address.sun_path[0] = '\0';
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return;
        (void) sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *) &address,
                      (socklen_t) (offsetof(struct sockaddr_un, sun_path) + length));
}

enum { FIRST_FD = 3 };

static bool is_ours(long *ret_count) {
        const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
        if (!pid || !count || strtol(pid, NULL, 10) != (long) getpid())
                return false;
        *ret_count = strtol(count, NULL, 10);
        return *ret_count > 0;
}

int service_socket(char *path, size_t bytes, struct cairn_error *reterr) {
        struct sockaddr_un address = {0};
        socklen_t length = sizeof address, size = sizeof(int);
        long count = 0;
        int type = 0, listens = 0;
        bool given = is_ours(&count);
        (void) unsetenv("LISTEN_PID");
        (void) unsetenv("LISTEN_FDS");
        (void) unsetenv("LISTEN_FDNAMES");
        if (!given)
                return 0;
        if (count != 1 || fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC) < 0 ||
            getsockopt(FIRST_FD, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_SEQPACKET ||
            getsockopt(FIRST_FD, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0 || !listens ||
            getsockname(FIRST_FD, (struct sockaddr *) &address, &length) < 0 ||
            address.sun_family != AF_UNIX || length <= offsetof(struct sockaddr_un, sun_path) ||
            address.sun_path[0] != '/')
                return error_set(
                        reterr, CAIRN_ERR_API, "take over socket", "",
                        "the service manager has to hand over one socket with "
                        "ListenSequentialPacket= and an absolute path, as cairnd.socket does");
        (void) snprintf(path, bytes, "%.*s",
                        (int) (length - offsetof(struct sockaddr_un, sun_path)), address.sun_path);
        return FIRST_FD;
}
