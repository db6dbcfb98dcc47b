/* SPDX-License-Identifier: Apache-2.0 */
#include "base/status.h"
#include "tests/test.h"

#include <errno.h>

static void test_exit_codes(void **state) {
        static const struct {
                int status, exit_code;
        } rows[] = {
                {CAIRN_OK, 0},
                {CAIRN_ERR_API, 64},
                {CAIRN_ERR_CORRUPT, 65},
                {CAIRN_ERR_UNSUPPORTED, 65},
                {CAIRN_ERR_NOTFOUND, 66},
                {CAIRN_ERR_FINISHED, 66},
                {CAIRN_ERR_UNREACHABLE, 69},
                {CAIRN_ERR_PEER, 69},
                {CAIRN_ERR_EXISTS, 73},
                {CAIRN_ERR_CANNOT_WRITE, 73},
                {CAIRN_ERR_NOSPACE, 73},
                {CAIRN_ERR_IO, 74},
                {CAIRN_ERR_PERMISSION, 77},
                {CAIRN_ERR_MISMATCH, 78},
                {CAIRN_ERR_STALE, 78},
                {CAIRN_ERR_TIMEOUT, 124},
                {CAIRN_ERR_BUSY, 70},
                {CAIRN_ERR_DEVICE, 70},
                {CAIRN_ERR_FATAL, 70},
                {CAIRN_ERR_NOMEM, 73},
                {CAIRN_ERR_VOID, 70},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                assert_int_equal(status_exit_code(rows[i].status), rows[i].exit_code);
        assert_int_equal(status_exit_code(-999), 70);
        assert_int_equal(status_exit_code(1), 70);
}

static void test_every_status_has_a_name(void **state) {
        for (int status = CAIRN_ERR_CANNOT_WRITE; status <= CAIRN_OK; status++)
                assert_string_not_equal(status_name(status), "UNKNOWN");
        assert_string_equal(status_name(CAIRN_ERR_BUSY), "BUSY");
        assert_string_equal(status_name(-999), "UNKNOWN");
}

static void test_errno_mapping(void **state) {
        static const struct {
                int error_number, status;
        } rows[] = {
                {ENOSPC, CAIRN_ERR_NOSPACE},
                {EDQUOT, CAIRN_ERR_NOSPACE},
                {EIO, CAIRN_ERR_IO},
                {ESTALE, CAIRN_ERR_IO},
                {EACCES, CAIRN_ERR_PERMISSION},
                {EPERM, CAIRN_ERR_PERMISSION},
                {EROFS, CAIRN_ERR_CANNOT_WRITE},
                {ENOTDIR, CAIRN_ERR_CANNOT_WRITE},
                {EISDIR, CAIRN_ERR_CANNOT_WRITE},
                {ENOENT, CAIRN_ERR_NOTFOUND},
                {EEXIST, CAIRN_ERR_EXISTS},
                {ETIMEDOUT, CAIRN_ERR_TIMEOUT},
                {ENOMEM, CAIRN_ERR_NOMEM},
                {EMFILE, CAIRN_ERR_NOMEM},
                {ENFILE, CAIRN_ERR_NOMEM},
                {ELOOP, CAIRN_ERR_PERMISSION},
                {EXDEV, CAIRN_ERR_PERMISSION},
                {ENOSYS, CAIRN_ERR_UNSUPPORTED},
                {ECONNREFUSED, CAIRN_ERR_UNREACHABLE},
                {EINVAL, CAIRN_ERR_IO},
                {EBADF, CAIRN_ERR_IO},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                assert_int_equal(error_status_of_errno(rows[i].error_number), rows[i].status);
}

static void test_null_error_is_allowed(void **state) {
        assert_int_equal(error_set(NULL, CAIRN_ERR_BUSY, "a", "b", "c"), CAIRN_ERR_BUSY);
        assert_int_equal(error_set_errno(NULL, ENOSPC, "a", "b"), CAIRN_ERR_NOSPACE);
}

static void test_fields(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        assert_int_equal(error_set(&e, CAIRN_ERR_CORRUPT, "check", "rank-0", "%d tensors", 3),
                         CAIRN_ERR_CORRUPT);
        assert_int_equal(e.status, CAIRN_ERR_CORRUPT);
        assert_int_equal(e.system_code, 0);
        assert_true(e.offset == UINT64_MAX);
        assert_string_equal(e.operation, "check");
        assert_string_equal(e.object, "rank-0");
        assert_string_equal(e.message, "3 tensors");

        assert_int_equal(error_set_errno_at(&e, EIO, "read", "data", 4096), CAIRN_ERR_IO);
        assert_int_equal(e.system_code, EIO);
        assert_true(e.offset == 4096);
        /* Adding to an error passes its own strings. */
        assert_int_equal(error_set(&e, e.status, e.operation, e.object, "then: %s", e.message),
                         CAIRN_ERR_IO);
        assert_string_equal(e.object, "data");
        assert_memory_equal(e.message, "then: the storage failed", 24);
}

static void test_format(void **state) {
        struct cairn_error e;
        char buf[1024];

        (void) error_set(&e, CAIRN_ERR_CORRUPT, "check", "INDEX", "it is 'cut'");
        assert_string_equal(error_format(&e, buf, sizeof buf), "check INDEX: it is 'cut'");
        (void) error_set(&e, CAIRN_ERR_CORRUPT, "check", NULL, "it is cut");
        assert_string_equal(error_format(&e, buf, sizeof buf), "check: it is cut");
        (void) error_set_errno(&e, ENOENT, "open", "a/b");
        assert_string_equal(error_format(&e, buf, sizeof buf),
                            "open a/b: No such file or directory");
        (void) error_set_errno_at(&e, EIO, "read", "data", 4096);
        assert_string_equal(error_format(&e, buf, sizeof buf),
                            "read data at byte 4096: Input/output error: the storage failed; look "
                            "into the kernel log");
        (void) error_set_errno(&e, ELOOP, "open", "x");
        assert_non_null(strstr(error_format(&e, buf, sizeof buf), "links are not followed"));

        /* A device's code is no errno; a status alone is still said. */
        (void) error_set(&e, CAIRN_ERR_DEVICE, "copy", "weight", "%s", "");
        assert_string_equal(error_format(&e, buf, sizeof buf), "copy weight: DEVICE");
        e.system_code = 2;
        assert_string_equal(error_format(&e, buf, sizeof buf), "copy weight: code 2");
        e.system_code = 0;
}

static void test_format_escapes_control_characters(void **state) {
        struct cairn_error e;
        char buf[1024];

        (void) error_set(&e, CAIRN_ERR_CORRUPT, "check", "a\033[2Jb\nc", "\xff\x7f and \xc2\x9b");
        assert_string_equal(error_format(&e, buf, sizeof buf),
                            "check a\\x1b[2Jb\\x0ac: \\xff\\x7f and \\xc2\\x9b");
}

/* Every size of buffer, with fields that fill their arrays and, as from a hostile peer, do not end.
 */
static void test_format_never_overflows(void **state) {
        struct cairn_error e = {.status = CAIRN_ERR_IO, .system_code = EIO, .offset = 1};

        memset(e.operation, 'o', sizeof e.operation);
        memset(e.object, '\n', sizeof e.object);
        memset(e.message, 'm', sizeof e.message);
        for (size_t bytes = 0; bytes < 3000; bytes++) {
                char *buf = malloc(bytes + 1);
                assert_non_null(buf);
                memset(buf, 0x5a, bytes + 1);
                assert_ptr_equal(error_format(&e, buf, bytes), buf);
                assert_int_equal(buf[bytes], 0x5a);
                if (bytes > 0) {
                        assert_true(strnlen(buf, bytes) < bytes);
                        assert_null(strchr(buf, '\n'));
                }
                free(buf);
        }
}

static int three_steps(int fail_at, int *ret_cleanups) {
        int r = 0;
        TRY_GOTO(fail_at == 1 ? CAIRN_ERR_IO : 0, end);
        TRY_GOTO(fail_at == 2 ? CAIRN_ERR_BUSY : 0, end);
end:
        ++*ret_cleanups;
        TRY_KEEP(fail_at >= 2 ? CAIRN_ERR_FATAL : 0);
        return r;
}

static void test_try_macros(void **state) {
        int cleanups = 0;
        assert_int_equal(three_steps(0, &cleanups), 0);
        assert_int_equal(three_steps(1, &cleanups), CAIRN_ERR_IO);
        assert_int_equal(three_steps(2, &cleanups), CAIRN_ERR_BUSY);
        assert_int_equal(three_steps(3, &cleanups), CAIRN_ERR_FATAL);
        assert_int_equal(cleanups, 4);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_exit_codes),
                cmocka_unit_test(test_every_status_has_a_name),
                cmocka_unit_test(test_errno_mapping),
                cmocka_unit_test(test_null_error_is_allowed),
                cmocka_unit_test(test_fields),
                cmocka_unit_test(test_format),
                cmocka_unit_test(test_format_escapes_control_characters),
                cmocka_unit_test(test_format_never_overflows),
                cmocka_unit_test(test_try_macros),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
