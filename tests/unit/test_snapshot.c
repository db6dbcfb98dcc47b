/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/unit/small_session.h"

static struct fake_agent agent;
static struct small_session now;

static int set_up(void **state) {
        fake_agent_init(&agent);
        fake_agent_start(&agent);
        small_init(&now);
        small_begin(&now, &agent);
        return 0;
}
static int tear_down(void **state) {
        cairn_close(now.c);
        now.c = NULL;
        fake_agent_done(&agent);
        return 0;
}

static void a_ticket_is_busy_until_it_is_committed(void **state) {
        cairn_ticket ticket;
        int64_t step = -5;
        small_update(&now, 1);
        assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
        assert_int_equal(ticket, 2);
        uint64_t rung;
        assert_int_equal(read(agent.ring_fd, &rung, 8), 8);
        for (int wrong = 0; wrong < 2; wrong++) { /* nobody gave these */
                cairn_ticket other = wrong ? ticket + 2 : 0;
                assert_int_equal(cairn_snapshot_poll(now.c, other, &step), CAIRN_ERR_API);
                assert_int_equal(cairn_snapshot_wait(now.c, other, NSEC_PER_SEC, &step),
                                 CAIRN_ERR_API);
                assert_non_null(strstr(cairn_error_text(now.c), "no ticket"));
        }
        assert_int_equal(cairn_snapshot_poll(now.c, ticket, &step), CAIRN_ERR_BUSY);
        assert_int_equal(step, -5);
        assert_int_equal(fake_agent_take(&agent, false), 0);
        assert_int_equal(cairn_snapshot_poll(now.c, ticket, &step), 0);
        assert_int_equal(step, 1);
        assert_int_equal(cairn_snapshot_wait(now.c, ticket, 60 * NSEC_PER_SEC, &step), 0);
}

static void inside_an_update_it_is_of_the_next_cut(void **state) {
        cairn_ticket ticket;
        int64_t step;
        uint64_t rung;
        assert_int_equal(cairn_update_begin(now.c), 0);
        assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
        assert_int_equal(ticket, 2);
        assert_int_equal(read(agent.ring_fd, &rung, 8), -1);
        assert_int_equal(cairn_update_end(now.c, 9), 0);
        assert_int_equal(read(agent.ring_fd, &rung, 8), 8);
        assert_int_equal(fake_agent_take(&agent, false), 0);
        assert_int_equal(cairn_snapshot_wait(now.c, ticket, 60 * NSEC_PER_SEC, &step), 0);
        assert_int_equal(step, 9);
}

static void nobody_comes(void **state) {
        cairn_ticket ticket;
        int64_t step;
        assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
        uint64_t begin_ns = clock_now(&clock_system);
        assert_int_equal(cairn_snapshot_wait(now.c, ticket, 300000000, &step), CAIRN_ERR_TIMEOUT);
        assert_true(clock_now(&clock_system) - begin_ns < 20 * NSEC_PER_SEC);
        assert_int_equal(cairn_exit_code(now.c), 124);
}

static void what_became_of_it_is_told(void **state) {
        static const struct {
                enum cut_outcome outcome;
                int given, expected;
        } rows[] = {{CUT_VOID, CAIRN_ERR_VOID, CAIRN_ERR_VOID},
                    {CUT_FAILED, CAIRN_ERR_NOSPACE, CAIRN_ERR_NOSPACE},
                    {CUT_DECLINED, CAIRN_ERR_BUSY, CAIRN_ERR_BUSY},
                    {CUT_CLAIMED, 0, CAIRN_ERR_BUSY}};
        cairn_ticket ticket;
        int64_t step;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                small_update(&now, (int64_t) i + 1);
                assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
                cut_decline(agent.page, CAIRN_ERR_BUSY); /* so that the gate does not wait */
                cut_outcome_set(agent.page, ticket, rows[i].outcome, rows[i].given);
                assert_int_equal(cairn_snapshot_poll(now.c, ticket, &step), rows[i].expected);
        }
}

/* Staging was full; the trainer stands still, so only a demand can still take this very cut. */
static void a_wait_asks_again(void **state) {
        cairn_ticket ticket;
        int64_t step = -1;
        small_update(&now, 1);
        assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
        cut_decline(agent.page, CAIRN_ERR_BUSY);
        assert_int_equal(cairn_snapshot_wait(now.c, ticket, 60 * NSEC_PER_SEC, &step), 0);
        assert_int_equal(step, 1);
        fake_agent_lock(&agent);
        assert_int_equal(agent.demands, 1);
        fake_agent_unlock(&agent);
}

/* What copied or wrote it died, and so does not become of it what the page says. */
static void a_wait_asks_again_where_a_process_died(void **state) {
        static const struct {
                enum cut_outcome outcome;
                int status;
        } rows[] = {{CUT_VOID, CAIRN_ERR_VOID}, {CUT_FAILED, CAIRN_ERR_PEER}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                cairn_ticket ticket;
                int64_t step = -1;
                small_update(&now, (int64_t) i + 1);
                assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
                cut_decline(agent.page, CAIRN_ERR_BUSY); /* so that the gate does not wait */
                cut_outcome_set(agent.page, ticket, rows[i].outcome, rows[i].status);
                assert_int_equal(cairn_snapshot_wait(now.c, ticket, 60 * NSEC_PER_SEC, &step), 0);
                assert_int_equal(step, (int64_t) i + 1);
                fake_agent_lock(&agent);
                assert_int_equal(agent.demands, (int) i + 1);
                fake_agent_unlock(&agent);
        }
}

/* The same when the trainer moved on and the newer cut was declined, too: it stands still by now.
 */
static void a_wait_asks_for_a_newer_cut(void **state) {
        cairn_ticket ticket;
        int64_t step = -1;
        bool updating;
        small_update(&now, 1);
        assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
        cut_decline(agent.page, CAIRN_ERR_BUSY);
        small_update(&now, 2);
        assert_int_equal(cut_request(agent.page, &updating), ticket + 1);
        cut_decline(agent.page, CAIRN_ERR_BUSY);
        assert_int_equal(cairn_snapshot_wait(now.c, ticket, 60 * NSEC_PER_SEC, &step), 0);
        assert_int_equal(step, 2);
        fake_agent_lock(&agent);
        assert_int_equal(agent.demands, 1);
        fake_agent_unlock(&agent);
        /* What becomes of the newer cut is what the wait tells. */
        small_update(&now, 3);
        assert_int_equal(cairn_snapshot(now.c, &ticket), 0);
        cut_decline(agent.page, CAIRN_ERR_BUSY);
        small_update(&now, 4);
        assert_int_equal(cut_request(agent.page, &updating), ticket + 1);
        cut_decline(agent.page, CAIRN_ERR_BUSY);
        cut_outcome_set(agent.page, ticket + 1, CUT_FAILED, CAIRN_ERR_NOSPACE);
        assert_int_equal(cairn_snapshot_wait(now.c, ticket, 60 * NSEC_PER_SEC, &step),
                         CAIRN_ERR_NOSPACE);
}

static void finishing(void **state) {
        assert_int_equal(cairn_update_begin(now.c), 0);
        assert_int_equal(cairn_finish(now.c, "completed"), CAIRN_ERR_API);
        assert_int_equal(cairn_update_end(now.c, 1), 0);
        assert_int_equal(cairn_finish(now.c, ""), CAIRN_ERR_API);
        assert_int_equal(cairn_finish(now.c, "completed"), 0);
        fake_agent_lock(&agent);
        assert_string_equal(agent.finish_reason, "completed");
        fake_agent_unlock(&agent);
}

/* Any thread may ask and poll while the trainer trains. */
static void *ask_all_the_time(void *argument) {
        cairn_ticket ticket;
        int64_t step;
        for (int i = 0; i < 200; i++) {
                (void) cairn_snapshot(now.c, &ticket);
                (void) cairn_snapshot_poll(now.c, ticket, &step);
                (void) cairn_should_stop(now.c);
                (void) fake_agent_take(&agent, false);
        }
        return NULL;
}
static void other_threads_may_ask(void **state) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, ask_all_the_time, NULL), 0);
        for (int64_t i = 1; i <= 300; i++) {
                assert_int_equal(cairn_update_begin(now.c), 0);
                now.samples++;
                assert_int_equal(cairn_update_end(now.c, i), 0);
        }
        (void) pthread_join(thread, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_ticket_is_busy_until_it_is_committed),
                TEST(inside_an_update_it_is_of_the_next_cut),
                TEST(nobody_comes),
                TEST(what_became_of_it_is_told),
                TEST(a_wait_asks_again),
                TEST(a_wait_asks_again_where_a_process_died),
                TEST(a_wait_asks_for_a_newer_cut),
                TEST(finishing),
                TEST(other_threads_may_ask),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
