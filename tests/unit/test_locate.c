/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/locate.h"
#include "tests/test.h"

#include <limits.h>

static void beside_the_program(void **state) {
        char path[PATH_MAX], self[PATH_MAX];
        ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
        assert_true(length > 0);
        self[length] = '\0';
        assert_int_equal(locate("CAIRN_TEST_NOWHERE", "test_locate", path, sizeof path, NULL), 0);
        assert_string_equal(path, self);
}

static void nowhere(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char path[PATH_MAX];
        assert_int_equal(locate("CAIRN_TEST_NOWHERE", "no-such-file", path, sizeof path, &e),
                         CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "$CAIRN_TEST_NOWHERE"));
        assert_string_equal(e.object, "no-such-file");
}

/* A variable that names nothing is an error, not a reason to look elsewhere. */
static void the_variable_is_the_only_place(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char path[PATH_MAX];
        assert_int_equal(setenv("CAIRN_TEST_SOMEWHERE", "/etc/passwd", 1), 0);
        assert_int_equal(locate("CAIRN_TEST_SOMEWHERE", "x", path, sizeof path, &e), 0);
        assert_string_equal(path, "/etc/passwd");
        assert_int_equal(setenv("CAIRN_TEST_SOMEWHERE", "/no/such/file", 1), 0);
        assert_int_equal(locate("CAIRN_TEST_SOMEWHERE", "test_locate", path, sizeof path, &e),
                         CAIRN_ERR_UNSUPPORTED);
        assert_string_equal(e.object, "/no/such/file");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(beside_the_program),
                cmocka_unit_test(nowhere),
                cmocka_unit_test(the_variable_is_the_only_place),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
