/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "tests/unit/fake_group.h"
#include "trainer/agreement.h"

static void test_explain(void **state) {
        char text[400];
        const char *equal[] = {"a 1\nb 2\n", "a 1\nb 2\n"};
        const char *values[] = {"a 1\nb 2\nc 3\n", "a 1\nb 2\nc 3\n", "a 1\nb 25\nc 3\n"};
        const char *missing[] = {"a 1\n", "a 1\nb 2\n"};
        const char *many[] = {"a 1\nb 1\nc 1\nd 1\ne 1\n", "a 2\nb 2\nc 2\nd 2\ne 2\n"};

        agreement_explain(equal, 2, text, sizeof(text));
        assert_string_equal(text, "");
        agreement_explain(values, 3, text, sizeof(text));
        assert_string_equal(text, "b is 2 on rank 0 and 25 on rank 2");
        agreement_explain(missing, 2, text, sizeof(text));
        assert_string_equal(text, "b is 2 on rank 1 and missing on rank 0");
        agreement_explain(many, 2, text, sizeof(text));
        assert_string_equal(text, "a is 1 on rank 0 and 2 on rank 1; b is 1 on rank 0 and 2 on "
                                  "rank 1; c is 1 on rank 0 and 2 on rank 1; and 2 more");
        for (size_t bytes = 1; bytes < 60; bytes++) { /* a small place is not left */
                memset(text, 'x', sizeof(text));
                agreement_explain(values, 3, text, bytes);
                assert_true(strlen(text) < bytes && text[bytes] == 'x');
        }
}

static void agree(uint32_t rank, void *argument) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct group g = {.rank = rank, .world = fake_world};
        struct agreement a = {0};
        bool differs = argument != NULL;

        for (int i = 0; i < 200; i++) {
                char key[32];
                (void) snprintf(key, sizeof(key), "config.option-%d", i);
                agreement_add(&a, key, "%d of many\nthis line is cut off", i);
        }
        agreement_add(&a, "mode", "%s", differs && rank == 2 ? "fresh" : "resume");
        int r = agreement_check(&a, &g, &e);
        CAIRN_ASSERT(r == (differs ? CAIRN_ERR_MISMATCH : 0));
        if (differs)
                CAIRN_ASSERT(strstr(e.message, "mode is resume on rank 0 and fresh on rank 2"));
        agreement_done(&a);
}

static void test_check(void **state) {
        fake_group_run(1, agree, NULL);
        fake_group_run(4, agree, NULL);
        static char differs[] = "differs";
        fake_group_run(3, agree, differs);
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_explain),
                                           cmocka_unit_test(test_check)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
