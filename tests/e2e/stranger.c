/* SPDX-License-Identifier: Apache-2.0
 *
 * stranger SOCKET RUN SECONDS WHAT - what somebody else on this machine may try on an agent's
 * socket, again and again for so many seconds. Prints what came of it, "connected N, answered N".
 *
 *     flood     connects without pause and keeps as many connections as it may have
 *     silent    three hundred connections that never say a word, made again when they end
 *     garbage   packets of any size whose length, checksum or content is wrong
 *     fds       packets with 0 to 253 descriptors, announced rightly or wrongly
 *     mute      asks for the status thousands of times and reads no answer
 *     trainer   says to be a trainer or a part of one: of this run, of others, with made-up secrets
 *     runner    says to be a `cairn run` that tells how ranks ended, that all ends, that all begins
 *
 * Exit 0; 77: the socket cannot even be connected to (it prints why).
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "format/crc32c.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

enum { KEPT_MAX = 700, SILENT = 300, FDS_MAX = 253, PACKET_MAX = 180 * 1024, MUTE_REQUESTS = 400 };

struct stranger {
        const char *socket, *run;
        uint64_t until_ns, random;
        uint64_t connected, answered;
        struct arena arena;
        unsigned char packet[PACKET_MAX];
};

static uint64_t any(struct stranger *s, uint64_t below) {
        s->random ^= s->random << 13;
        s->random ^= s->random >> 7;
        s->random ^= s->random << 17;
        return s->random % below;
}

static bool goes_on(const struct stranger *s) {
        return clock_now(&clock_system) < s->until_ns;
}

static int approach(struct stranger *s) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        (void) snprintf(address.sun_path, sizeof address.sun_path, "%s", s->socket);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const struct timeval limit = {.tv_usec = 100000};
        if (fd < 0)
                return -1;
        (void) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, (const struct sockaddr *) &address, sizeof address) == 0) {
                s->connected++;
                return fd;
        }
        int error_number = errno;
        (void) close(fd);
        errno = error_number;
        return -1;
}

/* ---- packets ---- */

/* Payload bytes are in place; the header is right unless `wrong` is. */
static void frame(struct stranger *s, size_t payload, uint32_t fd_count, bool wrong) {
        memcpy(s->packet, "CRN1", 4); /* NOLINT(bugprone-not-null-terminated-result) */
        store_le32(s->packet + 4, (uint32_t) payload);
        store_le32(s->packet + 8, crc32c(0, s->packet + 16, payload));
        store_le32(s->packet + 12, fd_count);
        if (wrong)
                s->packet[any(s, 16)] ^= (unsigned char) (1 + any(s, 255));
}

static int send_raw(int fd, const void *bytes, size_t count, const int *fds, size_t fd_count) {
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(FDS_MAX * sizeof(int))] = {0};
        struct iovec part = {.iov_base = (void *) (uintptr_t) bytes, .iov_len = count};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (fd_count > 0) {
                message.msg_control = control;
                message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&message);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
                memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
        }
        return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

static int greet(int fd, unsigned kind, const char *run) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
        h.protocol = WIRE_PROTOCOL;
        h.kind = (Cairn__Control__PeerKind) kind;
        h.run = (ProtobufCBinaryData){strlen(run), (uint8_t *) (uintptr_t) run};
        e.id = 1;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_HELLO;
        e.hello = &h;
        return wire_send(fd, &e, NULL, 0, 0, NULL);
}

/* What came back; a failure that is not a refusal of this kind of thing would be a find. */
static void listen_for(struct stranger *s, int fd, uint64_t ns) {
        uint64_t until_ns = clock_now(&clock_system) + ns;
        for (;;) {
                struct wire_fds fds = WIRE_FDS_INIT;
                Cairn__Control__Envelope *e;
                arena_clear(&s->arena);
                if (wire_receive(fd, &s->arena, &e, &fds, until_ns, NULL) < 0)
                        return;
                wire_fds_done(&fds);
                s->answered++;
        }
}

/* ---- what is tried ---- */

/* `count` connections at once; those that ended are made again. */
static void crowd(struct stranger *s, size_t count, bool renew) {
        static struct pollfd kept[KEPT_MAX];
        for (size_t i = 0; i < count; i++)
                kept[i].fd = -1;
        while (goes_on(s))
                for (size_t i = 0; i < count && goes_on(s); i++) {
                        kept[i].events = POLLIN;
                        if (kept[i].fd >= 0 && (renew || poll(&kept[i], 1, 0) > 0)) {
                                (void) close(kept[i].fd);
                                kept[i].fd = -1;
                        }
                        if (kept[i].fd < 0)
                                kept[i].fd = approach(s);
                }
        for (size_t i = 0; i < count; i++)
                if (kept[i].fd >= 0)
                        (void) close(kept[i].fd);
}

static void fill_random(struct stranger *s, size_t bytes) {
        for (size_t i = 0; i < bytes; i++)
                s->packet[16 + i] = (unsigned char) any(s, 256);
}

/* An Envelope whose fields are cut, repeated or overwritten: close to what is understood. */
static size_t fill_nearly(struct stranger *s) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__SnapshotRequest m = CAIRN__CONTROL__SNAPSHOT_REQUEST__INIT;
        m.run = (ProtobufCBinaryData){strlen(s->run), (uint8_t *) (uintptr_t) s->run};
        m.tag = (ProtobufCBinaryData){6, (uint8_t *) "\033[2J%n"};
        m.timeout_ns = any(s, 2) ? UINT64_MAX : 1;
        e.id = any(s, 3);
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_SNAPSHOT_REQUEST;
        e.snapshot_request = &m;
        size_t bytes = cairn__control__envelope__pack(&e, s->packet + 16);
        for (uint64_t i = any(s, 4); i > 0; i--)
                s->packet[16 + any(s, bytes)] = (unsigned char) any(s, 256);
        return bytes;
}

static void garbage(struct stranger *s) {
        while (goes_on(s)) {
                _cleanup_close_ int fd = approach(s);
                if (fd < 0)
                        continue;
                bool greeted = any(s, 2) && greet(fd, (unsigned) any(s, 5), s->run) == 0;
                for (int i = 0; i < 8; i++) {
                        size_t payload = any(s, 3) ? any(s, 64) : any(s, PACKET_MAX - 16);
                        if (greeted && any(s, 2))
                                payload = fill_nearly(s);
                        else
                                fill_random(s, payload < 256 ? payload : 256);
                        frame(s, payload, (uint32_t) (any(s, 4) ? 0 : any(s, 300)), any(s, 4) == 0);
                        /* Also less than was announced, down to nothing. */
                        size_t bytes = any(s, 4) ? payload + 16 : any(s, payload + 17);
                        if (send_raw(fd, s->packet, bytes, NULL, 0) < 0)
                                break;
                }
                listen_for(s, fd, 2 * NSEC_PER_MSEC);
        }
}

static void many_fds(struct stranger *s) {
        int fds[FDS_MAX], pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return;
        while (goes_on(s)) {
                _cleanup_close_ int fd = approach(s);
                _cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
                if (fd < 0)
                        continue;
                for (size_t i = 0; i < FDS_MAX; i++)
                        fds[i] = i % 3 == 0 ? null : i % 3 == 1 ? pair[0] : fd;
                bool greeted =
                        any(s, 2) && greet(fd, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, "") == 0;
                for (int i = 0; i < 20; i++) {
                        size_t count = any(s, 3) ? any(s, 18) : any(s, FDS_MAX + 1);
                        size_t payload = greeted ? fill_nearly(s) : any(s, 40);
                        frame(s, payload, (uint32_t) (any(s, 2) ? count : any(s, 20)), false);
                        if (send_raw(fd, s->packet, payload + 16, fds, count) < 0)
                                break;
                }
                listen_for(s, fd, NSEC_PER_MSEC);
        }
        (void) close(pair[0]);
        (void) close(pair[1]);
}

static void mute(struct stranger *s) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__StatusRequest m = CAIRN__CONTROL__STATUS_REQUEST__INIT;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_STATUS_REQUEST;
        e.status_request = &m;
        while (goes_on(s)) {
                _cleanup_close_ int fd = approach(s);
                if (fd < 0 || greet(fd, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, "") < 0)
                        continue;
                for (e.id = 2; e.id < MUTE_REQUESTS && goes_on(s); e.id++)
                        if (wire_send(fd, &e, NULL, 0,
                                      clock_now(&clock_system) + 20 * NSEC_PER_MSEC, NULL) < 0)
                                break;
        }
}

/* Sends an Envelope, listens a while. */
static void try(struct stranger *s, int fd, Cairn__Control__Envelope *e, int body, void *message,
                const int *fds, size_t fd_count) {
        e->id++;
        e->body_case = (Cairn__Control__Envelope__BodyCase) body;
        e->hello = message; /* of a union */
        if (wire_send(fd, e, fds, fd_count, clock_now(&clock_system) + 20 * NSEC_PER_MSEC, NULL) ==
            0)
                listen_for(s, fd, 5 * NSEC_PER_MSEC);
}
#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name

static void as_trainer(struct stranger *s) {
        unsigned char secret[16] = {0};
        while (goes_on(s)) {
                _cleanup_close_ int fd = approach(s);
                _cleanup_close_ int null = open("/dev/null", O_RDWR | O_CLOEXEC);
                Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
                Cairn__Control__Hello h = CAIRN__CONTROL__HELLO__INIT;
                Cairn__Control__Seal seal = CAIRN__CONTROL__SEAL__INIT;
                Cairn__Control__Finish finish = CAIRN__CONTROL__FINISH__INIT;
                const char *run = any(s, 3) ? s->run : "another";
                int fds[2] = {null, null};
                if (fd < 0)
                        continue;
                h.protocol = WIRE_PROTOCOL;
                h.kind = CAIRN__CONTROL__PEER_KIND__PEER_CLIENT;
                h.run = (ProtobufCBinaryData){strlen(run), (uint8_t *) (uintptr_t) run};
                h.rank = (uint32_t) any(s, 2);
                h.session_id = any(s, 4);
                h.generation = any(s, 3);
                h.secret = (ProtobufCBinaryData){any(s, 2) ? 16 : any(s, 17), secret};
                try(s, fd, &e, BODY(HELLO), &h, fds, any(s, 3));
                seal.seal = 1;
                seal.tensor_count = UINT64_MAX;
                seal.bytes = UINT64_MAX;
                try(s, fd, &e, BODY(SEAL), &seal, fds, 2);
                try(s, fd, &e, BODY(FINISH), &finish, NULL, 0);
        }
}

static void as_runner(struct stranger *s) {
        while (goes_on(s)) {
                _cleanup_close_ int fd = approach(s);
                Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
                Cairn__Control__RankExit gone = CAIRN__CONTROL__RANK_EXIT__INIT;
                Cairn__Control__End end = CAIRN__CONTROL__END__INIT;
                Cairn__Control__Start start = CAIRN__CONTROL__START__INIT;
                if (fd < 0 || greet(fd, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER, s->run) < 0)
                        continue;
                e.id = 1;
                gone.run = end.run = start.run =
                        (ProtobufCBinaryData){strlen(s->run), (uint8_t *) (uintptr_t) s->run};
                gone.rank = (uint32_t) any(s, 2);
                gone.wait_status = 9;
                try(s, fd, &e, BODY(RANK_EXIT), &gone, NULL, 0);
                end.reason = (ProtobufCBinaryData){5, (uint8_t *) "\033[2J\n"};
                try(s, fd, &e, BODY(END), &end, NULL, 0);
                const char *store = any(s, 2) ? "/etc" : "relative/../..";
                start.store = (ProtobufCBinaryData){strlen(store), (uint8_t *) (uintptr_t) store};
                start.world = (uint32_t) any(s, 3);
                start.mode = (uint32_t) any(s, 5);
                start.generation = any(s, 3);
                try(s, fd, &e, BODY(START), &start, NULL, 0);
        }
}

int main(int argc, char **argv) {
        static struct stranger s;
        if (argc != 5)
                return 64;
        s = (struct stranger){.socket = argv[1],
                              .run = argv[2],
                              .until_ns = clock_now(&clock_system) +
                                          strtoull(argv[3], NULL, 10) * NSEC_PER_SEC,
                              .random = clock_now(&clock_system) | 1};
        const char *what = argv[4];
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_cur = files.rlim_max;
                (void) setrlimit(RLIMIT_NOFILE, &files);
        }
        arena_init(&s.arena, 4 * MiB);
        _cleanup_close_ int first = approach(&s);
        if (first < 0) {
                printf("cannot connect: %s\n", strerror(errno));
                return 77;
        }
        if (strcmp(what, "flood") == 0)
                crowd(&s, KEPT_MAX, true);
        else if (strcmp(what, "silent") == 0)
                crowd(&s, SILENT, false);
        else if (strcmp(what, "garbage") == 0)
                garbage(&s);
        else if (strcmp(what, "fds") == 0)
                many_fds(&s);
        else if (strcmp(what, "mute") == 0)
                mute(&s);
        else if (strcmp(what, "trainer") == 0)
                as_trainer(&s);
        else if (strcmp(what, "runner") == 0)
                as_runner(&s);
        else
                return 64;
        arena_done(&s.arena);
        printf("connected %" PRIu64 ", answered %" PRIu64 "\n", s.connected, s.answered);
        return 0;
}
