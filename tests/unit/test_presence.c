/* SPDX-License-Identifier: Apache-2.0
 *
 * Verdicts over a store in memory and an injected clock: who is missing, who is at work, who gave
 * up.
 */
#include "comm/presence.h"
#include "tests/test.h"

#define MS NSEC_PER_MSEC
#define SEC NSEC_PER_SEC

struct world {
        struct clock_ops clock;
        struct comm_store store;
        struct presence ranks[3];
        uint64_t now_ns;
        char keys[8][COMM_KEY_BYTES], values[8][512];
        int key_count, sets, lists;
        bool silent;
        char text[512];
};

static uint64_t now(void *context) {
        const struct world *w = context;
        return w->now_ns;
}

static int silent(struct world *w, struct cairn_error *reterr) {
        if (!w->silent)
                return 0;
        w->now_ns += 500 * MS;
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, "ask", "", "it is down");
}

static int find(struct world *w, const char *key) {
        for (int i = 0; i < w->key_count; i++)
                if (strcmp(w->keys[i], key) == 0)
                        return i;
        return -1;
}

static int set(void *context, const char *key, const void *value, size_t bytes,
               uint64_t deadline_ns, struct cairn_error *reterr) {
        struct world *w = context;
        TRY(silent(w, reterr));
        int i = find(w, key);
        if (i < 0) {
                i = w->key_count++;
                (void) snprintf(w->keys[i], sizeof w->keys[i], "%s", key);
        }
        (void) snprintf(w->values[i], sizeof w->values[i], "%.*s", (int) bytes,
                        (const char *) value);
        w->sets++;
        return 0;
}

static int get(void *context, const char *key, void *buf, size_t bytes_max, size_t *ret_bytes,
               uint64_t deadline_ns, struct cairn_error *reterr) {
        struct world *w = context;
        TRY(silent(w, reterr));
        int i = find(w, key);
        if (i < 0)
                return error_set(reterr, CAIRN_ERR_TIMEOUT, "get", key, "it is not there");
        *ret_bytes = strlen(w->values[i]);
        memcpy(buf, w->values[i], *ret_bytes);
        return 0;
}

static int list(void *context, const char *prefix, comm_store_visit_fn visit, void *argument,
                uint64_t deadline_ns, struct cairn_error *reterr) {
        struct world *w = context;
        TRY(silent(w, reterr));
        for (int i = 0; i < w->key_count; i++)
                if (strncmp(w->keys[i], prefix, strlen(prefix)) == 0)
                        visit(w->keys[i], w->values[i], strlen(w->values[i]), argument);
        w->lists++;
        return 0;
}

static int setup(void **state) {
        struct world *w = calloc(1, sizeof *w);
        assert_non_null(w);
        w->now_ns = 1000 * SEC;
        w->clock = (struct clock_ops){.now_ns = now, .context = w};
        w->store = (struct comm_store){.set = set, .get = get, .list = list, .context = w};
        for (int r = 0; r < 3; r++)
                assert_int_equal(presence_init(&w->ranks[r], r, 3, &w->store, "g7.world.0",
                                               &w->clock, 30 * SEC, NULL),
                                 0);
        *state = w;
        return 0;
}

static int teardown(void **state) {
        struct world *w = *state;
        for (int r = 0; r < 3; r++)
                presence_done(&w->ranks[r]);
        free(w);
        return 0;
}

static void begin(struct world *w, int rank, const char *verb, uint64_t bytes) {
        presence_begin(&w->ranks[rank], verb, bytes, 10 * SEC);
}

/* An operation that all have behind them. */
static void pass(struct world *w) {
        for (int r = 0; r < 3; r++)
                begin(w, r, "init", 0);
        for (int r = 0; r < 3; r++)
                assert_int_equal(presence_turn(&w->ranks[r], w->text, sizeof w->text), 0);
        w->now_ns += 60 * SEC;
}

/* Turns of these ranks every 100 ms for so long; the verdict of the first, if there is one. */
static int turn(struct world *w, unsigned ranks, uint64_t duration_ns) {
        for (uint64_t end = w->now_ns + duration_ns; w->now_ns < end; w->now_ns += 100 * MS)
                for (int r = 0; r < 3; r++)
                        if (ranks & 1u << r) {
                                int result = presence_turn(&w->ranks[r], w->text, sizeof w->text);
                                if (result < 0)
                                        return result;
                        }
        return 0;
}

static void assert_text(const struct world *w, const char *text) {
        if (strcmp(w->text, text) != 0)
                fail_msg("'%s', not '%s'", w->text, text);
}

static void the_store_is_left_alone_at_first(void **state) {
        struct world *w = *state;
        pass(w);
        w->sets = w->lists = 0;
        begin(w, 0, "barrier", 0);
        assert_int_equal(turn(w, 1, 500 * MS), 0);
        assert_int_equal(w->sets + w->lists, 0);
        assert_int_equal(turn(w, 1, 5 * SEC), 0);
        assert_in_range(w->sets, 4, 6); /* once a second */
        assert_int_equal(w->sets, w->lists);
}

static void a_rank_never_seen(void **state) {
        struct world *w = *state;
        begin(w, 0, "init", 0);
        begin(w, 1, "init", 0);
        assert_int_equal(turn(w, 3, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_text(w, "missing: rank 2 (never seen); waited 10.0 s");
}

static void a_rank_that_has_not_come(void **state) {
        struct world *w = *state;
        pass(w);
        begin(w, 0, "all_reduce", 64);
        begin(w, 2, "all_reduce", 64);
        assert_int_equal(turn(w, 5, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_text(w, "missing: rank 1 (last seen in init 1); waited 10.0 s");
}

static void a_rank_that_falls_silent(void **state) {
        struct world *w = *state;
        pass(w);
        for (int r = 0; r < 3; r++)
                begin(w, r, "all_reduce", 64);
        assert_int_equal(turn(w, 7, 4 * SEC), 0);
        assert_int_equal(turn(w, 5, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_text(w, "missing: rank 1 (silent for 6 s); waited 10.0 s");
}

static void nobody_is_silent_but_nothing_comes(void **state) {
        struct world *w = *state;
        pass(w);
        for (int r = 0; r < 3; r++)
                begin(w, r, "all_reduce", 64);
        presence_here(&w->ranks[0], 1, true);
        assert_int_equal(turn(w, 7, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_text(w,
                    "all ranks have come to it, but it got no further with rank 2 (silent for 0 s)"
                    "; waited 10.0 s");
}

static void who_has_done_its_part_is_not_missing(void **state) {
        struct world *w = *state;
        pass(w);
        begin(w, 0, "broadcast", 64);
        presence_here(&w->ranks[0], 1, true);
        assert_int_equal(turn(w, 1, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_null(strstr(w->text, "rank 1"));
        assert_non_null(strstr(w->text, "rank 2"));
}

static void who_has_come_further_is_not_missing(void **state) {
        struct world *w = *state;
        pass(w);
        begin(w, 1, "broadcast", 64);
        begin(w, 1, "barrier", 0);
        begin(w, 0, "broadcast", 64);
        assert_int_equal(turn(w, 3, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_null(strstr(w->text, "rank 1"));
}

static void work_is_waited_for(void **state) {
        struct world *w = *state;
        pass(w);
        begin(w, 0, "all_reduce", 64);
        begin(w, 2, "all_reduce", 64);
        for (int i = 0; i < 600; i++) { /* ten minutes, silent for 10 s at a time */
                if (i % 10 == 0)
                        presence_work(&w->ranks[1]);
                assert_int_equal(turn(w, 5, SEC), 0);
        }
        assert_int_equal(turn(w, 5, 60 * SEC), CAIRN_ERR_TIMEOUT);
        assert_non_null(strstr(w->text, "missing: rank 1 (at work after 1, silent for "));
        assert_in_range(w->now_ns - w->ranks[0].ranks[1].changed_ns, 30 * SEC, 31 * SEC);
}

static void a_dead_rank_is_not_waited_for_because_another_works(void **state) {
        struct world *w = *state;
        pass(w);
        begin(w, 0, "all_reduce", 64);
        for (int i = 0; i < 9; i++) {
                presence_work(&w->ranks[1]);
                assert_int_equal(turn(w, 1, SEC), 0);
        }
        assert_int_equal(turn(w, 1, 5 * SEC), CAIRN_ERR_TIMEOUT);
        assert_text(w, "missing: rank 2 (last seen in init 1); waited 10.0 s");
}

static void work_before_an_earlier_operation_does_not_count(void **state) {
        struct world *w = *state;
        pass(w);
        presence_work(&w->ranks[1]);
        for (int r = 0; r < 3; r++)
                begin(w, r, "barrier", 0);
        begin(w, 0, "all_reduce", 64);
        begin(w, 2, "all_reduce", 64);
        assert_int_equal(turn(w, 5, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_non_null(strstr(w->text, "waited 10.0 s"));
}

static void work_is_written_once_a_second(void **state) {
        struct world *w = *state;
        pass(w);
        w->sets = 0;
        for (int i = 0; i < 1000; i++) {
                presence_work(&w->ranks[1]);
                w->now_ns += 10 * MS;
        }
        assert_int_equal(w->sets, 10);
}

static void another_operation_is_a_mismatch(void **state) {
        struct world *w = *state;
        pass(w);
        begin(w, 0, "barrier", 0);
        begin(w, 1, "broadcast", 64);
        assert_int_equal(turn(w, 3, 2 * SEC), CAIRN_ERR_MISMATCH);
        assert_text(w, "rank 0 is in barrier of 0 bytes, this one in broadcast of 64");
}

static void another_size_is_a_mismatch(void **state) {
        struct world *w = *state;
        pass(w);
        begin(w, 0, "all_reduce", 128);
        begin(w, 1, "all_reduce", 64);
        assert_int_equal(turn(w, 3, 2 * SEC), CAIRN_ERR_MISMATCH);
}

static void who_gave_up_ends_the_wait_of_the_others(void **state) {
        struct world *w = *state;
        pass(w);
        for (int r = 0; r < 2; r++)
                begin(w, r, "all_reduce", 64);
        presence_gave_up(&w->ranks[1], "the disk is on fire");
        assert_string_equal(presence_why(&w->ranks[2], 1), "the disk is on fire");
        assert_null(presence_why(&w->ranks[2], 0));
        assert_int_equal(turn(w, 1, 2 * SEC), CAIRN_ERR_PEER);
        assert_text(w, "rank 1 gave up: the disk is on fire");
}

static void nap(void *context, uint64_t duration_ns) {
        struct world *w = context;
        w->now_ns += duration_ns;
}

static void blame_falls_on_those_that_say_nothing(void **state) {
        struct world *w = *state;
        char text[512];
        w->clock.sleep_ns = nap;
        pass(w);
        for (int r = 0; r < 2; r++)
                begin(w, r, "all_reduce", 64);
        uint64_t begin_ns = w->now_ns;
        presence_blame(&w->ranks[0], "it broke", text, sizeof text);
        assert_string_equal(text,
                            "missing: rank 1 (last seen in init 1), rank 2 (last seen in init 1)");
        assert_in_range(w->now_ns - begin_ns, PRESENCE_BLAME_NS, PRESENCE_BLAME_NS + SEC);
        presence_blame(&w->ranks[1], "here, too", text, sizeof text);
        assert_string_equal(text, "missing: rank 2 (last seen in init 1)");
        begin(w, 2, "all_reduce", 64);
        begin_ns = w->now_ns;
        presence_blame(&w->ranks[2], "and here", text, sizeof text);
        assert_string_equal(text, "");
        assert_int_equal(w->now_ns, begin_ns); /* all have spoken */
        w->silent = true;
        presence_blame(&w->ranks[0], "it broke", text, sizeof text);
        assert_true(w->now_ns - begin_ns < 2 * SEC);
}

static void a_silent_store_does_not_lengthen_a_wait(void **state) {
        struct world *w = *state;
        pass(w);
        uint64_t begin_ns = w->now_ns;
        begin(w, 0, "all_reduce", 64);
        w->silent = true;
        assert_int_equal(turn(w, 1, 30 * SEC), CAIRN_ERR_TIMEOUT);
        assert_true(w->now_ns - begin_ns < 10 * SEC + COMM_MARGIN_NS);
        assert_non_null(strstr(w->text, "; the store does not answer: it is down"));
}

static void what_others_wrote_is_not_trusted(void **state) {
        static const char *const records[] = {
                "",
                " ",
                "1",
                "1 w",
                "1 w 2 3",
                "x w 2 64 all_reduce",
                "1 z 2 64 all_reduce",
                "99999999999999999999999999 w 2 64 a_verb_that_is_much_longer_than_a_verb_can_be x",
                "1 w 2 64 %s%n%s%n",
        };
        struct world *w = *state;
        pass(w);
        for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
                assert_int_equal(set(w, "g7.world.0.at.1", records[i], strlen(records[i]), 0, NULL),
                                 0);
                assert_int_equal(set(w, "g7.world.0.at.-7", "1 w 2 64 x", 10, 0, NULL), 0);
                assert_int_equal(set(w, "g7.world.0.at.3", "1 w 2 64 x", 10, 0, NULL), 0);
                assert_int_equal(set(w, "g7.world.0.at.0x", "1 w 2 64 x", 10, 0, NULL), 0);
                begin(w, 0, "all_reduce", 64);
                w->ranks[0].sequence = 2;
                int r = turn(w, 1, 30 * SEC);
                assert_true(r == CAIRN_ERR_TIMEOUT || r == CAIRN_ERR_MISMATCH);
        }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(the_store_is_left_alone_at_first),
                TEST(a_rank_never_seen),
                TEST(a_rank_that_has_not_come),
                TEST(a_rank_that_falls_silent),
                TEST(nobody_is_silent_but_nothing_comes),
                TEST(who_has_done_its_part_is_not_missing),
                TEST(who_has_come_further_is_not_missing),
                TEST(work_is_waited_for),
                TEST(a_dead_rank_is_not_waited_for_because_another_works),
                TEST(work_before_an_earlier_operation_does_not_count),
                TEST(work_is_written_once_a_second),
                TEST(another_operation_is_a_mismatch),
                TEST(another_size_is_a_mismatch),
                TEST(who_gave_up_ends_the_wait_of_the_others),
                TEST(blame_falls_on_those_that_say_nothing),
                TEST(a_silent_store_does_not_lengthen_a_wait),
                TEST(what_others_wrote_is_not_trusted),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
