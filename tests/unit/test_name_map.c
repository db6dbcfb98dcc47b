/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/name_map.h"

static void finds_what_was_added(void **state) {
        enum { COUNT = 20000 };
        static char names[COUNT][16];
        struct name_map m = {0};
        uint32_t value;
        assert_false(name_map_find(&m, "a", 1, &value));
        for (uint32_t i = 0; i < COUNT; i++) {
                (void) snprintf(names[i], sizeof names[i], "layer.%u", i);
                assert_int_equal(name_map_add(&m, names[i], strlen(names[i]), i), 0);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
                assert_true(name_map_find(&m, names[i], strlen(names[i]), &value));
                assert_int_equal(value, i);
        }
        assert_false(name_map_find(&m, "layer.", 6, &value));
        assert_int_equal(name_map_add(&m, "layer.7", 7, 1), CAIRN_ERR_EXISTS);
        assert_int_equal(m.count, COUNT);
        assert_true(name_map_find(&m, "layer.7", 7, &value));
        assert_int_equal(value, 7);
        name_map_done(&m);
        name_map_done(&m);
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(finds_what_was_added)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
