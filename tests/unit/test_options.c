/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"
#include "tests/test.h"
#include "tools/command.h"

static const struct command self = {"probe", "RUN [--flag]", "A command of the test.", NULL};

struct values {
        bool flag, step_given;
        const char *text;
        uint64_t count, duration_ns;
        int64_t step;
        struct option_list list;
        const char *positional;
        size_t positional_count;
        int rest;
};

/* Parses the words; what the parser says to a person is dropped. */
static int parse(struct values *v, size_t positional_max, int argc, const char **argv) {
        const struct option_row rows[] = {
                {"--flag", NULL, OPTION_FLAG, &v->flag, "a flag", NULL},
                {"--text", "T", OPTION_STRING, &v->text, "a text", NULL},
                {"--count", "N", OPTION_COUNT, &v->count, "a count", NULL},
                {"--step", "N", OPTION_STEP, &v->step, "a step", &v->step_given},
                {"--time", "S", OPTION_DURATION, &v->duration_ns, "a time", NULL},
                {"--item", "I", OPTION_LIST, &v->list, "may be given again", NULL},
        };
        int null = open("/dev/null", O_WRONLY | O_CLOEXEC), saved_out = dup(1), saved_err = dup(2);
        (void) fflush(stdout);
        (void) dup2(null, 1);
        (void) dup2(null, 2);
        int r = options_parse(&self, OPTION_ROWS(rows), argc, (char **) (uintptr_t) argv,
                              &v->positional, positional_max, &v->positional_count, &v->rest);
        (void) fflush(stdout);
        (void) dup2(saved_out, 1);
        (void) dup2(saved_err, 2);
        (void) close(null);
        (void) close(saved_out);
        (void) close(saved_err);
        return r;
}
#define PARSE(v, max, ...)                                                    \
        parse(v, max, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), \
              (const char *[]){__VA_ARGS__})

static void test_every_kind(void **state) {
        struct values v = {0};
        assert_int_equal(PARSE(&v, 1, "probe", "--flag", "--text", "a b", "run", "--count=7",
                               "--step", "12", "--time", "1.5m", "--item", "x", "--item=y", "--",
                               "--flag"),
                         0);
        assert_true(v.flag && v.step_given);
        assert_string_equal(v.text, "a b");
        assert_string_equal(v.positional, "run");
        assert_int_equal(v.positional_count, 1);
        assert_int_equal(v.count, 7);
        assert_int_equal(v.step, 12);
        assert_int_equal(v.duration_ns, 90 * NSEC_PER_SEC);
        assert_int_equal(v.list.count, 2);
        assert_string_equal(v.list.items[1], "y");
        assert_int_equal(v.rest, 14);
}

static void test_refusals(void **state) {
        struct values v = {0};
        assert_int_equal(PARSE(&v, 1, "probe", "--flga"), -1);
        assert_int_equal(PARSE(&v, 1, "probe", "-x"), -1);
        assert_int_equal(PARSE(&v, 1, "probe", "--flag=1"), -1);
        assert_int_equal(PARSE(&v, 1, "probe", "--text"), -1);
        assert_int_equal(PARSE(&v, 1, "probe", "--text", "--", "x"), -1);
        assert_int_equal(PARSE(&v, 1, "probe", "a", "b"), -1);
        assert_int_equal(PARSE(&v, 0, "probe", "a"), -1);
        const char *const bad_counts[] = {
                "", "-1", "+1", " 1", "1x", "0x10", "18446744073709551616"};
        for (size_t i = 0; i < sizeof bad_counts / sizeof bad_counts[0]; i++) {
                assert_int_equal(PARSE(&v, 1, "probe", "--count", bad_counts[i]), -1);
                assert_int_equal(PARSE(&v, 1, "probe", "--step", bad_counts[i]), -1);
        }
        assert_int_equal(PARSE(&v, 1, "probe", "--step", "9223372036854775807"), -1);
        assert_int_equal(PARSE(&v, 1, "probe", "--help"), 1);
}

static void test_durations(void **state) {
        static const struct {
                const char *text;
                uint64_t ns;
        } good[] = {{"0", 0},
                    {"30", 30 * NSEC_PER_SEC},
                    {"30s", 30 * NSEC_PER_SEC},
                    {"500ms", 500 * NSEC_PER_MSEC},
                    {"10m", 600 * NSEC_PER_SEC},
                    {"10min", 600 * NSEC_PER_SEC},
                    {"2h", 7200 * NSEC_PER_SEC},
                    {".5s", 500 * NSEC_PER_MSEC}};
        static const char *const bad[] = {"",    "s",   "-1s",  "1d",     "10 m",
                                          "nan", "inf", "1e30", "0x1p400"};
        uint64_t ns;
        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
                assert_true(parse_duration(good[i].text, &ns));
                assert_int_equal(ns, good[i].ns);
        }
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
                assert_false(parse_duration(bad[i], &ns));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_kind),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_durations),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
