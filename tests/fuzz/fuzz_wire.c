/* SPDX-License-Identifier: Apache-2.0
 *
 * One packet on a control socket. The first byte says how many descriptors travel along (0 to 31)
 * and whether the packet's header is put right; then the packet, or the Envelope alone.
 */
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/wire.h"
#include "tests/fuzz/fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* "CRN1" */
enum { MAGIC = 0x314e5243, PACKET_HEADER = 16, FDS_SENT_MAX = 31, ARENA_BYTES = 8 << 20 };

static int open_count(void) {
        int n = 0;
        for (int fd = 0; fd < 128; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static bool send_raw(int socket, const void *packet, size_t bytes, size_t fd_count) {
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_SENT_MAX * sizeof(int))] = {0};
        struct iovec part = {.iov_base = (void *) (uintptr_t) packet, .iov_len = bytes};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

        if (fd_count > 0) {
                message.msg_control = control;
                message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&message);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
                for (size_t i = 0; i < fd_count; i++)
                        memcpy(CMSG_DATA(c) + i * sizeof socket, &socket, sizeof socket);
        }
        return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t) bytes;
}

static void check_envelope(const Cairn__Control__Envelope *e) {
        struct cairn_error said;
        size_t bytes = cairn__control__envelope__get_packed_size(e);
        uint8_t *packed = malloc(bytes ? bytes : 1);

        FUZZ_CHECK(packed && cairn__control__envelope__pack(e, packed) == bytes);
        Cairn__Control__Envelope *again = cairn__control__envelope__unpack(NULL, bytes, packed);
        /* protobuf-c keeps an unknown field of number 0 but does not read it back. */
        FUZZ_CHECK(!again || (again->id == e->id && again->body_case == e->body_case));
        cairn__control__envelope__free_unpacked(again, NULL);
        free(packed);
        if (e->failure) {
                wire_failure_read(e->failure, &said);
                FUZZ_CHECK(said.status < 0);
                FUZZ_CHECK(memchr(said.message, 0, sizeof said.message) &&
                           memchr(said.object, 0, sizeof said.object) &&
                           memchr(said.operation, 0, sizeof said.operation));
        }
}

static void receive(int socket, size_t fd_count, size_t bytes) {
        Cairn__Control__Envelope *e = NULL;
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct wire_fds fds = WIRE_FDS_INIT;
        struct arena arena;

        arena_init(&arena, ARENA_BYTES);
        int r = wire_receive(socket, &arena, &e, &fds, 0, &error);
        FUZZ_CHECK(arena.bytes_used <= ARENA_BYTES);
        if (r < 0) {
                fuzz_check_error(r, &error);
                FUZZ_CHECK(fds.count == 0);
        } else {
                FUZZ_CHECK(fds.count == fd_count && bytes >= PACKET_HEADER);
                check_envelope(e);
                int fd = wire_fds_take(&fds, fd_count / 2);
                FUZZ_CHECK((fd >= 0) == (fd_count > 0));
                if (fd >= 0) {
                        FUZZ_CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
                        (void) close(fd);
                }
        }
        wire_fds_done(&fds);
        arena_done(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        uint8_t flags = fuzz_u8(&in);
        size_t fd_count = flags & FDS_SENT_MAX, header = flags & 0x80 ? PACKET_HEADER : 0;
        size_t packet_bytes = header + in.left;
        uint8_t *packet = malloc(packet_bytes + 1);
        int pair[2], before = open_count();

        FUZZ_CHECK(packet && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        if (in.left)
                memcpy(packet + header, in.bytes, in.left);
        if (header) {
                store_le32(packet, MAGIC);
                store_le32(packet + 4, (uint32_t) in.left);
                store_le32(packet + 8, crc32c(0, packet + header, in.left));
                store_le32(packet + 12, (uint32_t) fd_count);
        }
        if (packet_bytes > 0 && send_raw(pair[0], packet, packet_bytes, fd_count))
                receive(pair[1], fd_count, packet_bytes);
        (void) close(pair[0]);
        (void) close(pair[1]);
        FUZZ_CHECK(open_count() == before);
        free(packet);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        if (count < 1 || max < 2 || seed % 16 == 0)
                return LLVMFuzzerMutate(bytes, count, max);
        if (!(bytes[0] & 0x80))
                return fuzz_mutate_plain(bytes, count, max, seed);
        return 1 + fuzz_mutate_message(bytes + 1, count - 1, max - 1, seed / 16,
                                       &cairn__control__envelope__descriptor);
}
