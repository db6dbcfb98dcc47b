/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/rendezvous_record.h"
#include "tests/test.h"

static struct cairn_error e;

static struct rendezvous_member sample_member(void) {
        return (struct rendezvous_member){.node = "node-1",
                                          .address = "[::1]:4711",
                                          .nonce = UINT64_C(0xfedcba9876543210),
                                          .ranks = 8,
                                          .detail = "intent=\"resume\"\n\xc3\xa4"};
}

static int parse_member(const char *text, struct rendezvous_member *ret) {
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return rendezvous_member_parse(text, strlen(text), "a lease", ret, &e);
}

static int parse_generation(const char *text, struct rendezvous_generation *ret) {
        e = (struct cairn_error) CAIRN_ERROR_INIT;
        return rendezvous_generation_parse(text, strlen(text), "a generation", ret, &e);
}

static void members_come_back(void **state) {
        struct rendezvous_member m = sample_member(), back;
        char *text;
        size_t bytes;

        assert_int_equal(rendezvous_member_text(&m, &text, &bytes, &e), 0);
        assert_int_equal(rendezvous_member_parse(text, bytes, "x", &back, &e), 0);
        assert_memory_equal(&m, &back, sizeof m);
        free(text);
        memcpy(m.detail, "\xff", 2);
        assert_int_equal(rendezvous_member_text(&m, &text, &bytes, &e), CAIRN_ERR_API);
        assert_null(text);
}

static void members_that_are_none(void **state) {
        static const char *const wrong[] = {
                "",
                "{",
                "[]",
                "null",
                "{}",
                "{\"node\":\"a\"}",
                "{\"node\":\"../a\",\"address\":\"h:1\",\"nonce\":\"0000000000000001\",\"ranks\":1,"
                "\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h\",\"nonce\":\"0000000000000001\",\"ranks\":1,"
                "\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"0000000000000000\",\"ranks\":1,"
                "\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"1\",\"ranks\":1,\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"000000000000000G\",\"ranks\":1,"
                "\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"0000000000000001\",\"ranks\":-1,"
                "\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"0000000000000001\",\"ranks\":1e3,"
                "\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"0000000000000001\",\"ranks\":"
                "65537,"
                "\"detail\":\"\"}",
                "{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"0000000000000001\",\"ranks\":1}",
                "{\"node\":\"a\",\"node\":\"a\",\"address\":\"h:1\",\"nonce\":\"0000000000000001\","
                "\"ranks\":1,\"detail\":\"\"}",
        };
        struct rendezvous_member m;

        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
                if (parse_member(wrong[i], &m) != CAIRN_ERR_CORRUPT || !*e.message)
                        fail_msg("%s is taken", wrong[i]);
        assert_int_equal(parse_member("{\"node\":\"a\",\"address\":\"h:1\",\"nonce\":"
                                      "\"0000000000000001\",\"ranks\":1,\"detail\":\"\","
                                      "\"of a later version\":[1]}",
                                      &m),
                         0);
        char *large = calloc(1, RENDEZVOUS_MEMBER_TEXT_BYTES_MAX + 2);
        memset(large, ' ', RENDEZVOUS_MEMBER_TEXT_BYTES_MAX + 1);
        assert_int_equal(parse_member(large, &m), CAIRN_ERR_CORRUPT);
        free(large);
}

static struct rendezvous_generation sample_generation(struct rendezvous_member members[2]) {
        members[0] = members[1] = sample_member();
        memset(members[0].detail, 0, sizeof members[0].detail);
        memset(members[1].detail, 0, sizeof members[1].detail);
        memcpy(members[1].node, "node-2", 7);
        members[0].ranks = 3;
        members[1].ranks = 5;
        members[1].first_rank = 3;
        struct rendezvous_generation g = {.number = 42,
                                          .leader = "node-2",
                                          .leader_nonce = members[1].nonce,
                                          .world = 8,
                                          .master_port = 40001,
                                          .parent = "000000001200-g0041",
                                          .members = members,
                                          .member_count = 2};
        for (size_t i = 0; i < sizeof g.secret; i++)
                g.secret[i] = (uint8_t) (i * 37 + 200);
        return g;
}

static void generations_come_back(void **state) {
        struct rendezvous_member members[2];
        struct rendezvous_generation g = sample_generation(members), back;
        char *text;
        size_t bytes;

        assert_int_equal(rendezvous_generation_text(&g, &text, &bytes, &e), 0);
        assert_int_equal(rendezvous_generation_parse(text, bytes, "x", &back, &e), 0);
        assert_memory_equal(back.members, members, sizeof members);
        assert_memory_equal(back.secret, g.secret, sizeof g.secret);
        assert_true(back.number == 42 && back.world == 8 && back.master_port == 40001 &&
                    back.member_count == 2);
        assert_string_equal(back.leader, "node-2");
        assert_string_equal(back.parent, g.parent);
        rendezvous_generation_done(&back);
        assert_true(!back.members && back.number == 0);
        /* Cut anywhere it is none. */
        for (size_t i = 0; i < bytes; i++) {
                assert_int_equal(rendezvous_generation_parse(text, i, "x", &back, &e),
                                 CAIRN_ERR_CORRUPT);
                assert_null(back.members);
        }
        free(text);
}

static void replace(const char *text, const char *from, const char *to, char *ret, size_t bytes) {
        const char *at = strstr(text, from);

        assert_non_null(at);
        (void) snprintf(ret, bytes, "%.*s%s%s", (int) (at - text), text, to, at + strlen(from));
}

static void generations_that_are_none(void **state) {
        static const struct {
                const char *from, *to;
        } wrong[] = {
                {"\"number\":42", "\"number\":0"},
                {"\"number\":42", "\"number\":-1"},
                {"\"world\":8", "\"world\":9"},
                {"\"world\":8", "\"world\":70000"},
                {"\"master_port\":40001", "\"master_port\":65536"},
                {"\"master_port\"", "\"port\""},
                {"\"first_rank\":3", "\"first_rank\":2"},
                {"\"first_rank\":0", "\"first_rank\":1"},
                {"\"ranks\":5", "\"ranks\":0"},
                {"\"node\":\"node-2\"", "\"node\":\"node-1\""},
                {"\"leader\":\"node-2\"", "\"leader\":\"node-3\""},
                {"\"leader_nonce\":\"fe", "\"leader_nonce\":\"ff"},
                {"\"secret\":\"c8", "\"secret\":\"c"},
                {"\"secret\":\"c8", "\"secret\":\"zz"},
                {"\"members\":[", "\"members\":[7,"},
                {"\"members\":[", "\"member\":["},
                {"\"parent\":\"", "\"parent\":\"0123456789012345678901234567890123456789"
                                  "0123456789012345678901234567890123456789"},
        };
        struct rendezvous_member members[2];
        struct rendezvous_generation g = sample_generation(members), back;

        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
                char changed[2000], *text;
                size_t bytes;
                assert_int_equal(rendezvous_generation_text(&g, &text, &bytes, &e), 0);
                replace(text, wrong[i].from, wrong[i].to, changed, sizeof changed);
                if (parse_generation(changed, &back) != CAIRN_ERR_CORRUPT)
                        fail_msg("%s is taken", wrong[i].to);
                assert_null(back.members);
                free(text);
        }
}

static void names_and_addresses(void **state) {
        char name[100];

        assert_int_equal(rendezvous_check_name("a", "x", &e), 0);
        assert_int_equal(rendezvous_check_name("gpu-7.cluster_B", "x", &e), 0);
        memset(name, 'n', sizeof name);
        name[64] = '\0';
        assert_int_equal(rendezvous_check_name(name, "x", &e), 0);
        name[64] = 'n';
        name[65] = '\0';
        assert_int_equal(rendezvous_check_name(name, "x", &e), CAIRN_ERR_API);
        static const char *const wrong[] = {"", ".", ".a", "-a", "a/b", "a b", "\xc3\xa4"};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
                assert_int_equal(rendezvous_check_name(wrong[i], "check node name", &e),
                                 CAIRN_ERR_API);
        assert_string_equal(e.operation, "check node name");
        assert_true(rendezvous_is_address("h:1", 3, false));
        assert_false(rendezvous_is_address("h", 1, false));
        assert_true(rendezvous_is_address("h", 1, true));
        assert_false(rendezvous_is_address("h\0:1", 4, true));
        assert_false(rendezvous_is_address("", 0, true));
}

static void the_largest_group_fits(void **state) {
        struct rendezvous_member *members = calloc(RENDEZVOUS_MEMBERS_MAX, sizeof *members);
        struct rendezvous_generation g = {.number = INT64_MAX,
                                          .world = 2 * RENDEZVOUS_MEMBERS_MAX,
                                          .leader_nonce = 1,
                                          .members = members,
                                          .member_count = RENDEZVOUS_MEMBERS_MAX},
                                     back;
        char *text;
        size_t bytes;

        for (uint32_t i = 0; i < RENDEZVOUS_MEMBERS_MAX; i++) {
                members[i] =
                        (struct rendezvous_member){.nonce = 1 + i, .ranks = 2, .first_rank = 2 * i};
                (void) snprintf(members[i].node, sizeof members[i].node, "node-%059u", i);
                (void) snprintf(members[i].address, sizeof members[i].address, "host-%0100u:1", i);
        }
        memcpy(g.leader, members[0].node, sizeof g.leader);
        assert_int_equal(rendezvous_generation_text(&g, &text, &bytes, &e), 0);
        assert_true(bytes < RENDEZVOUS_GENERATION_TEXT_BYTES_MAX);
        assert_int_equal(rendezvous_generation_parse(text, bytes, "x", &back, &e), 0);
        assert_memory_equal(back.members, members, RENDEZVOUS_MEMBERS_MAX * sizeof *members);
        rendezvous_generation_done(&back);
        free(text);
        g.member_count++;
        assert_int_equal(rendezvous_check_generation(&g, &e), CAIRN_ERR_API);
        free(members);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(members_come_back),
                cmocka_unit_test(members_that_are_none),
                cmocka_unit_test(generations_come_back),
                cmocka_unit_test(generations_that_are_none),
                cmocka_unit_test(names_and_addresses),
                cmocka_unit_test(the_largest_group_fits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
