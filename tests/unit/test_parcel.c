/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/parcel.h"
#include "tests/test.h"

#include <errno.h>
#include <sys/file.h>

static int folder_fd;
static char folder[200];

static int new_file(const char *name) {
        int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        return fd;
}

static void test_files_arrive(void **state) {
        int fds[WIRE_FDS_MAX], back[WIRE_FDS_MAX], parcel;
        char text[8];

        for (size_t count = 1; count <= WIRE_FDS_MAX; count += 5) {
                for (size_t i = 0; i < count; i++) {
                        (void) snprintf(text, sizeof text, "%zu", i);
                        fds[i] = new_file(text);
                        assert_int_equal(pwrite(fds[i], text, sizeof text, 0), sizeof text);
                }
                assert_int_equal(parcel_pack(fds, count, &parcel, NULL), 0);
                for (size_t i = 0; i < count; i++)
                        (void) close(fds[i]);
                assert_int_equal(parcel_unpack(parcel, back, count, NULL), 0);
                for (size_t i = 0; i < count; i++) {
                        assert_int_equal(pread(back[i], text, sizeof text, 0), sizeof text);
                        assert_int_equal(strtoul(text, NULL, 10), i);
                        assert_true(fcntl(back[i], F_GETFD) & FD_CLOEXEC);
                        (void) close(back[i]);
                }
                assert_true(parcel_unpack(parcel, back, count, NULL) < 0); /* once */
                (void) close(parcel);
        }
}

/* A lock is held as long as anybody has the file open. */
static void expect_free(const char *name) {
        int fd = new_file(name);
        assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
        (void) close(fd);
}

static int pack_locked(size_t count) {
        int fds[3], parcel;
        for (size_t i = 0; i < count; i++) {
                fds[i] = new_file(i ? "others" : "locked");
                assert_int_equal(flock(fds[i], i ? LOCK_SH : LOCK_EX), 0);
        }
        assert_int_equal(parcel_pack(fds, count, &parcel, NULL), 0);
        for (size_t i = 0; i < count; i++)
                (void) close(fds[i]);
        return parcel;
}

static void test_nothing_stays_open(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int back[3] = {-7, -7, -7}, parcel = pack_locked(3);

        (void) close(parcel); /* unopened */
        expect_free("locked");
        parcel = pack_locked(3);
        assert_int_equal(parcel_unpack(parcel, back, 2, &e), CAIRN_ERR_API);
        assert_non_null(strstr(e.message, "3 files were packed, 2 are expected"));
        assert_int_equal(back[0], -7);
        expect_free("locked");
        (void) close(parcel);
        int plain = new_file("plain");
        assert_true(parcel_unpack(plain, back, 1, &e) < 0);
        assert_true(parcel_unpack(-1, back, 1, &e) < 0);
        (void) close(plain);
}

static int setup(void **state) {
        folder_fd = test_folder(folder, sizeof folder);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_files_arrive),
                cmocka_unit_test(test_nothing_stays_open),
        };
        return cmocka_run_group_tests(tests, setup, NULL);
}
