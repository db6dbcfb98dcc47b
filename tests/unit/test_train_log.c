/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "tools/train_log.h"

#include <limits.h>

static char folder[PATH_MAX];

static const char *write_log(const char *name, const char *text) {
        static char paths[2][PATH_MAX + 16];
        static unsigned next;
        char *path = paths[next++ % 2];
        (void) snprintf(path, sizeof paths[0], "%s/%s", folder, name);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        assert_true(fputs(text, f) >= 0);
        assert_int_equal(fclose(f), 0);
        return path;
}

#define LINE(step, bits, seconds) \
        "{\"step\":" step ",\"loss\":2.5,\"loss_bits\":\"" bits "\",\"seconds\":" seconds "}\n"

static void test_seconds_may_differ(void **state) {
        struct train_log_comparison c;
        const char *a = write_log("a", LINE("1", "40200000", "0.1") LINE("2", "40200001", "0.2"));
        const char *b = write_log("b", LINE("1", "40200000", "0.7") LINE("2", "40200001", "0.9"));
        assert_int_equal(train_log_compare(a, b, &c, NULL), 0);
        assert_int_equal(c.lines, 2);
        assert_int_equal(c.equal, 2);
}

static void test_anything_else_may_not(void **state) {
        static const char *const others[] = {
                LINE("1", "40200000", "0.1") LINE("2", "40200000", "0.2"), /* one bit */
                LINE("1", "40200000", "0.1"),                              /* missing */
                LINE("1", "40200000", "0.1") LINE("2", "40200001", "0.2")
                        LINE("3", "40200001", "0"),
                LINE("1", "40200000", "0.1") LINE("1", "40200000", "0.1"), /* repeated */
                "",
        };
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
                struct train_log_comparison c;
                struct cairn_error e = CAIRN_ERROR_INIT;
                const char *a =
                        write_log("a", LINE("1", "40200000", "0.1") LINE("2", "40200001", "0.2"));
                assert_int_equal(train_log_compare(a, write_log("b", others[i]), &c, &e),
                                 CAIRN_ERR_MISMATCH);
                assert_true(e.message[0] != '\0');
        }
}

static void test_empty_logs_prove_nothing(void **state) {
        struct train_log_comparison c;
        const char *a = write_log("a", "");
        assert_int_equal(train_log_compare(a, write_log("b", ""), &c, NULL), CAIRN_ERR_MISMATCH);
        assert_int_equal(train_log_compare(a, "/nonexistent/log", &c, NULL), CAIRN_ERR_NOTFOUND);
}

static void test_last_line(void **state) {
        struct train_log_tail tail = {.step = -1};
        train_log_last("/nonexistent/log", &tail);
        assert_int_equal(tail.step, -1);
        /* an evaluation line and a line that is still being written do not count */
        train_log_last(write_log("a", LINE("7", "40200000", "0.1") "{\"step\":7,\"eval_loss\":1}\n"
                                                                   "{\"step\":8,\"loss\":2.25"),
                       &tail);
        assert_int_equal(tail.step, 7);
        assert_true(tail.loss == 2.5);
}

int main(void) {
        int fd = test_folder(folder, sizeof folder);
        (void) close(fd);
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_seconds_may_differ),
                cmocka_unit_test(test_anything_else_may_not),
                cmocka_unit_test(test_empty_logs_prove_nothing),
                cmocka_unit_test(test_last_line),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
