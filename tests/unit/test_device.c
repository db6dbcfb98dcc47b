/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"

static void table_complete(void **state) {
        assert_int_equal(device_ops_check(&device_host, NULL), 0);
        assert_int_equal(device_ops_check(&device_cuda, NULL), 0);
}

static void table_with_a_gap_is_refused(void **state) {
        struct device_ops ops = device_host;
        struct cairn_error e = CAIRN_ERROR_INIT;
        ops.import_fd = NULL;
        assert_int_equal(device_ops_check(&ops, &e), CAIRN_ERR_FATAL);
        assert_non_null(strstr(e.message, "import_fd"));
        assert_int_equal(device_ops_check(NULL, NULL), CAIRN_ERR_FATAL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(table_complete),
                cmocka_unit_test(table_with_a_gap_is_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
