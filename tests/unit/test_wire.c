/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/wire.h"
#include "tests/test.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static int pair[2];
static struct arena arena;

static int setup(void **state) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        arena_init(&arena, MiB);
        return 0;
}

static int teardown(void **state) {
        arena_done(&arena);
        (void) close(pair[0]);
        (void) close(pair[1]);
        return 0;
}

static size_t open_fds(void) {
        DIR *d = opendir("/proc/self/fd");
        size_t count = 0;

        assert_non_null(d);
        while (readdir(d))
                count++;
        assert_int_equal(closedir(d), 0);
        return count;
}

static void fill_hello(Cairn__Control__Envelope *e, Cairn__Control__Hello *hello) {
        cairn__control__envelope__init(e);
        cairn__control__hello__init(hello);
        hello->run.data = (uint8_t *) "gpt";
        hello->run.len = 3;
        hello->rank = 3;
        e->id = 42;
        e->body_case = CAIRN__CONTROL__ENVELOPE__BODY_HELLO;
        e->hello = hello;
}

static int send_hello(const int *fds, size_t count) {
        Cairn__Control__Envelope e;
        Cairn__Control__Hello hello;

        fill_hello(&e, &hello);
        return wire_send(pair[0], &e, fds, count, clock_now(&clock_system) + NSEC_PER_SEC, NULL);
}

static int receive(struct wire_fds *fds, Cairn__Control__Envelope **ret) {
        return wire_receive(pair[1], &arena, ret, fds, clock_now(&clock_system) + NSEC_PER_SEC,
                            NULL);
}

static void test_round_trip(void **state) {
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e;
        int sent[WIRE_FDS_MAX];

        for (size_t i = 0; i < WIRE_FDS_MAX; i++)
                sent[i] = pair[0];
        size_t before = open_fds();
        for (size_t count = 0; count <= WIRE_FDS_MAX; count += 8) {
                assert_int_equal(send_hello(sent, count), 0);
                assert_int_equal(receive(&fds, &e), 0);
                assert_int_equal(e->id, 42);
                assert_int_equal(e->body_case, CAIRN__CONTROL__ENVELOPE__BODY_HELLO);
                assert_int_equal(e->hello->rank, 3);
                assert_memory_equal(e->hello->run.data, "gpt", 3);
                assert_int_equal(fds.count, count);
                assert_int_equal(wire_fds_take(&fds, count), -1);
                if (count > 0) {
                        int fd = wire_fds_take(&fds, 0);
                        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
                        assert_int_equal(close(fd), 0);
                }
                wire_fds_done(&fds);
                assert_int_equal(open_fds(), before);
        }
        assert_int_equal(send_hello(sent, WIRE_FDS_MAX + 1), CAIRN_ERR_API);
}

static void test_deadlines_and_ends(void **state) {
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e, big;
        Cairn__Control__Hello hello;
        static uint8_t text[100000];

        assert_int_equal(wire_receive(pair[1], &arena, &e, &fds, 0, NULL), CAIRN_ERR_BUSY);
        uint64_t soon = clock_now(&clock_system) + 20 * NSEC_PER_MSEC;
        assert_int_equal(wire_receive(pair[1], &arena, &e, &fds, soon, NULL), CAIRN_ERR_TIMEOUT);
        assert_true(clock_now(&clock_system) >= soon);

        /* A receiver that does not read makes the sender busy, and never blocks it. */
        fill_hello(&big, &hello);
        hello.software = (ProtobufCBinaryData){.len = sizeof text, .data = text};
        int r = 0;
        for (int i = 0; i < 1000 && r == 0; i++)
                r = wire_send(pair[0], &big, NULL, 0, 0, NULL);
        assert_int_equal(r, CAIRN_ERR_BUSY);
        soon = clock_now(&clock_system) + 20 * NSEC_PER_MSEC;
        assert_int_equal(wire_send(pair[0], &big, NULL, 0, soon, NULL), CAIRN_ERR_TIMEOUT);
        hello.software.len = 2 * WIRE_MESSAGE_BYTES_MAX;
        hello.software.data = calloc(1, hello.software.len);
        assert_int_equal(wire_send(pair[0], &big, NULL, 0, 0, NULL), CAIRN_ERR_API);
        free(hello.software.data);
}

static void test_peer_gone(void **state) {
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e;

        assert_int_equal(close(pair[1]), 0);
        assert_int_equal(send_hello(NULL, 0), CAIRN_ERR_PEER); /* and no SIGPIPE */
        assert_int_equal(wire_receive(pair[0], &arena, &e, &fds, 0, NULL), CAIRN_ERR_PEER);
        pair[1] = dup(pair[0]);
}

static void send_raw(const void *bytes, size_t count, const int *fds, size_t fd_count) {
        char control[CMSG_SPACE(64 * sizeof(int))] = {0};
        struct iovec part = {.iov_base = (void *) bytes, .iov_len = count};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

        if (fd_count) {
                message.msg_control = control;
                message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
                struct cmsghdr *c = CMSG_FIRSTHDR(&message);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
                memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
        }
        assert_true(sendmsg(pair[0], &message, 0) >= 0);
}

/* Broken packets are refused, and leave no descriptor behind. */
static void test_broken(void **state) {
        unsigned char packet[64] = "CRN1", copy[64], *big = calloc(1, 180000);
        int sent[32];
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e;
        size_t before = open_fds();

        assert_non_null(big);
        for (size_t i = 0; i < 32; i++)
                sent[i] = pair[0];
        packet[16] = 0x08; /* id = 42 */
        packet[17] = 42;
        store_le32(packet + 4, 2);
        store_le32(packet + 8, crc32c(0, packet + 16, 2));
        send_raw(packet, 18, NULL, 0);
        assert_int_equal(receive(&fds, &e), 0);
        assert_int_equal(e->id, 42);

        for (size_t i = 0; i < 18; i++) { /* each byte matters */
                memcpy(copy, packet, sizeof copy);
                copy[i] ^= 0x40;
                send_raw(copy, 18, sent, 1);
                assert_int_equal(receive(&fds, &e), CAIRN_ERR_CORRUPT);
        }
        send_raw(packet, 17, sent, 1);
        assert_int_equal(receive(&fds, &e), CAIRN_ERR_CORRUPT);
        send_raw(packet, 1, sent, 1);
        assert_int_equal(receive(&fds, &e), CAIRN_ERR_CORRUPT);
        memcpy(copy, packet, sizeof copy);
        store_le32(copy + 12, 32);
        send_raw(copy, 18, sent, 32); /* more than a message may carry */
        assert_int_equal(receive(&fds, &e), CAIRN_ERR_CORRUPT);
        send_raw(big, 180000, sent, 2);
        assert_int_equal(receive(&fds, &e), CAIRN_ERR_CORRUPT);
        packet[16] = 0x0a; /* a field of the wrong wire type, cut short */
        store_le32(packet + 8, crc32c(0, packet + 16, 2));
        send_raw(packet, 18, NULL, 0);
        assert_int_equal(receive(&fds, &e), CAIRN_ERR_CORRUPT);
        assert_int_equal(fds.count, 0);
        assert_int_equal(open_fds(), before);
        free(big);
}

/* A message that came whole to a process without room for its descriptors can still be answered. */
static void test_no_room_for_descriptors(void **state) {
        struct rlimit limit, small;
        Cairn__Control__Envelope *e;
        struct cairn_error error = CAIRN_ERROR_INIT;
        struct wire_fds fds;
        int three[3] = {0, 1, 2};

        assert_int_equal(send_hello(three, 3), 0);
        assert_int_equal(send_hello(NULL, 0), 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        small = limit;
        small.rlim_cur = (rlim_t) dup(0) + 1; /* one more than there are */
        (void) close((int) small.rlim_cur - 1);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
        int r = wire_receive(pair[1], &arena, &e, &fds, clock_now(&clock_system) + NSEC_PER_SEC,
                             &error);
        int next = dup(0); /* nothing of it stays open */
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
        assert_int_equal(r, CAIRN_ERR_NOMEM);
        assert_int_equal(next, (int) small.rlim_cur - 1);
        (void) close(next);
        assert_non_null(e);
        assert_int_equal(e->id, 42);
        assert_int_equal(fds.count, 0);
        assert_non_null(strstr(error.message, "3 descriptors came"));
        assert_non_null(strstr(error.message, "room for 1: raise it"));
        assert_int_equal(receive(&fds, &e), 0); /* what follows is whole */
}

static void test_small_arena(void **state) {
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e;

        arena_done(&arena);
        arena_init(&arena, 16);
        assert_int_equal(send_hello(NULL, 0), 0);
        assert_int_equal(receive(&fds, &e), CAIRN_ERR_CORRUPT);
}

static void test_failure(void **state) {
        struct cairn_error e = {.status = CAIRN_ERR_IO,
                                .system_code = 5,
                                .offset = 4096,
                                .operation = "write data",
                                .object = "rank-00000.data",
                                .message = "the disk failed"},
                           back;
        Cairn__Control__Failure f;
        char long_text[2000];

        wire_failure_fill(&f, &e);
        wire_failure_read(&f, &back);
        assert_memory_equal(&e, &back, sizeof e);
        memset(long_text, 'x', sizeof long_text);
        f.message = (ProtobufCBinaryData){.len = sizeof long_text, .data = (uint8_t *) long_text};
        f.object = (ProtobufCBinaryData){0};
        f.status = 0;
        wire_failure_read(&f, &back);
        assert_int_equal(strlen(back.message), sizeof back.message - 1);
        assert_string_equal(back.object, "");
        assert_int_equal(back.status, CAIRN_ERR_PEER); /* never success */
}

static void test_paths(void **state) {
        char folder[200], path[256], expected[256];
        struct stat st;
        int fd = test_folder(folder, sizeof folder);

        assert_int_equal(close(fd), 0);
        assert_int_equal(setenv("CAIRN_SOCKET", "/some/where.sock", 1), 0);
        assert_int_equal(wire_socket_path("gpt", path, sizeof path, NULL), 0);
        assert_string_equal(path, "/some/where.sock");
        assert_int_equal(unsetenv("CAIRN_SOCKET"), 0);
        if (access("/run/cairn/cairnd.sock", F_OK) == 0)
                return;
        assert_int_equal(setenv("XDG_RUNTIME_DIR", folder, 1), 0);
        assert_int_equal(wire_socket_path("gpt", path, sizeof path, NULL), 0);
        (void) snprintf(expected, sizeof expected, "%s/cairn/gpt.sock", folder);
        assert_string_equal(path, expected);
        assert_true(wire_socket_path("../x", path, sizeof path, NULL) < 0);
        assert_true(wire_socket_path(NULL, path, sizeof path, NULL) < 0);

        assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
        assert_int_equal(setenv("TMPDIR", folder, 1), 0);
        assert_int_equal(wire_socket_path("gpt", path, sizeof path, NULL), 0);
        (void) snprintf(expected, sizeof expected, "%s/cairn-%u", folder, (unsigned) geteuid());
        assert_int_equal(stat(expected, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        assert_int_equal(chmod(expected, 0755), 0); /* others could listen there */
        assert_int_equal(wire_socket_path("gpt", path, sizeof path, NULL), CAIRN_ERR_PERMISSION);
}

static void test_connect(void **state) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        char folder[64];
        struct cairn_error e = CAIRN_ERROR_INIT;
        int fd, peer = -1;

        (void) close(test_folder(folder, sizeof folder));
        (void) snprintf(address.sun_path, sizeof address.sun_path, "%s/s", folder);
        assert_int_equal(wire_connect(address.sun_path, &peer, &e), CAIRN_ERR_UNREACHABLE);
        assert_string_equal(e.object, address.sun_path);
        assert_true(e.message[0] != 0);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fd, (struct sockaddr *) &address, sizeof address), 0);
        assert_int_equal(listen(fd, 1), 0);
        assert_int_equal(wire_connect(address.sun_path, &peer, NULL), 0);
        assert_int_equal(close(peer), 0);
        assert_int_equal(close(fd), 0);
        assert_int_equal(wire_connect(address.sun_path, &peer, NULL), CAIRN_ERR_UNREACHABLE);
        char path[200];
        memset(path, 'p', sizeof path - 1);
        path[sizeof path - 1] = '\0';
        assert_int_equal(wire_connect(path, &peer, NULL), CAIRN_ERR_API);
}

static void test_memfd(void **state) {
        int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL, fd = -1;
        uint64_t bytes;

        assert_int_equal(wire_memfd_create("test", 5000, &fd, NULL), 0);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        assert_int_equal(pwrite(fd, "x", 1, 4999), 1);
        assert_true(ftruncate(fd, 6000) < 0);
        assert_int_equal(wire_memfd_check(fd, seals, 1, 9999, &bytes, NULL), CAIRN_ERR_CORRUPT);
        assert_int_equal(wire_memfd_seal(fd, seals, NULL), 0);
        assert_int_equal(wire_memfd_seal(fd, seals, NULL), 0);
        assert_true(pwrite(fd, "x", 1, 0) < 0);
        assert_int_equal(wire_memfd_check(fd, seals, 5000, 5000, &bytes, NULL), 0);
        assert_int_equal(bytes, 5000);
        assert_int_equal(wire_memfd_check(fd, seals, 5001, 9999, &bytes, NULL), CAIRN_ERR_CORRUPT);
        assert_int_equal(wire_memfd_check(fd, seals, 0, 4999, &bytes, NULL), CAIRN_ERR_CORRUPT);
        assert_int_equal(close(fd), 0);
        assert_int_equal(wire_memfd_check(pair[0], 0, 0, 1, &bytes, NULL), CAIRN_ERR_CORRUPT);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_round_trip),  TEST(test_deadlines_and_ends),
                TEST(test_peer_gone),   TEST(test_broken),
                TEST(test_small_arena), TEST(test_no_room_for_descriptors),
                TEST(test_failure),     TEST(test_paths),
                TEST(test_connect),     TEST(test_memfd),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
