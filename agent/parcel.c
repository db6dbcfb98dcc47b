/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/parcel.h"

#include "base/assert.h"
#include "base/cleanup.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

union control {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX)];
};

int parcel_pack(const int *fds, size_t count, int *ret_parcel, struct cairn_error *reterr) {
        union control control = {0};
        char byte = 0;
        struct iovec iov = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
        int pair[2];

        CAIRN_ASSERT(count > 0 && count <= WIRE_FDS_MAX);
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return error_set_errno(reterr, errno, "pack files", "");
        _cleanup_close_ int in = pair[0], out = pair[1];
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int) * count);
        memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
        if (sendmsg(in, &message, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
                return error_set_errno(reterr, errno, "pack files", "");
        *ret_parcel = TAKE_FD(out);
        return 0;
}

int parcel_unpack(int parcel, int *ret_fds, size_t count, struct cairn_error *reterr) {
        union control control;
        char byte;
        struct iovec iov = {.iov_base = &byte, .iov_len = 1};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        size_t found = 0;

        CAIRN_ASSERT(count > 0 && count <= WIRE_FDS_MAX);
        if (recvmsg(parcel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
                return error_set_errno(reterr, errno, "unpack files", "");
        const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
                found = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        int fds[WIRE_FDS_MAX];
        if (found > 0)
                memcpy(fds, CMSG_DATA(header), found * sizeof(int));
        if (found == count && !(message.msg_flags & MSG_CTRUNC)) {
                memcpy(ret_fds, fds, count * sizeof(int));
                return 0;
        }
        for (size_t i = 0; i < found; i++)
                (void) close(fds[i]);
        return error_set(reterr, CAIRN_ERR_API, "unpack files", "",
                         "%zu files were packed, %zu are expected", found, count);
}
