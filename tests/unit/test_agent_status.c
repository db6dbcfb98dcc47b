/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/status.h"
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"
#include <jansson.h>

static struct fixture f;
static struct fixture_trainer t;
static int runner, tool;

static json_t *ask(void) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__StatusRequest m = CAIRN__CONTROL__STATUS_REQUEST__INIT;
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_STATUS_REQUEST;
        e.status_request = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, tool, &e, NULL, 0);
        assert_int_equal(reply->body_case, CAIRN__CONTROL__ENVELOPE__BODY_STATUS_REPLY);
        assert_false(reply->status_reply->more);
        json_t *j = json_loadb((char *) reply->status_reply->json.data,
                               reply->status_reply->json.len, 0, NULL);
        assert_non_null(j);
        return j;
}

static void test_content(void **state) {
        const char *name, *phase, *session_state;
        int committed, rank_step, checkpoints;
        json_t *snapshot;
        (void) state;
        fixture_init(&f);
        runner = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER);
        tool = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_TOOL);
        json_t *j = ask();
        assert_int_equal(json_array_size(json_object_get(j, "runs")), 0);
        json_decref(j);
        fixture_start_run(&f, runner, 1);
        fixture_hello(&f, &t, 0);
        fixture_seal(&f, &t, 1);
        fixture_restore_done(&f, &t);
        fixture_run_ms(&f, 20);
        fixture_update(&f, &t, 35, true);
        fixture_run_ms(&f, 50);
        f.saver_holds_write = true;
        fixture_update(&f, &t, 36, true);
        fixture_run_ms(&f, 20);
        j = ask();
        assert_int_equal(json_unpack(j, "{s:[{s:s, s:i, s:i, s:o, s:[{s:s, s:s, s:i}]}]}", "runs",
                                     "run", &name, "committed_step", &committed, "checkpoints",
                                     &checkpoints, "snapshot", &snapshot, "ranks", "phase", &phase,
                                     "state", &session_state, "step", &rank_step),
                         0);
        assert_string_equal(name, "demo");
        assert_int_equal(committed, 35);
        assert_int_equal(checkpoints, 1);
        assert_int_equal(json_integer_value(json_object_get(snapshot, "step")), 36);
        assert_string_equal(session_state, "active");
        assert_int_equal(rank_step, 36);
        json_decref(j);
        fixture_trainer_done(&t);
        (void) close(runner);
        (void) close(tool);
        fixture_done(&f);
}

/* More than a packet holds: in parts, and whole again. */
static void test_parts(void **state) {
        struct wire_fds fds = WIRE_FDS_INIT;
        Cairn__Control__Envelope *e;
        struct arena arena;
        size_t bytes = 3 * STATUS_PACKET_BYTES + 17, got = 0;
        char *text = malloc(bytes + 1);
        (void) state;
        assert_non_null(text);
        for (size_t i = 0; i < bytes; i++)
                text[i] = (char) ('a' + i % 26);
        text[bytes] = 0;
        fixture_init(&f);
        arena_init(&arena, 4 * MiB);
        tool = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_TOOL);
        struct connection *c = NULL;
        for (size_t i = 0; i < CONNECTION_COUNT_MAX && !c; i++)
                if (f.agent.server.connections[i].fd >= 0)
                        c = &f.agent.server.connections[i];
        struct reply_to to = server_later(c, 9);
        status_send(&to, text);
        for (bool more = true; more;) {
                arena_clear(&arena);
                while (wire_receive(tool, &arena, &e, &fds, 0, NULL) == CAIRN_ERR_BUSY)
                        fixture_run_ms(&f, 1);
                assert_int_equal(e->id, 9);
                assert_memory_equal(e->status_reply->json.data, text + got,
                                    e->status_reply->json.len);
                got += e->status_reply->json.len;
                more = e->status_reply->more;
        }
        assert_int_equal(got, bytes);
        free(text);
        arena_done(&arena);
        (void) close(tool);
        fixture_done(&f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_content),
                cmocka_unit_test(test_parts),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
