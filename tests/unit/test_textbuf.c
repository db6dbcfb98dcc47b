/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/textbuf.h"

static void grows(void **state) {
        struct textbuf t = {0};
        assert_string_equal(textbuf_string(&t), "");
        for (int i = 0; i < 1000; i++)
                textbuf_add(&t, "%d,", i % 10);
        assert_int_equal(t.length, 2000);
        assert_int_equal(strlen(textbuf_string(&t)), 2000);
        textbuf_clear(&t);
        assert_string_equal(textbuf_string(&t), "");
        textbuf_done(&t);
}

static void items_are_counted_and_joined(void **state) {
        struct textbuf items = {0}, t = {0};
        for (int i = 0; i < 5; i++)
                textbuf_item(&items, "item %d", i);
        assert_int_equal(items.item_count, 5);
        textbuf_join(&t, &items, 3);
        assert_string_equal(textbuf_string(&t), "item 0; item 1; item 2; and 2 more");
        textbuf_clear(&t);
        textbuf_json_items(&t, &items);
        assert_string_equal(textbuf_string(&t),
                            "[\"item 0\",\"item 1\",\"item 2\",\"item 3\",\"item 4\"]");
        textbuf_done(&items);
        textbuf_done(&t);
}

static void json_strings_are_valid(void **state) {
        static const char raw[] = "a\"b\\c\n\x01\xff\xc3\xa9\xe2\x82";
        struct textbuf t = {0};
        textbuf_json(&t, raw, sizeof raw - 1);
        assert_string_equal(textbuf_string(&t),
                            "\"a\\\"b\\\\c\\u000a\\u0001\\u00ff\xc3\xa9\\u00e2\\u0082\"");
        textbuf_clear(&t);
        textbuf_json(&t, NULL, 0);
        assert_string_equal(textbuf_string(&t), "\"\"");
        textbuf_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(grows),
                cmocka_unit_test(items_are_counted_and_joined),
                cmocka_unit_test(json_strings_are_valid),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
