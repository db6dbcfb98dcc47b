/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config.h"
#include "tests/test.h"

static char path[600];

static void write_file(const char *text) {
        char folder[512];
        int fd = test_folder(folder, sizeof folder);
        (void) close(fd);
        (void) snprintf(path, sizeof path, "%s/cairnd.conf", folder);
        FILE *f = fopen(path, "we");
        assert_non_null(f);
        assert_true(fputs(text, f) >= 0);
        assert_int_equal(fclose(f), 0);
}

static int load(const char *text, struct config *c, struct cairn_error *e) {
        write_file(text);
        config_init(c);
        *e = (struct cairn_error) CAIRN_ERROR_INIT;
        return config_load(c, path, e);
}

static void test_every_key(void **state) {
        struct config c;
        struct cairn_error e;
        (void) state;
        assert_int_equal(load("# a comment\nstore = /data/store\nsocket=/run/x/y.sock\n"
                              "staging_bytes_max = 16G\nkeep_last = 5\ngroup = ops\n"
                              "log_level = debug\nstop_deadline_s = 7\nstorage_timeout_s = 8\n",
                              &c, &e),
                         0);
        assert_string_equal(c.store, "/data/store");
        assert_string_equal(c.socket, "/run/x/y.sock");
        assert_int_equal(c.staging_bytes_max, UINT64_C(16) << 30);
        assert_int_equal(c.keep_last, 5);
        assert_string_equal(c.group, "ops");
        assert_int_equal(c.log_level, LOG_LEVEL_DEBUG);
        assert_int_equal(c.stop_deadline_s, 7);
        assert_int_equal(c.storage_timeout_s, 8);
        assert_int_equal(config_check(&c, &e), 0);
}

static void test_unknown_key_names_file_and_line(void **state) {
        struct config c;
        struct cairn_error e;
        char line[1200], expected[700];
        (void) state;
        assert_int_equal(load("keep_last = 5\nkeep_lost = 5\n", &c, &e), CAIRN_ERR_API);
        (void) error_format(&e, line, sizeof line);
        (void) snprintf(expected, sizeof expected, "%s:2", path);
        assert_non_null(strstr(line, expected));
        assert_non_null(strstr(line, "keep_lost"));
        assert_int_equal(status_exit_code(e.status), 64);
}

static void test_bad_values(void **state) {
        static const char *const bad[] = {"keep_last = 0\n",
                                          "keep_last = -1\n",
                                          "keep_last = 3x\n",
                                          "staging_bytes_max = 4Q\n",
                                          "staging_bytes_max = 99999999999T\n",
                                          "log_level = loud\n",
                                          "store =\n",
                                          "[section]\nkeep_last=3\n",
                                          "no equals sign here\n"};
        struct config c;
        struct cairn_error e;
        (void) state;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
                if (load(bad[i], &c, &e) != CAIRN_ERR_API || !*e.message)
                        fail_msg("accepted: %s", bad[i]);
}

static void test_check(void **state) {
        struct config c;
        struct cairn_error e;
        char deep[300];
        (void) state;
        config_init(&c);
        assert_int_equal(config_check(&c, &e), CAIRN_ERR_API); /* no socket */
        memset(deep, 'x', sizeof deep - 1);
        deep[0] = '/';
        deep[sizeof deep - 1] = 0;
        assert_int_equal(config_set(&c, "socket", deep, &e), 0);
        assert_int_equal(config_check(&c, &e), CAIRN_ERR_API); /* too long for a socket */
        assert_int_equal(config_set(&c, "socket", "/run/s", &e), 0);
        assert_int_equal(config_set(&c, "store", "relative", &e), 0);
        assert_int_equal(config_check(&c, &e), CAIRN_ERR_API);
        assert_int_equal(config_load(&c, "/nonexistent/cairnd.conf", &e), CAIRN_ERR_NOTFOUND);
}

static void test_bytes(void **state) {
        uint64_t v;
        (void) state;
        assert_true(config_parse_bytes("0", &v) && v == 0);
        assert_true(config_parse_bytes("18446744073709551615", &v) && v == UINT64_MAX);
        assert_false(config_parse_bytes("18446744073709551616", &v));
        assert_true(config_parse_bytes("3K", &v) && v == 3072);
        assert_false(config_parse_bytes("16777216T", &v));
        assert_false(config_parse_bytes("", &v));
        assert_false(config_parse_bytes("3KK", &v));
        assert_false(config_parse_bytes(" 3", &v));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_key),
                cmocka_unit_test(test_unknown_key_names_file_and_line),
                cmocka_unit_test(test_bad_values),
                cmocka_unit_test(test_check),
                cmocka_unit_test(test_bytes),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
