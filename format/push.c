/* SPDX-License-Identifier: Apache-2.0 */
#include "format/push.h"

#include "base/cleanup.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

union push_control {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
};

int push_send(int socket, struct push_packet *p, int fd) {
        union push_control control = {0};
        struct iovec part = {.iov_base = p, .iov_len = sizeof *p};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
        memcpy(p->magic, PUSH_MAGIC, sizeof p->magic);
        if (fd >= 0) {
                header.msg_control = control.bytes;
                header.msg_controllen = sizeof control.bytes;
                struct cmsghdr *c = CMSG_FIRSTHDR(&header);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof fd);
                memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        ssize_t n;
        do
                n = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        if (n == sizeof *p)
                return 0;
        return errno == EAGAIN || errno == ETOOMANYREFS ? CAIRN_ERR_BUSY : CAIRN_ERR_PEER;
}

/* The room is for one descriptor: the kernel closes what is too many. */
static void take_fd(struct msghdr *header, int *ret_fd) {
        struct cmsghdr *c = CMSG_FIRSTHDR(header);
        if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
            c->cmsg_len >= CMSG_LEN(sizeof *ret_fd))
                memcpy(ret_fd, CMSG_DATA(c), sizeof *ret_fd);
}

int push_receive(int socket, struct push_packet *ret, int *ret_fd) {
        _cleanup_close_ int fd = -1;
        union push_control control = {0};
        struct iovec part = {.iov_base = ret, .iov_len = sizeof *ret};
        struct msghdr header = {.msg_iov = &part,
                                .msg_iovlen = 1,
                                .msg_control = control.bytes,
                                .msg_controllen = sizeof control.bytes};
        *ret_fd = -1;
        ssize_t n = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? CAIRN_ERR_BUSY : CAIRN_ERR_PEER;
        if (n == 0)
                return CAIRN_ERR_PEER;
        take_fd(&header, &fd);
        if (n != sizeof *ret || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
            memcmp(ret->magic, PUSH_MAGIC, sizeof ret->magic) != 0)
                return CAIRN_ERR_CORRUPT;
        ret->text[sizeof ret->text - 1] = 0;
        *ret_fd = TAKE_FD(fd);
        return 0;
}
