/* SPDX-License-Identifier: Apache-2.0 */
#include "format/wire.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "format/crc32c.h"
#include "format/names.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define WIRE_MAGIC "CRN1"
#define PACKET_HEADER_BYTES 16
#define SYSTEM_SOCKET "/run/cairn/cairnd.sock"

enum { CONNECT_SECONDS_MAX = 5 };

/* ---- descriptors ---- */

void wire_fds_done(struct wire_fds *fds) {
        for (size_t i = 0; fds && i < fds->count; i++)
                if (fds->fds[i] >= 0)
                        (void) close(fds->fds[i]);
        if (fds)
                fds->count = 0;
}

int wire_fds_take(struct wire_fds *fds, size_t i) {
        return i < fds->count ? TAKE_FD(fds->fds[i]) : -1;
}

/* ---- packets ---- */

/* 0 when the socket is ready, TIMEOUT at the deadline (BUSY where there is none). */
static int wait_ready(int socket, short events, uint64_t deadline_ns, const char *operation,
                      struct cairn_error *reterr) {
        struct pollfd p = {.fd = socket, .events = events};

        if (deadline_ns == 0)
                return error_set(reterr, CAIRN_ERR_BUSY, operation, "", "nothing can be moved now");
        for (;;) {
                int timeout = clock_poll_timeout(&clock_system, deadline_ns);
                int n = poll(&p, 1, timeout);

                if (n > 0)
                        return 0;
                if (n < 0 && errno != EINTR)
                        return error_set_errno(reterr, errno, operation, "socket");
                if (n == 0 && timeout == 0)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, operation, "",
                                         "the other side did not move before the deadline");
        }
}

static bool is_gone(int error_number) {
        return error_number == EPIPE || error_number == ECONNRESET || error_number == ENOTCONN ||
               error_number == ECONNREFUSED;
}

static int peer_gone(const char *operation, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_PEER, operation, "",
                         "the other side closed the connection");
}

static int send_packet(int socket, const void *packet, size_t bytes, const int *fds,
                       size_t fd_count, uint64_t deadline_ns, struct cairn_error *reterr) {
        const char *operation = "send message";
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))] = {0};
        struct iovec part = {.iov_base = (void *) packet, .iov_len = bytes};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

        if (fd_count > 0) {
                message.msg_control = control;
                message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&message);
                *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                      .cmsg_type = SCM_RIGHTS,
                                      .cmsg_len = CMSG_LEN(fd_count * sizeof(int))};
                memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
        }
        for (;;) {
                ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n >= 0)
                        return 0; /* SEQPACKET: whole or not at all */
                if (is_gone(errno))
                        return peer_gone(operation, reterr);
                if (errno == EAGAIN || errno == ENOBUFS)
                        TRY(wait_ready(socket, POLLOUT, deadline_ns, operation, reterr));
                else if (errno != EINTR)
                        return error_set_errno(reterr, errno, operation, "socket");
        }
}

int wire_send(int socket, const Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
              uint64_t deadline_ns, struct cairn_error *reterr) {
        size_t bytes = cairn__control__envelope__get_packed_size(e);

        if (bytes > WIRE_MESSAGE_BYTES_MAX || fd_count > WIRE_FDS_MAX)
                return error_set(reterr, CAIRN_ERR_API, "send message", "",
                                 "%zu bytes and %zu descriptors are too much for one message",
                                 bytes, fd_count);
        _cleanup_free_ unsigned char *packet = malloc(PACKET_HEADER_BYTES + bytes);
        if (!packet)
                return error_set(reterr, CAIRN_ERR_NOMEM, "send message", "", "out of memory");
        cairn__control__envelope__pack(e, packet + PACKET_HEADER_BYTES);
        memcpy(packet, WIRE_MAGIC, 4); /* NOLINT(bugprone-not-null-terminated-result) */
        store_le32(packet + 4, (uint32_t) bytes);
        store_le32(packet + 8, crc32c(0, packet + PACKET_HEADER_BYTES, bytes));
        store_le32(packet + 12, (uint32_t) fd_count);
        return send_packet(socket, packet, PACKET_HEADER_BYTES + bytes, fds, fd_count, deadline_ns,
                           reterr);
}

static int broken(struct cairn_error *reterr, const char *why) {
        return error_set(reterr, CAIRN_ERR_CORRUPT, "receive message", "",
                         "%s: the connection is given up", why);
}

static void take_fds(struct msghdr *message, struct wire_fds *fds) {
        for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < count; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                        if (fds->count < WIRE_FDS_MAX)
                                fds->fds[fds->count++] = fd;
                        else
                                (void) close(fd);
                }
        }
}

/* Bytes of the packet at the head of the socket, without taking it. */
static int peek_bytes(int socket, size_t *ret, uint64_t deadline_ns, struct cairn_error *reterr) {
        for (;;) {
                char first;
                ssize_t n = recv(socket, &first, 1, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);

                if (n > 0) {
                        *ret = (size_t) n;
                        return 0;
                }
                if (n == 0 || is_gone(errno))
                        return peer_gone("receive message", reterr);
                if (errno == EAGAIN)
                        TRY(wait_ready(socket, POLLIN, deadline_ns, "receive message", reterr));
                else if (errno != EINTR)
                        return error_set_errno(reterr, errno, "receive message", "socket");
        }
}

static int take_packet(int socket, unsigned char *packet, size_t bytes, struct wire_fds *fds,
                       bool *ret_lost, struct cairn_error *reterr) {
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(WIRE_FDS_MAX * sizeof(int))];
        struct iovec part = {.iov_base = packet, .iov_len = bytes};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        ssize_t n;

        do
                n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0 && is_gone(errno))
                return peer_gone("receive message", reterr);
        if (n < 0)
                return error_set_errno(reterr, errno, "receive message", "socket");
        take_fds(&message, fds);
        *ret_lost = message.msg_flags & MSG_CTRUNC;
        if ((message.msg_flags & MSG_TRUNC) || (size_t) n != bytes)
                return broken(reterr, "a truncated packet");
        return 0;
}

static void *arena_allocate(void *arena, size_t bytes) {
        return arena_alloc(arena, bytes, _Alignof(max_align_t));
}

static void arena_release(void *arena, void *p) {
        /* freed with the arena */
}

static int unpack(const unsigned char *packet, size_t bytes, size_t fd_count, struct arena *arena,
                  Cairn__Control__Envelope **ret, struct cairn_error *reterr) {
        ProtobufCAllocator allocator = {arena_allocate, arena_release, arena};
        size_t payload = bytes - PACKET_HEADER_BYTES;

        if (memcmp(packet, WIRE_MAGIC, 4) != 0)
                return broken(reterr, "a packet without our magic");
        if (load_le32(packet + 4) != payload)
                return broken(reterr, "a packet whose length is not what it says");
        if (load_le32(packet + 8) != crc32c(0, packet + PACKET_HEADER_BYTES, payload))
                return broken(reterr, "a packet whose checksum differs");
        if (load_le32(packet + 12) != fd_count)
                return broken(reterr, "a packet without the descriptors that it announces");
        *ret = cairn__control__envelope__unpack(&allocator, payload, packet + PACKET_HEADER_BYTES);
        if (!*ret)
                return broken(reterr, "a message that cannot be parsed within its memory limit");
        return 0;
}

int wire_receive(int socket, struct arena *arena, Cairn__Control__Envelope **ret,
                 struct wire_fds *ret_fds, uint64_t deadline_ns, struct cairn_error *reterr) {
        struct wire_fds fds = WIRE_FDS_INIT;
        size_t bytes = 0;

        ret_fds->count = 0;
        *ret = NULL;
        TRY(peek_bytes(socket, &bytes, deadline_ns, reterr));
        bool fits = bytes >= PACKET_HEADER_BYTES &&
                    bytes <= PACKET_HEADER_BYTES + WIRE_MESSAGE_BYTES_MAX;
        /* A packet of a wrong size is taken as well, for its descriptors. */
        size_t room = fits ? bytes : PACKET_HEADER_BYTES;
        _cleanup_free_ unsigned char *packet = malloc(room);
        if (!packet)
                return error_set(reterr, CAIRN_ERR_NOMEM, "receive message", "", "out of memory");
        bool lost = false;
        int r = take_packet(socket, packet, room, &fds, &lost, reterr);
        if (r == 0 && !fits)
                r = broken(reterr, "a packet of an impossible size");
        uint32_t announced = r == 0 ? load_le32(packet + 12) : 0;
        if (r == 0 && lost && (announced <= fds.count || announced > WIRE_FDS_MAX))
                r = broken(reterr, "a packet with more descriptors than a message may carry");
        if (r == 0)
                r = unpack(packet, bytes, lost ? announced : fds.count, arena, ret, reterr);
        if (r == 0 && lost)
                r = error_set(reterr, CAIRN_ERR_NOMEM, "receive message", "",
                              "%u descriptors came and the limit of open files of the process that "
                              "was to take them leaves room for %zu: raise it (ulimit -n)",
                              announced, fds.count);
        if (r < 0)
                wire_fds_done(&fds);
        else
                *ret_fds = fds;
        return r;
}

/* ---- failures ---- */

static ProtobufCBinaryData text_data(const char *text, size_t capacity) {
        return (ProtobufCBinaryData){.len = strnlen(text, capacity), .data = (uint8_t *) text};
}

int wire_text_copy(char *target, size_t bytes, const ProtobufCBinaryData *text,
                   const char *operation, const char *what, struct cairn_error *reterr) {
        if (text->len >= bytes || (text->len && memchr(text->data, 0, text->len)))
                return error_set(reterr, CAIRN_ERR_API, operation, what,
                                 "longer than %zu bytes, or with a zero in it", bytes - 1);
        if (text->len)
                memcpy(target, text->data, text->len);
        target[text->len] = 0;
        return 0;
}

void wire_failure_fill(Cairn__Control__Failure *f, const struct cairn_error *e) {
        cairn__control__failure__init(f);
        f->status = e->status;
        f->system_code = e->system_code;
        f->offset = e->offset;
        f->operation = text_data(e->operation, sizeof e->operation);
        f->object = text_data(e->object, sizeof e->object);
        f->message = text_data(e->message, sizeof e->message);
}

static void copy_text(char *target, size_t capacity, ProtobufCBinaryData source) {
        size_t bytes = source.len < capacity ? source.len : capacity - 1;

        if (bytes)
                memcpy(target, source.data, bytes);
        target[bytes] = '\0';
}

void wire_failure_read(const Cairn__Control__Failure *f, struct cairn_error *ret) {
        *ret = (struct cairn_error){
                .status = f->status, .system_code = f->system_code, .offset = f->offset};
        /* A failure is never mistaken for success, whatever the other side sent. */
        if (ret->status >= 0)
                ret->status = CAIRN_ERR_PEER;
        copy_text(ret->operation, sizeof ret->operation, f->operation);
        copy_text(ret->object, sizeof ret->object, f->object);
        copy_text(ret->message, sizeof ret->message, f->message);
}

/* ---- where an agent listens ---- */

static int fill_path(char *path, size_t bytes, struct cairn_error *reterr, const char *directory,
                     const char *name, const char *suffix) {
        struct sockaddr_un address;
        int n = snprintf(path, bytes, "%s%s%s", directory, name, suffix);

        if (n < 0 || (size_t) n >= bytes || (size_t) n >= sizeof address.sun_path)
                return error_set(reterr, CAIRN_ERR_API, "find agent's socket", directory,
                                 "the path is longer than a socket's may be (%zu bytes): set "
                                 "CAIRN_SOCKET to a shorter one",
                                 sizeof address.sun_path - 1);
        return 0;
}

/* Others must not be able to listen in our place. */
static int private_directory(const char *path, struct cairn_error *reterr) {
        struct stat st;

        if (mkdir(path, 0700) < 0 && errno != EEXIST)
                return error_set_errno(reterr, errno, "create socket directory", path);
        if (lstat(path, &st) < 0)
                return error_set_errno(reterr, errno, "check socket directory", path);
        if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
                return error_set(reterr, CAIRN_ERR_PERMISSION, "check socket directory", path,
                                 "it is not a directory of ours with mode 0700: remove it, or set "
                                 "CAIRN_SOCKET or XDG_RUNTIME_DIR");
        return 0;
}

int wire_private_path(const char *run, const char *suffix, char *path, size_t bytes,
                      struct cairn_error *reterr) {
        const char *runtime = getenv("XDG_RUNTIME_DIR");
        char directory[4096];
        int n;

        TRY(name_check_run(run ? run : "", reterr));
        if (runtime && *runtime) {
                n = snprintf(directory, sizeof directory, "%s/cairn", runtime);
        } else {
                const char *temporary = getenv("TMPDIR");

                n = snprintf(directory, sizeof directory, "%s/cairn-%u",
                             temporary && *temporary ? temporary : "/tmp", (unsigned) geteuid());
        }
        if (n < 0 || (size_t) n >= sizeof directory - 1)
                return error_set(reterr, CAIRN_ERR_API, "find agent's socket", "",
                                 "the temporary directory's name is too long: set CAIRN_SOCKET");
        TRY(private_directory(directory, reterr));
        directory[n] = '/';
        directory[n + 1] = '\0';
        return fill_path(path, bytes, reterr, directory, run, suffix);
}

int wire_socket_path(const char *run, char *path, size_t bytes, struct cairn_error *reterr) {
        const char *given = getenv("CAIRN_SOCKET");

        if (given && *given)
                return fill_path(path, bytes, reterr, given, "", "");
        if (access(SYSTEM_SOCKET, F_OK) == 0)
                return fill_path(path, bytes, reterr, SYSTEM_SOCKET, "", "");
        return wire_private_path(run, ".sock", path, bytes, reterr);
}

int wire_connect(const char *path, int *ret_socket, struct cairn_error *reterr) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct timeval limit = {.tv_sec = CONNECT_SECONDS_MAX}, none = {0};
        size_t length = strlen(path);
        int r;

        if (length == 0 || length >= sizeof address.sun_path)
                return error_set(reterr, CAIRN_ERR_API, "connect to agent", path,
                                 "a socket's path has 1 to %zu bytes", sizeof address.sun_path - 1);
        memcpy(address.sun_path, path, length);
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return error_set_errno(reterr, errno, "create socket", path);
        /* A full backlog makes connect wait; the time-out of sends bounds that as well. */
        (void) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        do
                r = connect(fd, (const struct sockaddr *) &address, sizeof address);
        while (r < 0 && errno == EINTR);
        if (r < 0 && errno == EACCES)
                return error_set_errno(reterr, errno, "connect to agent", path);
        if (r < 0) {
                int error_number = errno;

                error_set(reterr, CAIRN_ERR_UNREACHABLE, "connect to agent", path,
                          error_number == EAGAIN
                                  ? "an agent is there but does not answer: see its log"
                                  : "no agent listens there: start the job with `cairn run`, or "
                                    "start cairnd");
                if (reterr)
                        reterr->system_code = error_number;
                return CAIRN_ERR_UNREACHABLE;
        }
        (void) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof none);
        *ret_socket = TAKE_FD(fd);
        return 0;
}

/* ---- memfds ---- */

int wire_memfd_create(const char *name, uint64_t bytes, int *ret_fd, struct cairn_error *reterr) {
        if (bytes > INT64_MAX)
                return error_set(reterr, CAIRN_ERR_API, "create memory", name, "%llu bytes",
                                 (unsigned long long) bytes);
        _cleanup_close_ int fd =
                memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
        if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
                fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return error_set_errno(reterr, errno, "create memory", name);
        if (ftruncate(fd, (off_t) bytes) < 0)
                return error_set_errno(reterr, errno, "size memory", name);
        TRY(wire_memfd_seal(fd, F_SEAL_SHRINK | F_SEAL_GROW, reterr));
        *ret_fd = TAKE_FD(fd);
        return 0;
}

int wire_memfd_seal(int fd, int seals, struct cairn_error *reterr) {
        int present = fcntl(fd, F_GET_SEALS);

        if (present >= 0 && (present & seals) == seals)
                return 0;
        if (fcntl(fd, F_ADD_SEALS, seals) < 0)
                return error_set_errno(reterr, errno, "seal memory", "memfd");
        return 0;
}

int wire_memfd_check(int fd, int seals, uint64_t bytes_min, uint64_t bytes_max, uint64_t *ret_bytes,
                     struct cairn_error *reterr) {
        const char *operation = "check received memory";
        struct stat st;
        int present = fcntl(fd, F_GET_SEALS);

        if (present < 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "the descriptor is no memory that can be sealed");
        if ((present & seals) != seals)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "seals %#x, but %#x are needed: without them the other side could "
                                 "take the memory away while it is read",
                                 (unsigned) present, (unsigned) seals);
        if (fstat(fd, &st) < 0)
                return error_set_errno(reterr, errno, operation, "memfd");
        if (st.st_size < 0 || (uint64_t) st.st_size < bytes_min ||
            (uint64_t) st.st_size > bytes_max)
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "",
                                 "%lld bytes, but %llu to %llu are allowed", (long long) st.st_size,
                                 (unsigned long long) bytes_min, (unsigned long long) bytes_max);
        *ret_bytes = (uint64_t) st.st_size;
        return 0;
}
