/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "tests/test.h"

#include <errno.h>

/* What `f` writes to standard error. */
static const char *captured(void (*f)(void), char *buf, size_t bytes) {
        int ends[2], saved = dup(STDERR_FILENO);
        assert_int_equal(pipe(ends), 0);
        (void) dup2(ends[1], STDERR_FILENO);
        f();
        (void) dup2(saved, STDERR_FILENO);
        (void) close(saved);
        (void) close(ends[1]);
        ssize_t n = read(ends[0], buf, bytes - 1);
        assert_true(n >= 0);
        buf[n] = '\0';
        (void) close(ends[0]);
        return buf;
}

static const char *escaped(const char *source, size_t target_bytes) {
        static char target[256];
        memset(target, 0x5a, sizeof target);
        (void) text_escape(target, target_bytes, source, strlen(source));
        assert_int_equal(target[target_bytes], 0x5a);
        return target;
}

static void test_escape(void **state) {
        assert_string_equal(escaped("plain text", 100), "plain text");
        assert_string_equal(escaped("", 100), "");
        assert_string_equal(escaped("a\"b\\c", 100), "a\\x22b\\x5cc");
        assert_string_equal(escaped("\x1b[31m\n\t\x7f", 100), "\\x1b[31m\\x0a\\x09\\x7f");
        assert_string_equal(escaped("größe ✓ \xf0\x9f\x98\x80", 100), "größe ✓ \xf0\x9f\x98\x80");
        /* A zero byte inside is a byte like others. */
        char target[16];
        assert_string_equal(text_escape(target, sizeof target, "a\0b", 3), "a\\x00b");
}

static void test_escape_refuses_what_is_not_utf8(void **state) {
        assert_string_equal(escaped("\x80", 100), "\\x80");
        assert_string_equal(escaped("\xc0\xaf", 100), "\\xc0\\xaf");          /* overlong */
        assert_string_equal(escaped("\xed\xa0\x80", 100), "\\xed\\xa0\\x80"); /* surrogate */
        assert_string_equal(escaped("\xf4\x90\x80\x80", 100), "\\xf4\\x90\\x80\\x80");
        assert_string_equal(escaped("\xe2\x9c", 100), "\\xe2\\x9c"); /* cut off */
        assert_string_equal(escaped("\xc2\x9b"
                                    "x",
                                    100),
                            "\\xc2\\x9bx");                                   /* C1 control */
        assert_string_equal(escaped("\xe2\x80\xae", 100), "\\xe2\\x80\\xae"); /* turns direction */
}

static void test_escape_truncates(void **state) {
        assert_string_equal(escaped("abcdef", 7), "abcdef");
        assert_string_equal(escaped("abcdefg", 7), "abc...");
        assert_string_equal(escaped("ab\n", 6), "ab...");
        assert_string_equal(escaped("abcdef", 4), "...");
        assert_string_equal(escaped("abcdef", 2), ".");
        assert_string_equal(escaped("abcdef", 1), "");
        /* Never in the middle of an escape or of a character. */
        assert_string_equal(escaped("a\n\n\n", 10), "a\\x0a...");
        assert_string_equal(escaped("✓✓✓", 9), "✓...");
}

static void test_escape_control_keeps_quotes(void **state) {
        char target[32];
        assert_string_equal(text_escape_control(target, sizeof target, "a\"\\\n", 4), "a\"\\\\x0a");
}

static void test_plain(void **state) {
        static const char *const plain[] = {"", "config.lr=0.002", "\"\\ ✓ é", "\360\237\230\200"};
        static const char *const others[] = {
                "a\n",  "\t",       "\033[2J",      "\177",          "\302\205",    "a\377",
                "\303", "\300\200", "\355\240\200", "\342\200\256x", "\342\200\250"};
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
                assert_true(text_is_plain(plain[i], strlen(plain[i])));
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
                assert_false(text_is_plain(others[i], strlen(others[i])));
        assert_false(text_is_plain("a\0b", 3));
}

static void log_three_levels(void) {
        log_init("test", LOG_LEVEL_WARNING);
        errno = ENOENT;
        log_event(LOG_LEVEL_ERROR, "n=%d", 1);
        log_event(LOG_LEVEL_INFO, "n=2");
        log_event(LOG_LEVEL_WARNING, "n=3\nforged=yes");
        assert_int_equal(errno, ENOENT);
}

static void test_levels_and_lines(void **state) {
        char buf[1024];
        (void) unsetenv("CAIRN_LOG");
        const char *text = captured(log_three_levels, buf, sizeof buf);
        assert_non_null(strstr(text, " level=error program=test n=1\n"));
        assert_null(strstr(text, "n=2"));
        assert_non_null(strstr(text, " level=warning program=test n=3\\x0aforged=yes\n"));
        assert_memory_equal(text, "time=20", 7);
}

static void test_environment_overrides_level(void **state) {
        char buf[1024];
        (void) setenv("CAIRN_LOG", "debug", 1);
        assert_non_null(strstr(captured(log_three_levels, buf, sizeof buf), "n=2"));
        (void) setenv("CAIRN_LOG", "loud", 1);
        assert_null(strstr(captured(log_three_levels, buf, sizeof buf), "n=2"));
        (void) unsetenv("CAIRN_LOG");
}

static void log_long_line(void) {
        char text[8000];
        memset(text, 'x', sizeof text - 1);
        text[sizeof text - 1] = '\0';
        log_event(LOG_LEVEL_ERROR, "text=%s", text);
}

static void test_long_lines_end(void **state) {
        char buf[9000];
        const char *text = captured(log_long_line, buf, sizeof buf);
        assert_true(strlen(text) < 4096);
        assert_string_equal(text + strlen(text) - 4, "...\n");
}

static void log_one_error(void) {
        struct cairn_error e;
        (void) error_set_errno(&e, ENOSPC, "write", "say \"hi\"");
        log_error(LOG_LEVEL_ERROR, "save", &e);
}

static void test_error_line(void **state) {
        char buf[1024];
        const char *text = captured(log_one_error, buf, sizeof buf);
        assert_non_null(strstr(text, "what=\"save\" status=NOSPACE error=\"write say \\x22hi\\x22: "
                                     "No space left on device: free space"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_escape),
                cmocka_unit_test(test_escape_refuses_what_is_not_utf8),
                cmocka_unit_test(test_escape_truncates),
                cmocka_unit_test(test_escape_control_keeps_quotes),
                cmocka_unit_test(test_plain),
                cmocka_unit_test(test_levels_and_lines),
                cmocka_unit_test(test_environment_overrides_level),
                cmocka_unit_test(test_long_lines_end),
                cmocka_unit_test(test_error_line),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
