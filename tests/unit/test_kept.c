/* SPDX-License-Identifier: Apache-2.0 */
#include "client/kept.h"
#include "tests/test.h"

static void set(struct kept_value **list, const char *key, const char *value) {
        struct kept_value *v = kept_new(key, value, strlen(value));
        assert_non_null(v);
        kept_set(list, v);
}

static void test_list(void **state) {
        struct kept_value *list = NULL, *copy = NULL;
        assert_true(kept_copy(list, &copy));
        assert_null(copy);
        set(&list, "a", "1");
        set(&list, "b", "two");
        set(&list, "a", "another");
        set(&list, "ab", "");
        assert_true(kept_copy(list, &copy));
        kept_done(&list);
        assert_null(list);
        static const char *const expected[][2] = {{"a", "another"}, {"b", "two"}, {"ab", ""}};
        const struct kept_value *v = copy;
        for (size_t i = 0; i < 3; i++, v = v->next) {
                assert_non_null(v);
                assert_string_equal(v->bytes, expected[i][0]);
                assert_int_equal(v->key_bytes, strlen(expected[i][0]));
                assert_int_equal(v->value_bytes, strlen(expected[i][1]));
                assert_memory_equal(kept_bytes(v), expected[i][1], v->value_bytes);
        }
        assert_null(v);
        kept_done(&copy);
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_list)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
