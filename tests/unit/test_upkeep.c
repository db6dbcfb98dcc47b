/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
#define TEXT(s)                                            \
        (ProtobufCBinaryData) {                            \
                sizeof(s) - 1, (uint8_t *) (uintptr_t) (s) \
        }

static struct fixture f;
static int tool;

static const Cairn__Control__Envelope *prune(Cairn__Control__PruneRequest *m) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        e.body_case = BODY(PRUNE_REQUEST);
        e.prune_request = m;
        return fixture_ask(&f, tool, &e, NULL, 0);
}

static const Cairn__Control__Envelope *pin(Cairn__Control__PinRequest *m) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        e.body_case = BODY(PIN_REQUEST);
        e.pin_request = m;
        return fixture_ask(&f, tool, &e, NULL, 0);
}

static int set_up(void **state) {
        fixture_init(&f);
        tool = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_TOOL);
        return 0;
}

static int tear_down(void **state) {
        (void) close(tool);
        fixture_done(&f);
        return 0;
}

static void test_a_stored_run(void **state) {
        Cairn__Control__PruneRequest m = CAIRN__CONTROL__PRUNE_REQUEST__INIT;
        m.run = TEXT("stored");
        m.store = TEXT("/somewhere");
        m.keep_last = 2;
        m.keep_every = 100;
        m.dry_run = true;
        const Cairn__Control__Envelope *reply = prune(&m);
        assert_int_equal(reply->body_case, BODY(PRUNE_REPLY));
        const struct store_message *asked = &f.last[STORE_RETAIN];
        assert_string_equal(asked->run, "stored");
        assert_int_equal(asked->generation, 0); /* nobody's: locked for this request */
        assert_int_equal(asked->keep_last, 2);
        assert_int_equal(asked->keep_every, 100);
        assert_true(asked->dry_run);
        assert_null(f.agent.upkeeps);
}

/* Deleting takes several requests; the answer is about all of them. */
static void test_much_to_prune(void **state) {
        Cairn__Control__PruneRequest m = CAIRN__CONTROL__PRUNE_REQUEST__INIT;
        m.run = TEXT("stored");
        m.store = TEXT("/somewhere");
        m.keep_last = 2;
        f.retain_more = 3;
        f.retain_count = 1;
        const Cairn__Control__Envelope *reply = prune(&m);
        assert_int_equal(reply->body_case, BODY(PRUNE_REPLY));
        assert_int_equal(fixture_count(&f, STORE_RETAIN), 4);
        assert_int_equal(reply->prune_reply->deleted, 1);
        assert_int_equal(reply->prune_reply->names.len, 4);
        assert_null(f.agent.upkeeps);
        f.retain_more = 1;
        f.retain_fails = true; /* the second one */
        reply = prune(&m);
        assert_int_equal(reply->failure->status, CAIRN_ERR_IO);
        assert_null(f.agent.upkeeps);
}

static void test_pins(void **state) {
        Cairn__Control__PinRequest m = CAIRN__CONTROL__PIN_REQUEST__INIT;
        m.run = TEXT("stored");
        m.store = TEXT("/somewhere");
        m.checkpoint = TEXT("000000000010-g0001");
        m.pinned = true;
        assert_int_equal(pin(&m)->body_case, BODY(DONE));
        assert_string_equal(f.last[STORE_PIN].name, "000000000010-g0001");
        m.pinned = false;
        assert_int_equal(pin(&m)->body_case, BODY(DONE));
        assert_int_equal(fixture_count(&f, STORE_UNPIN), 1);
        f.fail_verb = STORE_PIN;
        f.fail_status = CAIRN_ERR_EXISTS;
        m.pinned = true;
        const Cairn__Control__Envelope *reply = pin(&m);
        assert_non_null(reply->failure);
        assert_int_equal(reply->failure->status, CAIRN_ERR_EXISTS);
        assert_null(f.agent.upkeeps);
}

static void test_refusals(void **state) {
        Cairn__Control__PruneRequest m = CAIRN__CONTROL__PRUNE_REQUEST__INIT;
        m.run = TEXT("stored");
        m.store = TEXT("/somewhere");
        assert_int_equal(prune(&m)->failure->status, CAIRN_ERR_API); /* keep none */
        m.keep_last = 1;
        m.store = TEXT("relative");
        assert_int_equal(prune(&m)->failure->status, CAIRN_ERR_API);
        m.store = TEXT("");
        assert_int_equal(prune(&m)->failure->status, CAIRN_ERR_API);
        m.store = TEXT("/some\0where");
        assert_int_equal(prune(&m)->failure->status, CAIRN_ERR_API);
        m.store = TEXT("/somewhere");
        m.run = TEXT("../other");
        assert_int_equal(prune(&m)->failure->status, CAIRN_ERR_API);
        assert_int_equal(f.asked_count, 0);
}

/* The agent ends while the store has not answered: nothing is left behind. */
static void test_unanswered(void **state) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__PruneRequest m = CAIRN__CONTROL__PRUNE_REQUEST__INIT;
        m.run = TEXT("stored");
        m.store = TEXT("/somewhere");
        m.keep_last = 1;
        e.body_case = BODY(PRUNE_REQUEST);
        e.prune_request = &m;
        f.store_holds = true;
        (void) fixture_send(&f, tool, &e, NULL, 0);
        fixture_run_ms(&f, 20);
        assert_non_null(f.agent.upkeeps);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(test_a_stored_run, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_much_to_prune, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_pins, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_refusals, set_up, tear_down),
                cmocka_unit_test_setup_teardown(test_unanswered, set_up, tear_down),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
