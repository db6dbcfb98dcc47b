/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/small_session.h"

/* Misuse is an answer, never a crash. */
static void no_handle(void **state) {
        int64_t i;
        uint64_t u;
        double d;
        void *p;
        assert_int_equal(cairn_alloc(NULL, 1, &p), CAIRN_ERR_API);
        assert_int_equal(cairn_register(NULL, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_register_step(NULL, "s", NULL, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_state_i64(NULL, "v", &i), CAIRN_ERR_API);
        assert_int_equal(cairn_state_u64(NULL, "v", &u), CAIRN_ERR_API);
        assert_int_equal(cairn_state_f64(NULL, "v", &d), CAIRN_ERR_API);
        assert_int_equal(cairn_state_bytes(NULL, "v", &d, &u, 8), CAIRN_ERR_API);
        assert_int_equal(cairn_describe(NULL, "k", "v"), CAIRN_ERR_API);
        assert_int_equal(cairn_seal(NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_restore(NULL, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_update_begin(NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_update_end(NULL, 1), CAIRN_ERR_API);
        assert_int_equal(cairn_snapshot(NULL, &u), CAIRN_ERR_API);
        assert_int_equal(cairn_snapshot_poll(NULL, 1, &i), CAIRN_ERR_API);
        assert_int_equal(cairn_snapshot_wait(NULL, 1, 1, &i), CAIRN_ERR_API);
        assert_int_equal(cairn_finish(NULL, "x"), CAIRN_ERR_API);
        assert_int_equal(cairn_session(NULL, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_get_statistics(NULL, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_stored_count(NULL, &u), CAIRN_ERR_API);
        assert_int_equal(cairn_stored_tensor(NULL, 0, NULL), CAIRN_ERR_API);
        assert_null(cairn_stored_description(NULL, "k"));
        assert_null(cairn_override(NULL, "k"));
        assert_false(cairn_should_stop(NULL));
        assert_true(strlen(cairn_error_text(NULL)) > 0);
        assert_true(cairn_exit_code(NULL) > 0);
}

static void nulls_and_sizes(void **state) {
        struct fake_agent agent;
        struct small_session s;
        struct cairn_session session = {.size = 0};
        struct cairn_report report = {.size = 4};
        fake_agent_init(&agent);
        fake_agent_start(&agent);
        small_init(&s);
        assert_int_equal(small_open(&s, &agent), 0);
        assert_string_equal(cairn_error_text(s.c), "");
        assert_int_equal(cairn_alloc(s.c, 5, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_register(s.c, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_session(s.c, NULL), CAIRN_ERR_API);
        assert_int_equal(cairn_session(s.c, &session), CAIRN_ERR_API);
        assert_int_equal(cairn_describe(s.c, NULL, "v"), CAIRN_ERR_API);
        /* An older caller's shorter struct gets what it has room for. */
        session.size = offsetof(struct cairn_session, generation);
        session.generation = 4711;
        assert_int_equal(cairn_session(s.c, &session), 0);
        assert_string_equal(session.run, "run");
        assert_int_equal(session.generation, 4711);
        small_declare(&s);
        assert_int_equal(cairn_seal(s.c), CAIRN_ERR_API); /* of the registration above */
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, &report), CAIRN_ERR_API);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        assert_int_equal(cairn_finish(s.c, NULL), CAIRN_ERR_API);
        cairn_close(s.c);
        fake_agent_done(&agent);
}

static void names(void **state) {
        assert_string_equal(cairn_dtype_name(CAIRN_BF16), "bf16");
        assert_null(cairn_dtype_name(0));
        assert_int_equal(cairn_dtype_bytes(CAIRN_C128), 16);
        assert_int_equal(cairn_dtype_bytes(0), 0);
        assert_string_equal(cairn_status_name(CAIRN_ERR_BUSY), "BUSY");
        assert_string_equal(cairn_version(), CAIRN_VERSION_STRING);
        assert_string_equal(CAIRN_VERSION_STRING, CAIRN_VERSION);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(no_handle),
                cmocka_unit_test(nulls_and_sizes),
                cmocka_unit_test(names),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
