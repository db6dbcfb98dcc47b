/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/ring.h"
#include "base/clock.h"
#include "base/fault.h"
#include "tests/test.h"

#include <errno.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define REGION_BYTES (24 * MiB)

static const struct ring_options variants[] = {
        {.backend = RING_URING},
        {.backend = RING_URING, .without_direct = true},
        {.backend = RING_URING, .without_registration = true},
        {.backend = RING_THREADS},
        {.backend = RING_THREADS, .without_direct = true},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static unsigned char *region;
static int folder_fd;
static char folder[200];

static uint64_t soon(void) {
        return clock_now(&clock_system) + 60 * NSEC_PER_SEC;
}

static int setup(void **state) {
        folder_fd = test_folder(folder, sizeof folder);
        region =
                mmap(NULL, REGION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(region, MAP_FAILED);
        return 0;
}

static int teardown(void **state) {
        (void) munmap(region, REGION_BYTES);
        return close(folder_fd);
}

static int new_file(const char *name) {
        int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0);
        return fd;
}

static void fill(unsigned char *target, uint64_t bytes, uint64_t seed) {
        for (uint64_t i = 0; i < bytes; i++)
                target[i] = (unsigned char) ((i * 2654435761u + seed) >> 7);
}

/* NULL where this machine refuses io_uring. */
static struct ring *open_ring(const struct ring_options *options) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct ring *ring = NULL;

        if (ring_new(options, &ring, &e) < 0) {
                assert_int_equal(options->backend, RING_URING);
                print_message("io_uring is refused here: %s\n", strerror(e.system_code));
                return NULL;
        }
        assert_int_equal(ring_attach(ring, region, REGION_BYTES, NULL), 0);
        return ring;
}

static void push(struct ring *ring, uint64_t file_offset, uint64_t region_offset, uint64_t bytes) {
        struct pollfd p = {.fd = ring_event_fd(ring), .events = POLLIN};
        int r;

        while ((r = ring_push(ring, 0, file_offset, region_offset, bytes)) == CAIRN_ERR_BUSY)
                (void) poll(&p, 1, 10);
        assert_int_equal(r, 0);
}

static void wait_idle(const struct ring *ring) {
        struct pollfd p = {.fd = ring_event_fd(ring), .events = POLLIN};
        uint64_t end = soon();

        while (!ring_idle(ring) && clock_now(&clock_system) < end)
                (void) poll(&p, 1, 10);
        assert_true(ring_idle(ring));
}

static void begin(struct ring *ring, enum ring_direction direction, int fd, bool direct) {
        assert_int_equal(ring_begin(ring, direction, &fd, 1, direct, NULL), 0);
}

/* Every back end leaves the same bytes, and reads them back. */
static void test_round_trip(void **state) {
        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);
                uint64_t bytes = REGION_BYTES - 4096;
                struct stat st;
                int fd = new_file("data");

                if (!ring)
                        continue;
                fill(region, bytes, 7);
                begin(ring, RING_WRITE, fd, true);
                for (uint64_t at = 0; at < bytes; at += 5 * MiB)
                        push(ring, at, at, bytes - at < 5 * MiB ? bytes - at : 5 * MiB);
                wait_idle(ring);
                assert_int_equal(ring_bytes_done(ring), bytes);
                assert_int_equal(ring_sync(ring, 0), 0);
                assert_int_equal(ring_end(ring, soon(), NULL), 0);
                assert_int_equal(fstat(fd, &st), 0);
                assert_int_equal(st.st_size, bytes);

                memset(region, 0, REGION_BYTES);
                begin(ring, RING_READ, fd, true);
                push(ring, 0, 0, bytes);
                wait_idle(ring);
                assert_int_equal(ring_end(ring, soon(), NULL), 0);
                for (uint64_t at = 0; at < bytes; at += 4099)
                        assert_int_equal(region[at], (unsigned char) ((at * 2654435761u + 7) >> 7));
                print_message("%s direct %d registered %d: alignment %u, %s\n",
                              ring_backend_name(ring), !variants[i].without_direct,
                              !variants[i].without_registration, ring_alignment(ring, 0),
                              ring_warning(ring) ? ring_warning(ring) : "no warning");
                ring_free(ring);
                (void) close(fd);
        }
}

/* Field case B38: sizes around a block; nothing is lost, nothing stale follows. */
static void test_odd_sizes(void **state) {
        static const uint64_t sizes[] = {1,    511,  512,     513,           4095,
                                         4096, 4097, MiB + 1, 2 * MiB + 4097};

        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);
                uint64_t at = 0;
                struct stat st;
                int fd = new_file("odd");
                unsigned char *back = malloc(8 * MiB);

                if (!ring || !back)
                        continue;
                fill(region, 8 * MiB, 3);
                begin(ring, RING_WRITE, fd, true);
                for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; at += sizes[j++])
                        push(ring, at, at, sizes[j]);
                assert_int_equal(ring_end(ring, soon(), NULL), 0);
                assert_int_equal(fstat(fd, &st), 0);
                assert_int_equal(st.st_size, at);
                (void) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
                assert_int_equal(pread(fd, back, 8 * MiB, 0), at);
                assert_memory_equal(back, region, at);
                /* The fall-back is told once. */
                if (!variants[i].without_direct)
                        assert_non_null(ring_warning(ring));
                free(back);
                ring_free(ring);
                (void) close(fd);
        }
}

/* Space first, then bytes from anywhere, of any length. */
static void test_reserved_space_and_other_memory(void **state) {
        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);
                const uint64_t bytes = 5 * MiB + 77;
                unsigned char *other = malloc(bytes), *back = malloc(bytes);
                struct stat st;
                int fd = new_file("reserved");

                if (!ring || !other || !back)
                        continue;
                fill(other, bytes, 11);
                begin(ring, RING_WRITE, fd, false);
                assert_int_equal(ring_reserve(ring, 0, 8 * MiB), 0);
                wait_idle(ring);
                assert_int_equal(fstat(fd, &st), 0);
                assert_int_equal(st.st_size, 8 * MiB);
                assert_int_equal(ring_push_memory(ring, 0, 4096, other, bytes), 0);
                wait_idle(ring);
                assert_int_equal(ring_sync(ring, 0), 0);
                assert_int_equal(ring_end(ring, soon(), NULL), 0);
                assert_int_equal(pread(fd, back, bytes, 4096), bytes);
                assert_memory_equal(back, other, bytes);
                begin(ring, RING_READ, fd, false);
                assert_int_equal(ring_push_memory(ring, 0, 0, other, 1), CAIRN_ERR_API);
                assert_int_equal(ring_end(ring, soon(), NULL), 0);
                ring_free(ring);
                free(other);
                free(back);
                (void) close(fd);
        }
}

/* No room: found before a byte is written. */
static void reserve_beyond_limit(void *argument) {
        struct rlimit limit = {MiB, MiB};
        struct ring *ring;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int fds[2] = {new_file("first"), new_file("second")};

        (void) signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) < 0 || ring_new(argument, &ring, &e) < 0 ||
            ring_begin(ring, RING_WRITE, fds, 2, 0, NULL) < 0 || ring_reserve(ring, 1, 2 * MiB) < 0)
                _exit(2);
        int r = ring_end(ring, soon(), &e);
        _exit(r < 0 && e.system_code == EFBIG && strcmp(e.operation, "reserve space") == 0 &&
                              ring_error_file(ring) == 1
                      ? 0
                      : 3);
}

static void test_no_space_to_reserve(void **state) {
        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);

                if (!ring)
                        continue;
                ring_free(ring);
                struct ring_options options = variants[i];
                assert_int_equal(test_in_child(reserve_beyond_limit, &options), 0);
        }
}

/* A lock is held as long as anybody has the file open: so are the blocks of a deleted one. */
static void test_files_are_let_go_of(void **state) {
        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);
                int fd = new_file("held"), again = new_file("held");
                uint64_t end = soon();

                if (!ring)
                        continue;
                assert_int_equal(flock(fd, LOCK_EX), 0);
                begin(ring, RING_WRITE, fd, true);
                push(ring, 0, 0, MiB);
                assert_int_equal(ring_end(ring, soon(), NULL), 0);
                ring_close(ring, fd);
                while (flock(again, LOCK_EX | LOCK_NB) < 0) {
                        assert_int_equal(errno, EWOULDBLOCK);
                        assert_true(clock_now(&clock_system) < end);
                        clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
                }
                ring_free(ring);
                (void) close(again);
        }
}

static void test_wrong_calls(void **state) {
        struct ring *ring = open_ring(&(struct ring_options){.backend = RING_AUTO});
        int fd = new_file("data"), many[RING_FILES_MAX + 1] = {0};

        assert_int_equal(ring_push(ring, 0, 0, 0, 1), CAIRN_ERR_API); /* no job */
        assert_int_equal(ring_end(ring, soon(), NULL), CAIRN_ERR_API);
        assert_int_equal(ring_begin(ring, RING_WRITE, many, RING_FILES_MAX + 1, 0, NULL),
                         CAIRN_ERR_API);
        assert_int_equal(ring_begin(ring, RING_WRITE, many, 0, 0, NULL), CAIRN_ERR_API);
        begin(ring, RING_WRITE, fd, false);
        assert_int_equal(ring_begin(ring, RING_WRITE, &fd, 1, 0, NULL), CAIRN_ERR_API);
        assert_int_equal(ring_attach(ring, region, REGION_BYTES, NULL), CAIRN_ERR_API);
        assert_int_equal(ring_push(ring, 1, 0, 0, 1), CAIRN_ERR_API);
        assert_int_equal(ring_push(ring, 0, 0, REGION_BYTES, 1), CAIRN_ERR_API);
        assert_int_equal(ring_push(ring, 0, 0, 1, UINT64_MAX), CAIRN_ERR_API);
        assert_int_equal(ring_push(ring, 0, 0, 0, 0), 0);
        assert_int_equal(ring_sync(ring, 1), CAIRN_ERR_API);
        assert_int_equal(ring_reserve(ring, 1, 1), CAIRN_ERR_API);
        assert_int_equal(ring_push_memory(ring, 1, 0, region, 1), CAIRN_ERR_API);
        assert_int_equal(ring_end(ring, soon(), NULL), 0);
        ring_free(ring);
        ring_free(NULL);
        (void) close(fd);
}

/* The first error dooms the job and names offset and reason; the next job starts clean. */
static void test_errors(void **state) {
        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);
                struct cairn_error e = CAIRN_ERROR_INIT;
                int full = open("/dev/full", O_RDWR | O_CLOEXEC), fd = new_file("short");
                int read_only = openat(folder_fd, "short", O_RDONLY | O_CLOEXEC);

                if (!ring)
                        continue;
                begin(ring, RING_WRITE, full, false);
                for (int j = 0; j < 8; j++)
                        push(ring, (uint64_t) j * MiB, 0, MiB);
                assert_int_equal(ring_end(ring, soon(), &e), CAIRN_ERR_NOSPACE);
                assert_int_equal(e.system_code, ENOSPC);
                assert_true(ring_failed(ring));

                begin(ring, RING_WRITE, read_only, false);
                push(ring, 4096, 0, 4096);
                assert_true(ring_end(ring, soon(), &e) < 0);
                assert_int_equal(e.system_code, EBADF);
                assert_int_equal(e.offset, 4096);

                assert_int_equal(ftruncate(fd, 8192), 0);
                begin(ring, RING_READ, fd, true);
                push(ring, 0, 0, 16384); /* beyond the end */
                assert_int_equal(ring_end(ring, soon(), &e), CAIRN_ERR_CORRUPT);
                assert_int_equal(e.offset, 8192);

                begin(ring, RING_READ, fd, true);
                push(ring, 0, 0, 8192);
                assert_int_equal(ring_end(ring, soon(), &e), 0);
                ring_free(ring);
                (void) close(full);
                (void) close(fd);
                (void) close(read_only);
        }
}

static const struct ring_options *faulty;

/* In a child, for the armed fault stays. Exit 0: the n-th request failed, and nothing was
 * retried. */
static void write_with_fault(void *specification) {
        struct ring *ring;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int fd = new_file("fault");

        if (fault_init(specification, NULL) < 0 || ring_new(faulty, &ring, &e) < 0 ||
            ring_attach(ring, region, REGION_BYTES, NULL) < 0)
                _exit(2);
        if (ring_begin(ring, RING_WRITE, &fd, 1, 1, NULL) < 0)
                _exit(3);
        for (uint64_t at = 0; at < 16 * MiB; at += MiB)
                while (ring_push(ring, 0, at, at, MiB) == CAIRN_ERR_BUSY)
                        clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
        int r = ring_end(ring, soon(), &e);
        _exit(r == CAIRN_ERR_IO && e.system_code == EIO && fault_fired() ? 0 : 4);
}

static void test_faults(void **state) {
        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);

                if (!ring)
                        continue;
                ring_free(ring);
                faulty = &variants[i];
                for (int n = 1; n <= 16; n += 5) {
                        char specification[40];

                        (void) snprintf(specification, sizeof specification, "data-write:%d:error",
                                        n);
                        assert_int_equal(test_in_child(write_with_fault, specification), 0);
                }
        }
}

/* Short transfers: a file size limit makes the kernel write what still fits (EFBIG after that). */
static void write_beyond_limit(void *argument) {
        struct rlimit limit = {3 * MiB + 512, 3 * MiB + 512};
        struct ring *ring;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct stat st;
        int fd = new_file("limited");

        (void) signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) < 0 || ring_new(argument, &ring, &e) < 0 ||
            ring_attach(ring, region, REGION_BYTES, NULL) < 0 ||
            ring_begin(ring, RING_WRITE, &fd, 1, 0, NULL) < 0)
                _exit(2);
        (void) ring_push(ring, 0, 0, 0, 4 * MiB);
        int r = ring_end(ring, soon(), &e);
        if (r >= 0 || e.system_code != EFBIG || fstat(fd, &st) < 0)
                _exit(3);
        _exit(st.st_size == 3 * MiB + 512 && e.offset == 3 * MiB + 512 ? 0 : 4);
}

static void test_short_writes(void **state) {
        for (int i = 0; i < VARIANTS; i++) {
                struct ring *ring = open_ring(&variants[i]);

                if (!ring)
                        continue;
                ring_free(ring);
                struct ring_options options = variants[i];
                assert_int_equal(test_in_child(write_beyond_limit, &options), 0);
        }
}

/* Storage that does not move: ring_end keeps its deadline, and freeing does not wait for ever. */
static void stall(void *argument) {
        struct ring *ring;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int fd = new_file("stalled");
        uint64_t start = clock_now(&clock_system);

        if (fault_init("data-write:1:delay:20000", NULL) < 0 || ring_new(argument, &ring, &e) < 0 ||
            ring_attach(ring, region, REGION_BYTES, NULL) < 0 ||
            ring_begin(ring, RING_WRITE, &fd, 1, 0, NULL) < 0)
                _exit(2);
        (void) ring_push(ring, 0, 0, 0, MiB);
        int r = ring_end(ring, start + NSEC_PER_SEC / 5, &e);
        /* It takes nothing more, and does not wait either. */
        if (!ring_stuck(ring) || ring_attach(ring, region, MiB, NULL) >= 0 ||
            ring_end(ring, 0, NULL) != CAIRN_ERR_TIMEOUT)
                _exit(4);
        ring_free(ring);
        _exit(r == CAIRN_ERR_TIMEOUT && clock_now(&clock_system) - start < 10 * NSEC_PER_SEC ? 0
                                                                                             : 3);
}

static void test_deadline(void **state) {
        for (int i = 0; i < VARIANTS; i += 3) {
                struct ring *ring = open_ring(&variants[i]);

                if (!ring)
                        continue;
                ring_free(ring);
                struct ring_options options = variants[i];
                assert_int_equal(test_in_child(stall, &options), 0);
        }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_round_trip),
                TEST(test_odd_sizes),
                TEST(test_wrong_calls),
                TEST(test_errors),
                TEST(test_faults),
                TEST(test_short_writes),
                TEST(test_deadline),
                TEST(test_reserved_space_and_other_memory),
                TEST(test_no_space_to_reserve),
                TEST(test_files_are_let_go_of),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
