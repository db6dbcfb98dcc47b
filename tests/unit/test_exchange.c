/* SPDX-License-Identifier: Apache-2.0
 *
 * The agent's side of the exchange between ranks, in its loop (agent_fixture.h).
 */
#include "agent/exchange.h"
#include "tests/test.h"
#include "tests/unit/agent_fixture.h"

#define BODY(name) CAIRN__CONTROL__ENVELOPE__BODY_##name
enum { WORLD = 2 };

static struct fixture f;
static struct fixture_trainer t[WORLD];
static int runner;

static int setup(void **state) {
        (void) state;
        fixture_init(&f);
        runner = fixture_connect(&f, CAIRN__CONTROL__PEER_KIND__PEER_RUNNER);
        fixture_start_run(&f, runner, WORLD);
        for (uint32_t i = 0; i < WORLD; i++)
                fixture_hello(&f, &t[i], i);
        return 0;
}

static int teardown(void **state) {
        (void) state;
        for (uint32_t i = 0; i < WORLD; i++)
                fixture_trainer_done(&t[i]);
        (void) close(runner);
        fixture_done(&f);
        return 0;
}

/* The status of the answer. */
static int put_bytes(uint32_t rank, const void *key, size_t key_bytes, const void *value,
                     size_t bytes) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangePut m = CAIRN__CONTROL__EXCHANGE_PUT__INIT;
        m.key = (ProtobufCBinaryData){key_bytes, (uint8_t *) (uintptr_t) key};
        m.value = (ProtobufCBinaryData){bytes, (uint8_t *) (uintptr_t) value};
        e.body_case = BODY(EXCHANGE_PUT);
        e.exchange_put = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, t[rank].socket, &e, NULL, 0);
        assert_non_null(reply);
        if (reply->failure)
                return reply->failure->status;
        assert_int_equal(reply->body_case, BODY(DONE));
        return 0;
}

static int put(uint32_t rank, const char *key, const char *value) {
        return put_bytes(rank, key, strlen(key), value, strlen(value));
}

static void ask_for(uint32_t rank, const char *key, uint64_t wait_ns) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangeGet m = CAIRN__CONTROL__EXCHANGE_GET__INIT;
        m.key = (ProtobufCBinaryData){strlen(key), (uint8_t *) (uintptr_t) key};
        m.wait_ns = wait_ns;
        e.body_case = BODY(EXCHANGE_GET);
        e.exchange_get = &m;
        (void) fixture_send(&f, t[rank].socket, &e, NULL, 0);
}

/* value NULL: the answer is that nobody put it. */
static void expect(uint32_t rank, const char *value) {
        const Cairn__Control__Envelope *reply = fixture_receive(&f, t[rank].socket);
        assert_non_null(reply);
        assert_int_equal(reply->body_case, BODY(EXCHANGE_VALUE));
        assert_int_equal(reply->exchange_value->present, value != NULL);
        assert_int_equal(reply->exchange_value->value.len, value ? strlen(value) : 0);
        if (value)
                assert_memory_equal(reply->exchange_value->value.data, value, strlen(value));
}

static void test_put_and_get(void **state) {
        (void) state;
        assert_int_equal(put(0, "address/0", "127.0.0.1:7"), 0);
        ask_for(1, "address/0", 0);
        expect(1, "127.0.0.1:7");
        ask_for(1, "address/1", 0);
        expect(1, NULL);
        /* What is put again replaces it, whoever does. */
        assert_int_equal(put(0, "address/0", "127.0.0.1:7"), 0);
        assert_int_equal(put(1, "address/0", "[::1]:8"), 0);
        ask_for(0, "address/0", 0);
        expect(0, "[::1]:8");
        assert_int_equal(put(1, "empty", ""), 0);
        ask_for(0, "empty", 0);
        expect(0, "");
}

static void test_waiting(void **state) {
        (void) state;
        uint64_t begin_ns = clock_now(&clock_system);
        ask_for(0, "late", 30 * NSEC_PER_SEC);
        fixture_run_ms(&f, 20);
        assert_int_equal(put(1, "late", "here"), 0);
        expect(0, "here");
        assert_true(clock_now(&clock_system) - begin_ns < 10 * NSEC_PER_SEC);
        ask_for(0, "never", 30 * NSEC_PER_MSEC);
        expect(0, NULL);
        /* One waits at a time: the first hears that nobody has put it yet. */
        ask_for(1, "one", 30 * NSEC_PER_SEC);
        ask_for(1, "two", 30 * NSEC_PER_SEC);
        expect(1, NULL);
        assert_int_equal(put(0, "two", "2"), 0);
        expect(1, "2");
}

static void test_limits(void **state) {
        static char key[EXCHANGE_KEY_BYTES_MAX + 1], value[EXCHANGE_VALUE_BYTES_MAX + 1];
        (void) state;
        memset(key, 'k', sizeof key);
        assert_int_equal(put_bytes(0, key, EXCHANGE_KEY_BYTES_MAX, value, EXCHANGE_VALUE_BYTES_MAX),
                         0);
        assert_int_equal(put_bytes(0, key, sizeof key, value, 1), CAIRN_ERR_API);
        assert_int_equal(put_bytes(0, key, 0, value, 1), CAIRN_ERR_API);
        assert_int_equal(put_bytes(0, "v", 1, value, sizeof value), CAIRN_ERR_API);
        /* Keys of one rank; another one still has its room. */
        char name[32];
        for (int i = 1; i < EXCHANGE_KEYS_PER_RANK_MAX; i++) {
                (void) snprintf(name, sizeof name, "key %d", i);
                assert_int_equal(put(0, name, "v"), 0);
        }
        assert_int_equal(put(0, "one more", "v"), CAIRN_ERR_NOSPACE);
        assert_int_equal(put(0, "key 1", "again"), 0);
        assert_int_equal(put(1, "key 1", "another's"), 0);
        assert_int_equal(put(0, "one more", "v"), 0);
        assert_int_equal(put(0, "and more", "v"), CAIRN_ERR_NOSPACE);
        size_t fits = EXCHANGE_BYTES_PER_RANK_MAX / (EXCHANGE_VALUE_BYTES_MAX + 5);
        for (size_t i = 0; i <= fits; i++) {
                (void) snprintf(name, sizeof name, "big%02zu", i);
                assert_int_equal(put_bytes(1, name, 5, value, EXCHANGE_VALUE_BYTES_MAX),
                                 i < fits ? 0 : CAIRN_ERR_NOSPACE);
        }
}

/* The answer's keys, joined, and whether there are more; NULL: a failure. */
static const char *list(const char *prefix, const char *after) {
        static char keys[8192];
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangeList m = CAIRN__CONTROL__EXCHANGE_LIST__INIT;
        m.prefix = (ProtobufCBinaryData){strlen(prefix), (uint8_t *) (uintptr_t) prefix};
        m.after = (ProtobufCBinaryData){strlen(after), (uint8_t *) (uintptr_t) after};
        e.body_case = BODY(EXCHANGE_LIST);
        e.exchange_list = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, t[0].socket, &e, NULL, 0);
        assert_non_null(reply);
        if (reply->failure)
                return NULL;
        assert_int_equal(reply->body_case, BODY(EXCHANGE_ITEMS));
        size_t at = 0;
        keys[0] = 0;
        for (size_t i = 0; i < reply->exchange_items->n_items; i++) {
                const Cairn__Control__Pair *p = reply->exchange_items->items[i];
                at += (size_t) snprintf(keys + at, sizeof keys - at, "%.*s=%zu ", (int) p->key.len,
                                        (char *) p->key.data, p->value.len);
        }
        (void) snprintf(keys + at, sizeof keys - at, "%s", reply->exchange_items->more ? "+" : "");
        return keys;
}

static void test_list(void **state) {
        static char large[40000];
        (void) state;
        assert_string_equal(list("", ""), "");
        assert_int_equal(put(1, "b.2", "xx"), 0);
        assert_int_equal(put(0, "b.10", "x"), 0);
        assert_int_equal(put(0, "a", "x"), 0);
        assert_int_equal(put(0, "b", ""), 0);
        assert_int_equal(put(0, "c", "x"), 0);
        assert_string_equal(list("", ""), "a=1 b=0 b.10=1 b.2=2 c=1 ");
        assert_string_equal(list("b", ""), "b=0 b.10=1 b.2=2 ");
        assert_string_equal(list("b.", "b.10"), "b.2=2 ");
        assert_string_equal(list("d", ""), "");
        /* Large ones come in several answers. */
        for (char key[] = "l1"; key[1] <= '5'; key[1]++)
                assert_int_equal(put_bytes(1, key, 2, large, sizeof large), 0);
        assert_string_equal(list("l", ""), "l1=40000 l2=40000 +");
        assert_string_equal(list("l", "l2"), "l3=40000 l4=40000 +");
        assert_string_equal(list("l", "l4"), "l5=40000 ");
}

static void test_ranks(void **state) {
        (void) state;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangeRanksRequest m = CAIRN__CONTROL__EXCHANGE_RANKS_REQUEST__INIT;
        e.body_case = BODY(EXCHANGE_RANKS_REQUEST);
        e.exchange_ranks_request = &m;
        const Cairn__Control__Envelope *reply = fixture_ask(&f, t[0].socket, &e, NULL, 0);
        assert_int_equal(reply->body_case, BODY(EXCHANGE_RANKS));
        assert_int_equal(reply->exchange_ranks->n_ranks, 2);
        assert_int_equal(reply->exchange_ranks->ranks[0], 0);
        assert_int_equal(reply->exchange_ranks->ranks[1], 1);
        assert_int_equal(reply->exchange_ranks->generation, t[0].generation);
        session_died(fixture_session(&f, 0));
        reply = fixture_ask(&f, t[1].socket, &e, NULL, 0);
        assert_int_equal(reply->exchange_ranks->n_ranks, 1);
        assert_int_equal(reply->exchange_ranks->ranks[0], 1);
}

/* No key of an older generation is visible, and none of its ranks may put one. */
static void test_generations(void **state) {
        (void) state;
        assert_int_equal(put(0, "address", "old"), 0);
        struct fixture_trainer old = t[0];
        for (uint32_t i = 0; i < WORLD; i++)
                session_died(fixture_session(&f, i));
        fixture_run_ms(&f, 50);
        assert_int_equal(put(0, "address", "older"), CAIRN_ERR_STALE);
        fixture_start_run(&f, runner, WORLD);
        for (uint32_t i = 0; i < WORLD; i++) {
                if (i)
                        fixture_trainer_done(&t[i]);
                fixture_hello(&f, &t[i], i);
        }
        ask_for(1, "address", 0);
        expect(1, NULL);
        struct fixture_trainer new = t[0];
        t[0] = old;
        assert_int_equal(put(0, "address", "old"), CAIRN_ERR_STALE);
        fixture_trainer_done(&old);
        t[0] = new;
        assert_int_equal(put(0, "address", "new"), 0);
        ask_for(1, "address", 0);
        expect(1, "new");
}

int main(void) {
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(test_put_and_get), TEST(test_waiting),     TEST(test_limits),
                TEST(test_ranks),       TEST(test_generations), TEST(test_list),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
