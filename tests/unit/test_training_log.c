/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/training_log.h"
#include <math.h>
#include <sys/stat.h>

static char path[4200];

static void fresh_file(const char *content) {
        static char folder[4000];

        if (!folder[0])
                (void) close(test_folder(folder, sizeof(folder)));
        (void) snprintf(path, sizeof(path), "%s/log.jsonl", folder);
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        assert_true(fputs(content, out) >= 0);
        assert_int_equal(fclose(out), 0);
}

static void assert_content(const char *file, const char *wanted) {
        static char got[65536];
        FILE *in = fopen(file, "r");

        assert_non_null(in);
        got[fread(got, 1, sizeof(got) - 1, in)] = '\0';
        assert_int_equal(fclose(in), 0);
        assert_string_equal(got, wanted);
}

#define S1                                                                                \
        "{\"step\":1,\"loss\":5.5,\"loss_bits\":\"40b00000\",\"lr\":0.001,\"samples\":8," \
        "\"seconds\":0.100}\n"
#define S2                                                                               \
        "{\"step\":2,\"loss\":5,\"loss_bits\":\"40a00000\",\"lr\":0.002,\"samples\":16," \
        "\"seconds\":0.200}\n"
#define E2 "{\"step\":2,\"eval_loss\":6,\"eval_loss_bits\":\"40c00000\",\"seconds\":0.300}\n"
#define S3                                                                               \
        "{\"step\":3,\"loss\":4,\"loss_bits\":\"40800000\",\"lr\":0.002,\"samples\":24," \
        "\"seconds\":0.400}\n"
#define ALL S1 S2 E2 S3

static void write_all(struct training_log *l) {
        training_log_write_step(l, &(struct training_log_step){1, 8, 5.5f, 0.001, 0.1});
        training_log_write_step(l, &(struct training_log_step){2, 16, 5.0f, 0.002, 0.2});
        training_log_write_evaluation(
                l, &(struct training_log_evaluation){.step = 2, .loss = 6.0f, .seconds = 0.3});
        training_log_write_step(l, &(struct training_log_step){3, 24, 4.0f, 0.002, 0.4});
}

static void reopen(int64_t step, int64_t wanted_last, const char *wanted) {
        struct training_log l;
        int64_t last;

        assert_int_equal(training_log_open(&l, path, step, false, &last, NULL), 0);
        assert_true(last == wanted_last);
        training_log_close(&l);
        assert_content(path, wanted);
}

static void test_lines(void **state) {
        struct training_log l;
        int64_t last;

        fresh_file("");
        assert_int_equal(training_log_open(&l, path, 0, true, &last, NULL), 0);
        write_all(&l);
        assert_content(path, ALL);
        training_log_write_evaluation(
                &l,
                &(struct training_log_evaluation){
                        .step = 3, .loss = 1.0f, .has_ema = true, .ema_loss = NAN, .seconds = 0.5});
        assert_content(path, ALL "{\"step\":3,\"eval_loss\":1,\"eval_loss_bits\":\"3f800000\","
                                 "\"ema_loss\":null,\"ema_loss_bits\":\"7fc00000\","
                                 "\"seconds\":0.500}\n");
        training_log_close(&l);
}

static void test_cut_back(void **state) {
        fresh_file(ALL);
        reopen(7, 3, ALL);
        reopen(3, 3, ALL);
        reopen(2, 2, S1 S2); /* without the evaluation: it will be repeated */
        reopen(1, 1, S1);
        reopen(0, 0, "");
        fresh_file(ALL "{\"step\":4,\"lo"); /* the writer died in a line */
        reopen(4, 3, ALL);
}

static void test_previous_is_kept(void **state) {
        struct training_log l;
        int64_t last;
        char previous[4300];

        fresh_file(ALL);
        (void) snprintf(previous, sizeof(previous), "%s.previous", path);
        assert_int_equal(training_log_open(&l, path, 0, true, &last, NULL), 0);
        training_log_write_step(&l, &(struct training_log_step){1, 8, 5.5f, 0.001, 0.1});
        training_log_close(&l);
        assert_content(path, S1);
        assert_content(previous, ALL);
        assert_int_equal(training_log_open(&l, path, 1, true, &last, NULL), 0);
        training_log_close(&l);
        assert_content(path, S1);
}

static void test_other_files_are_refused(void **state) {
        static const char *const others[] = {"hello\n", "no line at all", S1 "hello\n",
                                             "{\"step\":1,\"other\":2}\n"};
        struct training_log l;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int64_t last;

        for (size_t i = 0; i < 4; i++)
                for (int keep = 0; keep < 2; keep++) {
                        fresh_file(others[i]);
                        assert_int_equal(training_log_open(&l, path, 1, keep, &last, &e),
                                         CAIRN_ERR_EXISTS);
                        assert_true(l.fd == -1);
                        assert_content(path, others[i]);
                        assert_int_equal(training_log_open(&l, path, 0, true, &last, &e),
                                         CAIRN_ERR_EXISTS);
                        assert_content(path, others[i]);
                }
        assert_true(training_log_open(&l, "/nonexistent/log", 0, true, &last, &e) < 0);
        assert_int_equal(training_log_open(&l, "/dev/null", 0, true, &last, &e), CAIRN_ERR_EXISTS);
}

static void test_links_are_not_followed(void **state) {
        struct training_log l;
        char link[4300];
        int64_t last;

        (void) snprintf(link, sizeof link, "%s.link", path);
        fresh_file(S1);
        assert_int_equal(symlink(path, link), 0);
        assert_int_equal(training_log_open(&l, link, 0, true, &last, NULL), CAIRN_ERR_PERMISSION);
        assert_content(path, S1);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(training_log_open(&l, link, 0, true, &last, NULL), CAIRN_ERR_PERMISSION);
        assert_true(access(path, F_OK) < 0);
        assert_int_equal(unlink(link), 0);
}

static void test_no_log_and_a_full_disk(void **state) {
        struct training_log l;
        int64_t last;

        assert_int_equal(training_log_open(&l, NULL, 5, true, &last, NULL), 0);
        write_all(&l);
        training_log_close(&l);
        training_log_close(NULL);
        if (access("/dev/full", W_OK) < 0)
                return;
        l = (struct training_log){.fd = open("/dev/full", O_WRONLY | O_CLOEXEC)};
        write_all(&l); /* says so once; nothing else happens */
        assert_true(l.failed);
        training_log_close(&l);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_lines),
                cmocka_unit_test(test_cut_back),
                cmocka_unit_test(test_previous_is_kept),
                cmocka_unit_test(test_other_files_are_refused),
                cmocka_unit_test(test_links_are_not_followed),
                cmocka_unit_test(test_no_log_and_a_full_disk),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
