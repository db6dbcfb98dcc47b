/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/watch.h"

#include "tests/test.h"

static const char *line_of(const char *json) {
        static char line[512];
        json_t *run = json_loads(json, 0, NULL);
        assert_non_null(run);
        watch_line(run, line, sizeof line);
        json_decref(run);
        return line;
}

static void test_lines(void **state) {
        assert_string_equal(line_of("{\"state\":\"starting\",\"restart\":1,\"committed_step\":-1,"
                                    "\"snapshot\":null,\"error\":null,\"ranks\":[]}"),
                            "starting, restart 1");
        assert_string_equal(
                line_of("{\"state\":\"live\",\"restart\":0,\"committed_step\":10,"
                        "\"snapshot\":{\"step\":12,\"stage\":\"writing\"},"
                        "\"error\":{\"text\":\"disk full\"},"
                        "\"ranks\":[{\"step\":11},{\"step\":12}]}"),
                "live, restart 0, step 12, committed 10, writing step 12, last error: disk full");
        /* An agent of another version: members are missing, nothing is invented. */
        assert_string_equal(line_of("{}"), ", restart 0, committed 0");
}

static void test_short_buffers(void **state) {
        json_t *run = json_loads("{\"state\":\"live\",\"restart\":0,\"committed_step\":10,"
                                 "\"ranks\":[{\"step\":12}]}",
                                 0, NULL);
        for (size_t bytes = 1; bytes < 48; bytes++) {
                char line[64];
                memset(line, 'x', sizeof line);
                watch_line(run, line, bytes);
                assert_true(strlen(line) < bytes);
                assert_true(line[bytes] == 'x');
        }
        json_decref(run);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_lines),
                cmocka_unit_test(test_short_buffers),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
