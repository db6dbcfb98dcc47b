/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a notice, and what it does to a run that is played (agent_fixture).
 */
#include "agent/notice.h"
#include "base/limits.h"
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define RUNNER CAIRN__CONTROL__PEER_KIND__PEER_RUNNER
#define TOOL CAIRN__CONTROL__PEER_KIND__PEER_TOOL

static void test_plan(void **state) {
        static const struct {
                uint64_t left_ms, image, count, flight, rate; /* MiB, MiB per second */
                enum notice_decision decision;
                uint64_t need_ms;
        } rows[] = {
                {30000, 1000, 0, 0, 100, NOTICE_CUT, 10200},
                {30000, 1000, 1, 1000, 100, NOTICE_CUT, 20400},
                {20400, 1000, 1, 1000, 100, NOTICE_CUT, 20400},
                {20399, 1000, 1, 1000, 100, NOTICE_COMMIT, 10200}, /* of both the overhead, too */
                {10200, 1000, 1, 1000, 100, NOTICE_COMMIT, 10200},
                {10199, 1000, 1, 1000, 100, NOTICE_FINISH, 10200},
                {1000, 1000, 2, 0, 100, NOTICE_COMMIT, 400}, /* written, to be committed */
                {0, 1000, 1, 1, 100, NOTICE_FINISH, 210},
                {0, 1000, 0, 0, 100, NOTICE_CUT, 10200}, /* there is nothing that it could cost */
                {1000, 1, 1, 1, 0, NOTICE_FINISH, UINT64_C(1048576) * 1000 + 200},
        };
        uint64_t need_ns = 0;
        (void) state;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                const struct notice_budget b = {.left_ns = rows[i].left_ms * NSEC_PER_MSEC,
                                                .image_bytes = rows[i].image * MiB,
                                                .flight_count = rows[i].count,
                                                .flight_bytes = rows[i].flight * MiB,
                                                .bandwidth = rows[i].rate * MiB,
                                                .overhead_ns = 200 * NSEC_PER_MSEC};
                assert_int_equal(notice_plan(&b, &need_ns), rows[i].decision);
                assert_int_equal(need_ns / NSEC_PER_MSEC, rows[i].need_ms);
        }
        const struct notice_budget huge = {.left_ns = 1,
                                           .image_bytes = UINT64_MAX / 2,
                                           .flight_count = 1,
                                           .flight_bytes = 1,
                                           .bandwidth = 1};
        assert_int_equal(notice_plan(&huge, &need_ns), NOTICE_FINISH);
}

static struct fixture f;
static struct fixture_trainer t;
static int runner, tool;

static void begin(void) {
        fixture_init(&f);
        runner = fixture_connect(&f, RUNNER);
        tool = fixture_connect(&f, TOOL);
        fixture_start_run(&f, runner, 1);
        fixture_hello(&f, &t, 0);
        fixture_seal(&f, &t, 1);
        fixture_restore_done(&f, &t);
        fixture_run_ms(&f, 20);
}

static void end(void) {
        fixture_trainer_done(&t);
        (void) close(runner);
        (void) close(tool);
        fixture_done(&f);
}

static const Cairn__Control__Envelope *notify(const char *kind, uint64_t in_ms) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__NoticeRequest m = CAIRN__CONTROL__NOTICE_REQUEST__INIT;
        m.run = (ProtobufCBinaryData){4, (uint8_t *) "demo"};
        m.kind = (ProtobufCBinaryData){strlen(kind), (uint8_t *) (uintptr_t) kind};
        m.in_ns = in_ms * NSEC_PER_MSEC;
        m.source = (ProtobufCBinaryData){8, (uint8_t *) "operator"};
        m.id = (ProtobufCBinaryData){2, (uint8_t *) "n1"};
        e.body_case = BODY(NOTICE_REQUEST);
        e.notice_request = &m;
        return fixture_ask(&f, tool, &e, NULL, 0);
}

static void test_rebalance(void **state) {
        (void) state;
        begin();
        fixture_update(&f, &t, 7, false);
        const Cairn__Control__Envelope *reply = notify("rebalance", 5000);
        assert_int_equal(reply->body_case, BODY(NOTICE));
        assert_false(reply->notice->stops);
        assert_memory_equal(reply->notice->decision.data, "cut", 3);
        fixture_run_ms(&f, 50);
        assert_int_equal(atomic_load(&t.page->committed_step), 7);
        assert_int_equal(f.last[STORE_COMMIT].reason, 2);
        assert_false(atomic_load(&t.page->wishes) & CUT_WISH_STOP);
        assert_false(agent_find_run(&f.agent, "demo")->notice.active);
        end();
}

/* Before the trainer has registered anything, and when all is committed as it stands. */
static void test_nothing_to_commit(void **state) {
        (void) state;
        fixture_init(&f);
        runner = fixture_connect(&f, RUNNER);
        tool = fixture_connect(&f, TOOL);
        fixture_start_run(&f, runner, 1);
        assert_memory_equal(notify("rebalance", 5000)->notice->decision.data, "none", 4);
        fixture_hello(&f, &t, 0);
        fixture_seal(&f, &t, 1);
        fixture_restore_done(&f, &t);
        fixture_update(&f, &t, 3, true);
        fixture_run_ms(&f, 50);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 1);
        assert_memory_equal(notify("preempt", 2000)->notice->decision.data, "none", 4);
        fixture_run_ms(&f, 20);
        assert_int_equal(fixture_count(&f, STORE_COMMIT), 1);
        assert_true(agent_find_run(&f.agent, "demo")->stop.active);
        end();
}

static void test_preempt(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        (void) state;
        begin();
        fixture_update(&f, &t, 7, false);
        const Cairn__Control__Envelope *reply = notify("preempt", 2000);
        assert_true(reply->notice->stops && reply->notice->left_ns > 0);
        fixture_run_ms(&f, 100);
        assert_int_equal(atomic_load(&t.page->committed_step), 7);
        struct run *run = agent_find_run(&f.agent, "demo");
        assert_true(run->notice.active && run->stop.active);
        assert_true(run->stop.deadline_ns < run->notice.deadline_ns);
        assert_true(atomic_load(&t.page->wishes) & CUT_WISH_STOP);
        /* A hint adds nothing, and a later deadline does not either. */
        uint64_t deadline_ns = run->notice.deadline_ns;
        assert_true(notify("rebalance", 1000)->notice->stops);
        assert_true(notify("preempt", 50000)->notice->stops);
        assert_true(run->notice.deadline_ns == deadline_ns);
        assert_int_equal(notice_check_start(&f.agent, "demo", false, &e), CAIRN_ERR_PREEMPTED);
        assert_int_equal(notice_check_start(&f.agent, "demo", true, &e), 0);
        assert_int_equal(notice_check_start(&f.agent, "other", false, &e), 0);
        end();
}

/* Something is being written, and there is time for no more. */
static void test_only_finish(void **state) {
        (void) state;
        begin();
        struct run *run = agent_find_run(&f.agent, "demo");
        f.saver_holds_write = true;
        fixture_update(&f, &t, 7, true);
        fixture_run_ms(&f, 20);
        fixture_update(&f, &t, 8, false);
        fixture_session(&f, 0)->write_rate = 1;
        const Cairn__Control__Envelope *reply = notify("preempt", 3000);
        assert_memory_equal(reply->notice->decision.data, "finish", 6);
        assert_true(reply->notice->flight_bytes > 0);
        fixture_run_ms(&f, 50);
        assert_false(run->stop.active);                    /* as long as it may still get there */
        for (int i = 0; i < 300 && !run->stop.active; i++) /* not longer: its trainer is killed */
                fixture_run_ms(&f, 10);
        assert_true(run->stop.active); /* it did not */
        end();
}

static void test_refusals(void **state) {
        static const char *const kinds[] = {"", "earthquake", "two words", "\033"};
        (void) state;
        begin();
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
                assert_int_equal(notify(kinds[i], 1000)->failure->status, CAIRN_ERR_API);
        assert_int_equal(notify("preempt", 0)->failure->status, CAIRN_ERR_API);
        assert_int_equal(notify("preempt", UINT64_C(25) * 3600 * 1000)->failure->status,
                         CAIRN_ERR_API);
        assert_false(agent_find_run(&f.agent, "demo")->notice.active);
        end();
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_plan),     cmocka_unit_test(test_rebalance),
                cmocka_unit_test(test_preempt),  cmocka_unit_test(test_only_finish),
                cmocka_unit_test(test_refusals), cmocka_unit_test(test_nothing_to_commit),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
