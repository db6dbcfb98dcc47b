/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/service.h"

#include "base/cleanup.h"
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
