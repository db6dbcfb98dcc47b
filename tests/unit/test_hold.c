/* SPDX-License-Identifier: Apache-2.0
 *
 * Cuts of two ranks, with a played store and played savers (agent_fixture.h): wherever each rank
 * is, one step is cut, or none.
 */
#include "agent/hold.h"
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define DEMO ((ProtobufCBinaryData){4, (uint8_t *) "demo"})
enum { WORLD = 2 };

static struct fixture f;
static struct fixture_trainer t[WORLD];
static int runner, tool;

static int setup(void **state) {
        (void) state;
        fixture_init(&f);
        runner = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER);
        tool = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_TOOL);
        fixture_start_run(&f, runner, WORLD);
        for (uint32_t i = 0; i < WORLD; i++) {
                fixture_hello(&f, &t[i], i);
                fixture_seal(&f, &t[i], 1);
                fixture_restore_done(&f, &t[i]);
        }
        fixture_run_ms(&f, 20);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        for (uint32_t i = 0; i < WORLD; i++)
                fixture_trainer_done(&t[i]);
        (void) close(runner);
        (void) close(tool);
        fixture_done(&f);
        return 0;
}

static struct run *run(void) {
        return agent_find_run(&f.agent, "demo");
}

static void demand(uint64_t timeout_ns) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__SnapshotRequest m = CAIRN__CONTROL__SNAPSHOT_REQUEST__INIT;
        m.run = DEMO;
        m.wait = true;
        m.timeout_ns = timeout_ns;
        e.body_case = BODY(SNAPSHOT_REQUEST);
        e.snapshot_request = &m;
        (void) fixture_send(&f, tool, &e, NULL, 0);
}

static void expect_committed(int64_t step) {
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        assert_non_null(reply);
        assert_null(reply->failure);
        assert_int_equal(reply->body_case, BODY(SNAPSHOT_REPLY));
        assert_int_equal(reply->snapshot_reply->step, step);
        for (uint32_t i = 0; i < WORLD; i++)
                assert_int_equal(atomic_load(&t[i].page->committed_step), step);
        assert_int_equal(run()->attempts_failed, 0);
}

static enum cut_phase phase(uint32_t rank) {
        return cut_read(t[rank].page).phase;
}

static void test_level(void **state) {
        (void) state;
        fixture_update(&f, &t[0], 7, false);
        fixture_update(&f, &t[1], 7, false);
        demand(5 * NSEC_PER_SEC);
        expect_committed(7);
        assert_int_equal(f.takes, WORLD);
}

/* One is a step behind: the other stands still until it has caught up, and no longer. */
static void test_uneven(void **state) {
        (void) state;
        fixture_update(&f, &t[0], 8, false);
        fixture_update(&f, &t[1], 7, false);
        demand(5 * NSEC_PER_SEC);
        fixture_run_ms(&f, 50);
        assert_int_equal(phase(0), CUT_COPYING);
        assert_int_equal(phase(1), CUT_STABLE);
        assert_true(hold_active(run()));
        fixture_update(&f, &t[1], 8, false);
        expect_committed(8);
        assert_int_equal(phase(0), CUT_STABLE);
        assert_false(hold_active(run()));
}

/* One never gets there: the other is let go before its gate's deadline; later it works. */
static void test_never_level(void **state) {
        (void) state;
        static_assert(HOLD_NS < GATE_DEADLINE_NS_MIN, "a hold costs nobody its gate's deadline");
        fixture_update(&f, &t[0], 8, false);
        fixture_update(&f, &t[1], 7, false);
        demand(30 * NSEC_PER_SEC);
        fixture_run_ms(&f, 20);
        assert_int_equal(phase(0), CUT_COPYING);
        uint64_t expired = 0;
        for (int i = 0; i < 400 && phase(0) == CUT_COPYING; i++, expired++)
                fixture_run_ms(&f, 10);
        assert_int_equal(phase(0), CUT_STABLE);
        fixture_update(&f, &t[0], 9, false);
        fixture_update(&f, &t[1], 8, false);
        fixture_run_ms(&f, 50);
        fixture_update(&f, &t[1], 9, false);
        expect_committed(9);
}

/* A gate's deadline expired under the hold: its trainer goes on, the cut is taken later. */
static void test_gate_wins(void **state) {
        (void) state;
        bool expired;
        struct cut_gate gate = {.deadline_duration_ns = NSEC_PER_MSEC};
        fixture_update(&f, &t[0], 8, false);
        fixture_update(&f, &t[1], 7, false);
        demand(5 * NSEC_PER_SEC);
        fixture_run_ms(&f, 50);
        assert_int_equal(cut_update_begin(t[0].page, &gate, &clock_system, &expired), 0);
        assert_true(expired);
        fixture_run_ms(&f, 50);
        uint64_t seq;
        bool ring;
        assert_int_equal(cut_update_end(t[0].page, 9, 1, &seq, &ring), 0);
        fixture_run_ms(&f, 300);
        fixture_update(&f, &t[1], 8, false);
        fixture_update(&f, &t[1], 9, false);
        expect_committed(9);
}

static void expect_failed(int status, const char *who) {
        const Cairn__Control__Envelope *reply = fixture_receive(&f, tool);
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_non_null(reply);
        assert_non_null(reply->failure);
        wire_failure_read(reply->failure, &e);
        assert_int_equal(e.status, status);
        assert_non_null(strstr(e.message, who));
}

/* One rank finds no room: the other's write is given up at once, whoever waits hears which one it
 * was, and the next cut works. */
static void test_failed_rank_frees_the_other(void **state) {
        (void) state;
        f.savers[1].holds_write = true;
        f.write_status = CAIRN_ERR_NOSPACE;
        fixture_update(&f, &t[0], 7, false);
        fixture_update(&f, &t[1], 7, false);
        demand(30 * NSEC_PER_SEC);
        expect_failed(CAIRN_ERR_NOSPACE, "rank 0: ");
        fixture_run_ms(&f, 50);
        assert_false(f.savers[1].cut);
        assert_int_equal(run()->attempts_failed, 1);
        assert_int_equal(fixture_count(&f, STORE_DISCARD), 1);
        assert_non_null(strstr(run()->last_error.message, "rank 0: "));
        assert_int_equal(fixture_session(&f, 1)->last_error.status, 0);
        /* Both are armed, each with the files of the next attempt. */
        assert_true(f.savers[0].armed && f.savers[1].armed);
        assert_int_equal(f.savers[0].attempt, f.savers[1].attempt);
        f.savers[1].holds_write = false;
        run()->attempts_failed = 0;
        demand(30 * NSEC_PER_SEC);
        expect_committed(7);
}

/* It fails while the other has not even copied. */
static void test_failed_rank_is_first(void **state) {
        (void) state;
        f.write_status = CAIRN_ERR_NOSPACE;
        f.savers[1].holds_copy = true;
        fixture_update(&f, &t[0], 7, false);
        fixture_update(&f, &t[1], 7, false);
        demand(30 * NSEC_PER_SEC);
        expect_failed(CAIRN_ERR_NOSPACE, "rank 0: ");
        fixture_run_ms(&f, 50);
        assert_int_equal(phase(1), CUT_STABLE); /* its gate is open again */
        assert_true(f.savers[0].armed && f.savers[1].armed);
        f.savers[1].holds_copy = false;
        run()->attempts_failed = 0;
        demand(30 * NSEC_PER_SEC);
        expect_committed(7);
}

/* One rank's request alone: the other stands at the same step and follows. */
static void test_follows(void **state) {
        (void) state;
        fixture_update(&f, &t[0], 5, false);
        fixture_update(&f, &t[1], 5, false);
        fixture_update(&f, &t[1], 6, false);
        fixture_update(&f, &t[0], 6, true);
        fixture_run_ms(&f, 100);
        for (uint32_t i = 0; i < WORLD; i++)
                assert_int_equal(atomic_load(&t[i].page->committed_step), 6);
        assert_int_equal(run()->attempts_failed, 0);
}

/* It went on already: that cut is given up soon, and the next one works. */
static void test_went_on(void **state) {
        (void) state;
        fixture_update(&f, &t[0], 5, true);
        fixture_run_ms(&f, 20);
        fixture_update(&f, &t[1], 6, false);
        fixture_run_ms(&f, 200);
        assert_int_equal(run()->cuts_skipped, 0); /* its saver's word might be on the way */
        fixture_run_ms(&f, 1200);
        assert_int_equal(run()->cuts_skipped, 1); /* which is no failure */
        assert_int_equal(run()->attempts_failed, 0);
        assert_int_equal(run()->last_error.status, 0);
        assert_int_equal(fixture_count(&f, STORE_DISCARD), 1);
        fixture_update(&f, &t[0], 7, true);
        fixture_update(&f, &t[1], 7, true);
        fixture_run_ms(&f, 100);
        for (uint32_t i = 0; i < WORLD; i++)
                assert_int_equal(atomic_load(&t[i].page->committed_step), 7);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_level, setup, teardown),
                cmocka_unit_test_setup_teardown(test_uneven, setup, teardown),
                cmocka_unit_test_setup_teardown(test_never_level, setup, teardown),
                cmocka_unit_test_setup_teardown(test_gate_wins, setup, teardown),
                cmocka_unit_test_setup_teardown(test_failed_rank_frees_the_other, setup, teardown),
                cmocka_unit_test_setup_teardown(test_failed_rank_is_first, setup, teardown),
                cmocka_unit_test_setup_teardown(test_follows, setup, teardown),
                cmocka_unit_test_setup_teardown(test_went_on, setup, teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
