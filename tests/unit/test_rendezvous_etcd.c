/* SPDX-License-Identifier: Apache-2.0
 *
 * The etcd kind with answers that the test gives; the real etcd is in tests/e2e/rendezvous.sh.
 */
#include "agent/rendezvous_etcd.h"
#include "agent/rendezvous_process.h"
#include "tests/test.h"

enum { TURNS_MAX = 16 };
#define OPS (&rendezvous_etcd_ops)
#define HEADER "\"header\":{\"cluster_id\":\"77\",\"revision\":\"%d\"}"

/* What is asked (a part of it) and answered, in order. */
static struct turn {
        const char *path, *asked;
        long status;
        char answer[4000];
} turns[TURNS_MAX];
static size_t turn_count, turn_next;
static char last_body[20000];

static int scripted_post(void *context, const char *path, const char *body, uint64_t deadline_ns,
                         struct http_answer *ret, struct cairn_error *reterr) {
        assert_true(turn_next < turn_count);
        const struct turn *t = &turns[turn_next++];
        (void) snprintf(last_body, sizeof last_body, "%s", body);
        if (strcmp(path, t->path) != 0 || !strstr(body, t->asked))
                fail_msg("turn %zu: %s %s", turn_next, path, body);
        if (t->status < 0)
                return error_set(reterr, (int) t->status, "ask etcd", "script", "no answer");
        *ret = (struct http_answer){
                .status = t->status, .bytes = strdup(t->answer), .count = strlen(t->answer)};
        return 0;
}

static void expect(const char *path, const char *asked, long status, const char *answer, ...)
        __attribute__((format(printf, 4, 5)));
static void expect(const char *path, const char *asked, long status, const char *answer, ...) {
        struct turn *t = &turns[turn_count++];
        va_list list;

        assert_true(turn_count <= TURNS_MAX);
        *t = (struct turn){.path = path, .asked = asked, .status = status};
        va_start(list, answer);
        (void) vsnprintf(t->answer, sizeof t->answer, answer, list);
        va_end(list);
}

static void *kind;
static struct cairn_error e;
static struct rendezvous_look look;
static const struct rendezvous_member self = {
        .node = "a", .address = "h:1", .nonce = 5, .ranks = 1};

static int set_up(void **state) {
        struct rendezvous_place place;
        turn_count = turn_next = 0;
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return rendezvous_place_parse("etcd://x/p", NULL, "r", &place, NULL) ||
               rendezvous_etcd_new(&place, scripted_post, NULL, &kind, NULL);
}

static int tear_down(void **state) {
        OPS->close(kind);
        return turn_next == turn_count ? 0 : -1;
}

/* As base64: {"node":"a","address":"h:1","nonce":"0000000000000005","ranks":1,"detail":""} under
 * /p/r/members/a, and the like for b with nonce 6. */
#define KEY_A "L3Avci9tZW1iZXJzL2E="
#define KEY_B "L3Avci9tZW1iZXJzL2I="
#define RECORD_A                                                                               \
        "eyJub2RlIjoiYSIsImFkZHJlc3MiOiJoOjEiLCJub25jZSI6IjAwMDAwMDAwMDAwMDAwMDUiLCJyYW5rcyI6" \
        "MSwiZGV0YWlsIjoiIn0="
#define RECORD_B                                                                               \
        "eyJub2RlIjoiYiIsImFkZHJlc3MiOiJoOjEiLCJub25jZSI6IjAwMDAwMDAwMDAwMDAwMDYiLCJyYW5rcyI6" \
        "MSwiZGV0YWlsIjoiIn0="
#define KV_A "{\"key\":\"" KEY_A "\",\"value\":\"" RECORD_A "\",\"lease\":\"5\"}"
#define KV_B "{\"key\":\"" KEY_B "\",\"value\":\"" RECORD_B "\",\"lease\":\"6\"}"
/* A look's answer: revision, count, changed members. No generation. */
#define LOOK                                                                     \
        "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_range\":{}}," \
        "{\"response_range\":{\"count\":\"%d\"}},{\"response_range\":{\"kvs\":[%s]}}]}"

#define ANOTHER                                                                                \
        "{\"header\":{\"cluster_id\":\"78\",\"revision\":\"%d\"},\"succeeded\":true,"          \
        "\"responses\":["                                                                      \
        "{\"response_range\":{}},{\"response_range\":{\"count\":\"%d\"}},{\"response_range\":" \
        "{\"kvs\":[%s]}}]}"

static int do_look(bool renew) {
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return OPS->look(kind, &self, renew, UINT64_MAX, &look, &e);
}

static void looks_ask_for_changes_only(void **state) {
        expect("/v3/kv/txn", "", 200, LOOK, 10, 2, KV_B "," KV_A);
        assert_int_equal(do_look(false), 0);
        assert_null(strstr(last_body, "min_mod_revision"));
        assert_int_equal(look.member_count, 2);
        assert_string_equal(look.members[0].node, "a"); /* by name */
        assert_int_equal(look.members[1].nonce, 6);
        expect("/v3/kv/txn", "\"min_mod_revision\":\"11\"", 200, LOOK, 12, 2, "");
        assert_int_equal(do_look(false), 0);
        assert_int_equal(look.member_count, 2);
        /* b left: counts do not agree, all are read. */
        expect("/v3/kv/txn", "\"min_mod_revision\":\"13\"", 200, LOOK, 14, 1, "");
        expect("/v3/kv/txn", "", 200, LOOK, 14, 1, KV_A);
        assert_int_equal(do_look(false), 0);
        assert_int_equal(look.member_count, 1);
        /* Another member came. */
        expect("/v3/kv/txn", "\"min_mod_revision\":\"15\"", 200, LOOK, 16, 2, KV_B);
        assert_int_equal(do_look(false), 0);
        assert_int_equal(look.member_count, 2);
        /* A backup was put back, or another etcd stands there: what is known is void, even where
         * the counts agree. */
        expect("/v3/kv/txn", "\"min_mod_revision\":\"17\"", 200, LOOK, 3, 2, "");
        expect("/v3/kv/txn", "", 200, LOOK, 3, 2, KV_A "," KV_B);
        assert_int_equal(do_look(false), 0);
        assert_null(strstr(last_body, "min_mod_revision"));
        expect("/v3/kv/txn", "", 200, ANOTHER, 4, 2, "");
        expect("/v3/kv/txn", "", 200, ANOTHER, 4, 1, KV_A);
        assert_int_equal(do_look(false), 0);
        assert_int_equal(look.member_count, 1);
}

static void a_lease_that_is_gone(void **state) {
        expect("/v3/lease/keepalive", "\"ID\":\"5\"", 200, "{\"result\":{\"ID\":\"5\"}}");
        assert_int_equal(do_look(true), CAIRN_ERR_STALE);
        assert_non_null(strstr(e.message, "the lease of this member is gone"));
        expect("/v3/lease/keepalive", "\"ID\":\"5\"", 200,
               "{\"result\":{\"ID\":\"5\",\"TTL\":\"5\"}}");
        expect("/v3/kv/txn", "", 200, LOOK, 10, 1, KV_B);
        assert_int_equal(do_look(true), CAIRN_ERR_STALE); /* the key is, for it was deleted */
        expect("/v3/lease/keepalive", "", 200, "{\"error\":{\"message\":\"no leader\"}}");
        assert_int_equal(do_look(true), CAIRN_ERR_UNREACHABLE);
}

static void answers_that_are_none(void **state) {
        static const char *const wrong[] = {
                "",
                "[]",
                "{}",
                "{\"header\":{}}",
                "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"}}",
                "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"},\"succeeded\":true,"
                "\"responses\":[{},{}]}",
                "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"-5\"},\"succeeded\":true,"
                "\"responses\":[{},{},{}]}",
                "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"},\"succeeded\":true,"
                "\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"!\"}]}},{},{}]}",
                "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"5\"},\"succeeded\":true,"
                "\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"" KEY_A "\"}]}},{},{}]}",
        };
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
                turn_count = turn_next = 0;
                for (int k = 0; k < 2; k++)
                        expect("/v3/kv/txn", "", 200, "%s", wrong[i]);
                int r = do_look(false);
                if (r != CAIRN_ERR_PEER)
                        fail_msg("%s: %s", wrong[i], status_name(r));
        }
        turn_count = turn_next = 0;
}

static void refusals_have_sentences(void **state) {
        static const struct {
                long status;
                const char *answer;
                int expected;
                const char *sentence;
        } cases[] = {
                {404, "404 page not found\n", CAIRN_ERR_UNSUPPORTED, "3.4 or newer"},
                {401, "", CAIRN_ERR_PERMISSION, "demands a user"},
                {403, "{\"error\":\"permission denied\",\"code\":7}", CAIRN_ERR_PERMISSION,
                 "/p/r/"},
                {400, "{\"error\":\"etcdserver: user name is empty\",\"code\":3}",
                 CAIRN_ERR_PERMISSION, "user name is empty"},
                {503, "{\"error\":\"etcdserver: no leader\",\"code\":14}", CAIRN_ERR_UNREACHABLE,
                 "no leader"},
                {503, "busy", CAIRN_ERR_UNREACHABLE, "503"},
                {500, "{\"error\":\"mvcc: database space exceeded\",\"code\":8}", CAIRN_ERR_NOSPACE,
                 "defragment"},
                {429, "{\"error\":\"too many requests\",\"code\":8}", CAIRN_ERR_UNREACHABLE,
                 "too many requests"},
                {CAIRN_ERR_TIMEOUT, "", CAIRN_ERR_TIMEOUT, "no answer"},
        };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                turn_count = turn_next = 0;
                expect("/v3/kv/txn", "", cases[i].status, "%s", cases[i].answer);
                assert_int_equal(do_look(false), cases[i].expected);
                if (!strstr(e.message, cases[i].sentence))
                        fail_msg("%s", e.message);
        }
}

static int join(void) {
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return OPS->join(kind, &self, UINT64_MAX, &e);
}

#define GRANTED "{" HEADER ",\"ID\":\"5\",\"TTL\":\"5\"}"
#define DONE "{" HEADER ",\"succeeded\":true,\"responses\":[{}]}"
#define ALIVE "{\"result\":{\"TTL\":\"5\"}}"
#define GRANTED_BEFORE "{\"error\":\"etcdserver: lease already exists\",\"code\":9}"
#define NO_LEASE "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}"
#define THERE "{" HEADER ",\"responses\":[{\"response_range\":{\"kvs\":[%s]}}]}"

static void joining(void **state) {
        expect("/v3/lease/grant", "\"TTL\":\"5\",\"ID\":\"5\"", 200, GRANTED, 1);
        expect("/v3/kv/txn", "\"target\":\"CREATE\"", 200, DONE, 2);
        assert_int_equal(join(), 0);
        assert_non_null(strstr(last_body, RECORD_A));
        /* Asked again after an answer that was lost: found. */
        expect("/v3/lease/grant", "", 412, GRANTED_BEFORE);
        expect("/v3/lease/keepalive", "", 200, ALIVE);
        expect("/v3/kv/txn", "\"target\":\"CREATE\"", 200, THERE, 2, KV_A);
        expect("/v3/kv/txn", "\"target\":\"LEASE\"", 200, DONE, 3);
        assert_int_equal(join(), 0);
        /* The name is a living one's. */
        turn_count = turn_next = 0;
        expect("/v3/lease/grant", "", 200, GRANTED, 1);
        expect("/v3/kv/txn", "", 200, THERE, 2, KV_B);
        assert_int_equal(join(), CAIRN_ERR_EXISTS);
        assert_non_null(strstr(e.message, "h:1"));
        /* The lease ran out between two calls: not lost, it is granted anew. */
        turn_count = turn_next = 0;
        expect("/v3/lease/grant", "", 412, GRANTED_BEFORE);
        expect("/v3/lease/keepalive", "", 200, "{\"result\":{}}");
        assert_int_equal(join(), CAIRN_ERR_UNREACHABLE);
        expect("/v3/lease/grant", "", 200, GRANTED, 1);
        expect("/v3/kv/txn", "", 404, NO_LEASE);
        assert_int_equal(join(), CAIRN_ERR_UNREACHABLE);
        /* Leaving what is not there. */
        expect("/v3/lease/revoke", "\"ID\":\"5\"", 404, NO_LEASE);
        assert_int_equal(OPS->leave(kind, &self, UINT64_MAX, &e), 0);
}

/* Generation 7, led by a with nonce 5 (led by b: nonce 6), under its key. */
#define KEY_7 "L3Avci9nZW5lcmF0aW9ucy8wMDAwMDAwMDAwMDAwMDAwMDAwNw=="
#define REFUSED "{" HEADER ",\"responses\":[{\"response_range\":{\"kvs\":[%s]}},%s]}"
#define NEWEST_7 "{\"response_range\":{\"kvs\":[{\"key\":\"" KEY_7 "\"}]}}"

static int create(uint64_t number) {
        struct rendezvous_generation g = {.number = number,
                                          .leader = "a",
                                          .leader_nonce = 5,
                                          .world = 1,
                                          .members = &self,
                                          .member_count = 1};
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return OPS->create(kind, &self, &g, UINT64_MAX, &e);
}

static void creating(void **state) {
        expect("/v3/kv/txn", "\"target\":\"LEASE\"", 200,
               "{" HEADER ",\"succeeded\":true,\"responses\":[{},{},{}]}", 4);
        assert_int_equal(create(8), 0);
        assert_non_null(strstr(last_body, "\"range_end\""));
        assert_non_null(strstr(last_body, "request_delete_range"));
        expect("/v3/kv/txn", "", 200, REFUSED, 4, "", NEWEST_7);
        assert_int_equal(create(6), CAIRN_ERR_STALE);
        assert_non_null(strstr(e.message, "lease of this member is gone"));
        expect("/v3/kv/txn", "", 200, REFUSED, 4, KV_A, NEWEST_7);
        assert_int_equal(create(6), CAIRN_ERR_STALE);
        assert_non_null(strstr(e.message, "the newest generation is 7"));
        expect("/v3/kv/txn", "", 200, REFUSED, 4, KV_A, NEWEST_7);
        assert_int_equal(create(9), CAIRN_ERR_PEER); /* refused, and nothing stands against it */
        expect("/v3/kv/txn", "", 200, REFUSED, 4, KV_A, NEWEST_7);
        assert_int_equal(create(7), CAIRN_ERR_CORRUPT); /* its record is empty */
}

static int put(const void *bytes, size_t count) {
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return OPS->put(kind, &self, 7, "k", bytes, count, UINT64_MAX, &e);
}

/* The vectors of RFC 4648, section 10, and the two last digits. */
static void values_are_base64(void **state) {
        static const struct {
                const char *bytes, *text;
        } vectors[] = {{"", ""},
                       {"f", "Zg=="},
                       {"fo", "Zm8="},
                       {"foo", "Zm9v"},
                       {"foob", "Zm9vYg=="},
                       {"fooba", "Zm9vYmE="},
                       {"foobar", "Zm9vYmFy"},
                       {"\xff\xef\xbe", "/+++"}};

        for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
                char wanted[64];
                void *value;
                size_t bytes;
                turn_count = turn_next = 0;
                (void) snprintf(wanted, sizeof wanted, "\"value\":\"%s\"", vectors[i].text);
                expect("/v3/kv/txn", wanted, 200, DONE, 4);
                assert_int_equal(put(vectors[i].bytes, strlen(vectors[i].bytes)), 0);
                expect("/v3/kv/txn", "", 200,
                       "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_range\":{\"kvs\":"
                       "[{\"key\":\"eA==\",%s}]}}]}",
                       4, wanted);
                assert_int_equal(OPS->get(kind, &self, 7, "k", UINT64_MAX, &value, &bytes, &e), 0);
                assert_int_equal(bytes, strlen(vectors[i].bytes));
                assert_memory_equal(value, vectors[i].bytes, bytes);
                free(value);
        }
}

static void getting(void **state) {
        void *value = NULL;
        size_t bytes;

        expect("/v3/kv/txn", "", 200,
               "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_range\":{}}]}", 4);
        assert_int_equal(OPS->get(kind, &self, 7, "k", UINT64_MAX, &value, &bytes, &e),
                         CAIRN_ERR_NOTFOUND);
        expect("/v3/kv/txn", "", 200,
               "{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_range\":{\"kvs\":"
               "[{\"value\":\"a\"}]}}]}",
               4);
        assert_int_equal(OPS->get(kind, &self, 7, "k", UINT64_MAX, &value, &bytes, &e),
                         CAIRN_ERR_PEER);
        expect("/v3/kv/txn", "\"GREATER\"", 200, REFUSED, 4, KV_A, NEWEST_7);
        assert_int_equal(OPS->get(kind, &self, 6, "k", UINT64_MAX, &value, &bytes, &e),
                         CAIRN_ERR_STALE);
        expect("/v3/kv/txn", "", 200, REFUSED, 4, KV_A, "{\"response_range\":{}}");
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        assert_int_equal(put("x", 1), CAIRN_ERR_STALE);
        assert_non_null(strstr(e.message, "no generation"));
        assert_null(value);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(looks_ask_for_changes_only, set_up, tear_down),
                cmocka_unit_test_setup_teardown(a_lease_that_is_gone, set_up, tear_down),
                cmocka_unit_test_setup_teardown(answers_that_are_none, set_up, tear_down),
                cmocka_unit_test_setup_teardown(refusals_have_sentences, set_up, tear_down),
                cmocka_unit_test_setup_teardown(joining, set_up, tear_down),
                cmocka_unit_test_setup_teardown(creating, set_up, tear_down),
                cmocka_unit_test_setup_teardown(values_are_base64, set_up, tear_down),
                cmocka_unit_test_setup_teardown(getting, set_up, tear_down),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
