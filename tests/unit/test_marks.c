/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/store_fixture.h"

static struct fixture *started(void) {
        struct fixture *f = fixture_new();
        assert_int_equal(fixture_start_mode(f, START_FRESH), 0);
        fixture_commit(f, 10);
        return f;
}

static struct run_scan scan(struct fixture *f) {
        struct run_scan s;
        assert_int_equal(run_scan(&io_system, f->run.fd, "run", true, &s, &f->e), 0);
        return s;
}

static void test_finished(void **state) {
        struct fixture *f = started();

        assert_int_equal(mark_finished(&f->run, "early stop", 10, 1, &f->e), 0);
        assert_int_equal(mark_finished(&f->run, "all steps", 12, 1, &f->e), 0);
        struct run_scan s = scan(f);
        assert_true(s.finished);
        assert_string_equal(s.finished_reason, "all steps");
        assert_int_equal(s.finished_step, 12);
        run_scan_done(&s);
        fixture_free(f);
}

static void test_pin_and_unpin(void **state) {
        struct fixture *f = started();

        assert_int_equal(mark_pin(&f->run, "000000000010-g0001", true, &f->e), 0);
        assert_int_equal(mark_pin(&f->run, "000000000010-g0001", true, &f->e), 0);
        struct run_scan s = scan(f);
        assert_true(s.checkpoints[0].pinned);
        run_scan_done(&s);
        assert_int_equal(mark_pin(&f->run, "000000000010-g0001", false, &f->e), 0);
        assert_int_equal(mark_pin(&f->run, "000000000010-g0001", false, &f->e), 0);
        s = scan(f);
        assert_false(s.checkpoints[0].pinned);
        run_scan_done(&s);
        assert_int_equal(mark_pin(&f->run, "000000000011-g0001", true, &f->e), CAIRN_ERR_NOTFOUND);
        assert_int_equal(mark_pin(&f->run, "../other", true, &f->e), CAIRN_ERR_NOTFOUND);
        fixture_free(f);
}

static void test_tag(void **state) {
        struct fixture *f = started();
        struct file_content content;
        struct arena arena;

        assert_int_equal(mark_tag(&f->run, "000000000010-g0001", "best", &f->e), 0);
        arena_init(&arena, 1 * MiB);
        assert_int_equal(file_load(&io_system, f->run.fd, "marks/TAG-000000000010-g0001", FILE_MARK,
                                   &arena, &content, NULL, NULL, &f->e),
                         0);
        assert_int_equal(content.mark->kind, FILE_MARK_TAG);
        assert_memory_equal(content.mark->reason.data, "best", 4);
        assert_int_equal(content.mark->step, 10);
        arena_done(&arena);
        /* A tag that could not be read back is not written. */
        assert_true(mark_tag(&f->run, "000000000010-g0001", "\xff", &f->e) < 0);
        fixture_free(f);
}

static void test_exit_is_json(void **state) {
        struct fixture *f = started();
        char text[512], *long_reason = malloc(10000);
        void *bytes;
        size_t count;

        assert_int_equal(mark_exit(&f->run, 75, "pre\"empted\n\\", 10, &f->e), 0);
        assert_int_equal(
                io_read_file(&io_system, f->run.fd, "exit.json", 4096, &bytes, &count, NULL), 0);
        (void) snprintf(text, sizeof text, "%.*s", (int) count, (char *) bytes);
        assert_string_equal(text,
                            "{\"code\":75,\"reason\":\"pre\\\"empted\\u000a\\\\\",\"step\":10}\n");
        free(bytes);
        memset(long_reason, 'x', 9999);
        long_reason[9999] = '\0';
        assert_int_equal(mark_exit(&f->run, 1, long_reason, -1, &f->e), 0);
        assert_int_equal(
                io_read_file(&io_system, f->run.fd, "exit.json", 4096, &bytes, &count, NULL), 0);
        assert_memory_equal((char *) bytes + count - 15, "xx\",\"step\":-1}\n", 15);
        free(bytes);
        free(long_reason);
        fixture_free(f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_finished),
                cmocka_unit_test(test_pin_and_unpin),
                cmocka_unit_test(test_tag),
                cmocka_unit_test(test_exit_is_json),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
