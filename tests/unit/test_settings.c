/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/settings.h"
#include <math.h>

static int parse(struct settings *s, struct cairn_error *error, const char *const *words) {
        char *argv[32] = {(char *) (uintptr_t) "cairn-train"};
        int argc = 1;

        for (; *words; words++)
                argv[argc++] = (char *) (uintptr_t) *words;
        *error = (struct cairn_error) CAIRN_ERROR_INIT;
        return settings_parse(s, argc, argv, error);
}
#define PARSE(s, e, ...) parse(s, e, (const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void test_defaults_and_values(void **state) {
        struct cairn_error e;
        struct settings s;

        assert_int_equal(PARSE(&s, &e), 0);
        assert_true(s.steps == 300 && s.batch == 8 && isnan(s.loss_scale) &&
                    s.decay == DECAY_COSINE);
        assert_int_equal(PARSE(&s, &e, "--steps=5", "--lr", "1e-2", "--dtype", "bf16", "--data",
                               "a", "--data=b", "--loss-scale", "dynamic", "--batchnorm-demo"),
                         0);
        assert_true(s.steps == 5 && s.lr == 0.01 && s.dtype == DTYPE_BF16 && s.loss_scale < 0);
        assert_true(s.data.count == 2 && s.batchnorm_demo && !s.without_checkpoints);
        assert_string_equal(s.data.path[1], "b");
        assert_int_equal(PARSE(&s, &e, "--help", "--context", "900", "--positions", "3"), 0);
        assert_true(s.help);
}

/* Each refusal names the option and says what would be right. */
static void test_refusals(void **state) {
        static const struct {
                const char *words[5], *option, *says;
        } cases[] = {
                {{"--stepz", "3"}, "--stepz", "--help"},
                {{"steps", "3"}, "steps", "--help"},
                {{"--steps"}, "--steps", "needs a value"},
                {{"--steps", "3.5"}, "--steps", "whole number"},
                {{"--steps", "0x10"}, "--steps", "whole number"},
                {{"--steps", ""}, "--steps", "whole number"},
                {{"--steps", "0"}, "--steps", "from 1"},
                {{"--lr", "nan"}, "--lr", "not a number"},
                {{"--lr", "-1"}, "--lr", "from 0"},
                {{"--decay", "lin"}, "--decay", "linear|cosine|constant"},
                {{"--decay", "linear|cosine"}, "--decay", "unknown"},
                {{"--loss-scale", "1000"}, "--loss-scale", "power of two"},
                {{"--without-checkpoints=maybe"}, "--without-checkpoints", "no value"},
                {{"--context", "9", "--positions", "8"}, "--context", "--positions"},
                {{"--width", "65"}, "--width", "--heads"},
                {{"--global-batch", "12"}, "--global-batch", "--batch"},
                {{"--min-lr", "1"}, "--min-lr", "--lr"},
        };
        struct cairn_error e;
        struct settings s;

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                assert_int_equal(parse(&s, &e, cases[i].words), CAIRN_ERR_API);
                assert_string_equal(e.object, cases[i].option);
                if (!strstr(e.message, cases[i].says))
                        print_error("%s: %s\n", cases[i].option, e.message);
                assert_non_null(strstr(e.message, cases[i].says));
        }
}

/* What is left open follows from the rest. */
static void test_derived(void **state) {
        struct cairn_error e;
        struct settings s;

        assert_int_equal(PARSE(&s, &e, "--dtype", "bf16"), 0);
        assert_int_equal(settings_check(&s, &e), 0);
        assert_true(s.loss_scale == 0 && settings_dtype(&s) == CAIRN_BF16);
        assert_string_equal(settings_collectives(&s), "gloo");
        assert_int_equal(PARSE(&s, &e, "--dtype", "fp16", "--device", "cuda:3"), 0);
        assert_int_equal(settings_check(&s, &e), 0);
        assert_true(s.loss_scale < 0 && settings_dtype(&s) == CAIRN_F16);
        assert_string_equal(settings_collectives(&s), "nccl");
        assert_int_equal(PARSE(&s, &e, "--dtype", "fp16", "--loss-scale", "off", "--device", "cuda",
                               "--collectives", "gloo"),
                         0);
        assert_int_equal(settings_check(&s, &e), 0);
        assert_true(s.loss_scale == 0);
        assert_string_equal(settings_collectives(&s), "gloo");
}

static void test_global_batch(void **state) {
        struct cairn_error e;
        struct settings s;

        assert_int_equal(PARSE(&s, &e, "--global-batch", "32", "--batch", "4"), 0);
        assert_int_equal(settings_check(&s, &e), 0);
        assert_true(s.accumulate == 8 && s.global_batch == 32);
        assert_int_equal(PARSE(&s, &e, "--accumulate", "3"), 0);
        assert_int_equal(settings_check(&s, &e), 0);
        assert_true(s.accumulate == 3 && s.global_batch == 24 && s.positions == 64);
}

static int count_one(const char *key, const char *value, void *argument) {
        size_t *count = argument;

        assert_non_null(strchr(key, '.'));
        assert_non_null(value);
        assert_non_null(settings_option_of_key(key));
        if (!strcmp(key, "config.lr"))
                assert_string_equal(value, "0.10000000000000001");
        if (!strcmp(key, "config.decay"))
                assert_string_equal(value, "constant");
        if (!strcmp(key, "config.loss-scale"))
                assert_string_equal(value, "1024");
        assert_string_not_equal(key, "config.stall-step");
        (*count)++;
        return 0;
}

static void test_description(void **state) {
        struct cairn_error e;
        struct settings s;
        size_t count = 0;

        assert_int_equal(
                PARSE(&s, &e, "--lr", "0.1", "--decay", "constant", "--loss-scale", "1024"), 0);
        assert_int_equal(settings_each(&s, count_one, &count), 0);
        assert_true(count > 25);
        assert_string_equal(settings_option_of_key("numerics.batch"), "batch");
        assert_null(settings_option_of_key("config.batch"));
        assert_null(settings_option_of_key("data.fingerprint"));
        assert_null(settings_option_of_key("steps"));
        assert_int_equal(settings_set(&s, "steps", "7", &e), 0);
        assert_true(s.steps == 7);
        assert_int_equal(settings_set(&s, "nothing", "7", &e), CAIRN_ERR_API);
}

static void test_help_names_every_option(void **state) {
        char *text = NULL;
        size_t bytes;
        FILE *out = open_memstream(&text, &bytes);

        settings_help(out);
        assert_int_equal(fclose(out), 0);
        assert_non_null(strstr(text, "--steps N"));
        assert_non_null(strstr(text, "--without-checkpoints "));
        assert_non_null(strstr(text, "Exit status"));
        free(text);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_defaults_and_values),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_derived),
                cmocka_unit_test(test_global_batch),
                cmocka_unit_test(test_description),
                cmocka_unit_test(test_help_names_every_option),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
