/* SPDX-License-Identifier: Apache-2.0 */
#include "format/names.h"
#include "tests/test.h"

static void test_run_names(void **state) {
        static const char *const good[] = {
                "a",       "run-1",
                "A.b_c-9", "9",
                "_x",      "GEN",
                "gen-1",   "0123456789012345678901234567890123456789012345678901234567890123"};
        static const char *const bad[] = {
                "",
                ".",
                "..",
                ".x",
                "-x",
                "GEN-",
                "GEN-0001",
                "CAIRN-STORE",
                "a/b",
                "a b",
                "a\n",
                "\xc3\xa4",
                "01234567890123456789012345678901234567890123456789012345678901234"};

        for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
                assert_int_equal(name_check_run(good[i], NULL), 0);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                assert_int_equal(name_check_run(bad[i], &e), CAIRN_ERR_API);
                assert_true(e.message[0] != '\0');
        }
}

static void test_made(void **state) {
        char name[NAME_BYTES];

        name_generation(name, 3);
        assert_string_equal(name, "GEN-0003");
        name_generation_start(name, 12345);
        assert_string_equal(name, "GEN-12345.start");
        name_checkpoint(name, 1234, 3);
        assert_string_equal(name, "000000001234-g0003");
        name_pending(name, 3, 1);
        assert_string_equal(name, ".pending-g0003-a000001");
        name_stale(name, 3, 1, 4);
        assert_string_equal(name, ".stale-g0003-a000001-by0004");
        name_trash(name, "000000001234-g0003");
        assert_string_equal(name, ".trash-000000001234-g0003");
        name_trash(name, ".stale-g0003-a000001-by0004");
        assert_string_equal(name, ".trash-stale-g0003-a000001-by0004");
        name_manifest(name, 0);
        assert_string_equal(name, "rank-00000.manifest");
        name_data(name, 65535);
        assert_string_equal(name, "rank-65535.data");
        name_pin(name, "000000001234-g0003");
        assert_string_equal(name, "PIN-000000001234-g0003");
        name_tag(name, "000000001234-g0003");
        assert_string_equal(name, "TAG-000000001234-g0003");
}

/* The largest numbers still fit, and come back. */
static void test_extremes(void **state) {
        char name[NAME_BYTES];
        uint64_t generation = 0;
        uint32_t attempt = 0;
        int64_t step = 0;
        bool is_start = false;

        name_generation(name, UINT64_MAX);
        assert_true(name_parse_generation(name, &generation, &is_start));
        assert_true(generation == UINT64_MAX && !is_start);
        name_generation_start(name, 0);
        assert_true(name_parse_generation(name, &generation, &is_start));
        assert_true(generation == 0 && is_start);
        name_checkpoint(name, STEP_MAX, UINT64_MAX);
        assert_true(name_parse_checkpoint(name, &step, &generation));
        assert_true(step == STEP_MAX && generation == UINT64_MAX);
        name_pending(name, UINT64_MAX, UINT32_MAX);
        assert_true(name_parse_pending(name, &generation, &attempt));
        assert_true(generation == UINT64_MAX && attempt == UINT32_MAX);
        name_stale(name, UINT64_MAX, UINT32_MAX, UINT64_MAX);
        assert_int_equal(strlen(name), NAME_BYTES - 1);
        assert_true(name_parse_stale(name, &generation, &attempt));
        assert_true(generation == UINT64_MAX && attempt == UINT32_MAX);
}

static void test_refused(void **state) {
        static const char *const bad[] = {"",
                                          "GEN-",
                                          "GEN-3",
                                          "GEN-003",
                                          "GEN-00003",
                                          "GEN-0003x",
                                          "GEN-0003.started",
                                          "GEN- 003",
                                          "GEN-+003",
                                          "GEN-18446744073709551616",
                                          "000000001234-g003",
                                          "00000001234-g0003",
                                          "0000000001234-g0003",
                                          "-00000001234-g0003",
                                          "000000001234-G0003",
                                          "000000001234-g0003 ",
                                          "9223372036854775807-g0001",
                                          "99999999999999999999-g0001",
                                          ".pending-g0003-a1",
                                          ".pending-g0003-a000001x",
                                          ".pending-g0003-a4294967296",
                                          ".stale-g0003-a000001",
                                          ".stale-g0003-a000001-by4",
                                          ".trash-000000001234-g0003",
                                          ".tmp-0123456789abcdef"};

        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
                uint64_t generation = 7;
                uint32_t attempt = 7;
                int64_t step = 7;
                bool is_start;
                assert_false(name_parse_generation(bad[i], &generation, &is_start));
                assert_false(name_parse_checkpoint(bad[i], &step, &generation));
                assert_false(name_parse_pending(bad[i], &generation, &attempt));
                assert_false(name_parse_stale(bad[i], &generation, &attempt));
                assert_true(step == 7 && generation == 7 && attempt == 7);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_run_names),
                cmocka_unit_test(test_made),
                cmocka_unit_test(test_extremes),
                cmocka_unit_test(test_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
