/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "client/link.h"
#include "tests/unit/small_session.h"
#include <signal.h>

static struct fake_agent agent;
static struct small_session now;

static int set_up(void **state) {
        fake_agent_init(&agent);
        fake_agent_start(&agent);
        small_init(&now);
        return 0;
}
static int tear_down(void **state) {
        cairn_close(now.c);
        now.c = NULL;
        fake_agent_done(&agent);
        return 0;
}

static void pause_ms(uint64_t ms) {
        clock_system.sleep_ns(clock_system.context, ms * NSEC_PER_MSEC);
}

static bool wait_for(const int *counter, int value) {
        for (int i = 0; i < 3000; i++) {
                fake_agent_lock(&agent);
                bool there = *counter >= value;
                fake_agent_unlock(&agent);
                if (there)
                        return true;
                pause_ms(20);
        }
        return false;
}

/* The agent is replaced while training goes on; the new one has everything within a second. */
static void a_new_agent_gets_everything_again(void **state) {
        struct cairn_statistics statistics = {.size = sizeof statistics};
        small_begin(&now, &agent);
        small_update(&now, 1);
        assert_int_equal(agent.slabs, 1);
        fake_agent_stop(&agent);
        small_update(&now, 2);
        pause_ms(300);
        small_update(&now, 3);
        uint64_t begin_ns = clock_now(&clock_system);
        fake_agent_start(&agent);
        assert_true(wait_for(&agent.seals, 2));
        assert_true(clock_now(&clock_system) - begin_ns < 4 * NSEC_PER_SEC); /* 1 s, and a margin */
        small_update(&now, 4);
        assert_int_equal(fake_agent_take(&agent, true), 0);
        assert_int_equal(agent.image.step, 4);
        fake_agent_lock(&agent);
        assert_int_equal(agent.slabs, 2);
        assert_int_equal(agent.reattached, 1);
        assert_int_equal(agent.seal_number, 1);
        assert_true(agent.page_handed_back);
        assert_true(agent.pidfd_seen);
        fake_agent_unlock(&agent);
        for (int i = 0; i < 3000; i++) {
                assert_int_equal(cairn_get_statistics(now.c, &statistics), 0);
                if (statistics.reattached)
                        break;
                pause_ms(20);
        }
        assert_int_equal(statistics.reattached, 1);
}

/* An agent that takes it up and drops it at once is tried ever more seldom, but never given up. */
static void dropped_again_and_again(void **state) {
        small_begin(&now, &agent);
        fake_agent_lock(&agent);
        agent.drops = 1000;
        fake_agent_unlock(&agent);
        fake_agent_stop(&agent);
        fake_agent_start(&agent);
        uint64_t dropping_ns = clock_now(&clock_system);
        pause_ms(2500); /* tries after 0.1, 0.3, 0.7, 1.2, 1.7, 2.2 s; each takes its time */
        assert_true(wait_for(&agent.reattached, 2));
        fake_agent_lock(&agent);
        int tries = agent.reattached;
        agent.drops = 0;
        fake_agent_unlock(&agent);
        uint64_t took_ns = clock_now(&clock_system) - dropping_ns;
        assert_in_range(tries, 2, 2 + took_ns / LINK_RETRY_NS_MAX);
        assert_true(wait_for(&agent.reattached, tries + 1));
        pause_ms(100);
        small_update(&now, 1);
        assert_int_equal(fake_agent_take(&agent, true), 0);
        /* One that lasted ends the pauses; of a few on a busy machine one shows it. */
        uint64_t least_ns = UINT64_MAX;
        for (int i = 2; i < 7 && least_ns >= LINK_RETRY_NS_MAX; i++) {
                pause_ms(LINK_STEADY_NS / NSEC_PER_MSEC);
                fake_agent_stop(&agent);
                uint64_t begin_ns = clock_now(&clock_system);
                fake_agent_start(&agent);
                assert_true(wait_for(&agent.reattached, tries + i));
                took_ns = clock_now(&clock_system) - begin_ns;
                least_ns = took_ns < least_ns ? took_ns : least_ns;
        }
        assert_true(least_ns < LINK_RETRY_NS_MAX);
}

static void many_agents_in_a_row(void **state) {
        small_begin(&now, &agent);
        for (int i = 1; i <= 5; i++) {
                fake_agent_stop(&agent);
                fake_agent_start(&agent);
                assert_true(wait_for(&agent.seals, i + 1));
                small_update(&now, i);
        }
}

static void a_newer_generation_fences(void **state) {
        struct cairn_statistics statistics = {.size = sizeof statistics};
        int r = 0;
        small_begin(&now, &agent);
        fake_agent_stop(&agent);
        agent.reattach_status = CAIRN_ERR_STALE;
        fake_agent_start(&agent);
        for (int i = 0; i < 3000 && r == 0; i++) {
                r = cairn_get_statistics(now.c, &statistics);
                pause_ms(20);
        }
        assert_int_equal(r, CAIRN_ERR_STALE);
        assert_non_null(strstr(cairn_error_text(now.c), "refused by the fake agent"));
        int hellos = agent.hellos;
        pause_ms(400);
        fake_agent_lock(&agent);
        assert_int_equal(agent.hellos, hellos); /* it does not ask again */
        fake_agent_unlock(&agent);
        assert_int_equal(cairn_finish(now.c, "done"), CAIRN_ERR_STALE);
        small_update(&now, 1); /* training goes on */
}

static void requests_wait_for_the_next_agent(void **state) {
        small_begin(&now, &agent);
        fake_agent_stop(&agent);
        fake_agent_start(&agent);
        assert_int_equal(cairn_finish(now.c, "completed"), 0);
        fake_agent_lock(&agent);
        assert_int_equal(agent.finishes, 1);
        assert_string_equal(agent.finish_reason, "completed");
        fake_agent_unlock(&agent);
}

/* The helper sleeps in the trainer's process, but never runs the trainer's signal handlers. */
static volatile sig_atomic_t handled;
static void on_signal(int number) {
        handled = 1;
}
static void signals_stay_with_the_trainer(void **state) {
        struct sigaction action = {.sa_handler = on_signal};
        small_begin(&now, &agent);
        assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
        for (int i = 0; i < 20; i++) {
                handled = 0;
                assert_int_equal(kill(getpid(), SIGUSR1), 0);
                for (int k = 0; k < 10000 && !handled; k++)
                        pause_ms(1);
                assert_true(handled);
        }
}

/* Closing does not wait for an agent that hangs in the middle of a reattachment. */
static void close_ends_a_reattachment(void **state) {
        small_begin(&now, &agent);
        fake_agent_stop(&agent);
        agent.wait_for_ever = true;
        fake_agent_start(&agent);
        assert_true(wait_for(&agent.hellos, 2));
        uint64_t begin_ns = clock_now(&clock_system);
        cairn_close(now.c);
        now.c = NULL;
        assert_true(clock_now(&clock_system) - begin_ns < 20 * NSEC_PER_SEC);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_new_agent_gets_everything_again), TEST(many_agents_in_a_row),
                TEST(dropped_again_and_again),           TEST(a_newer_generation_fences),
                TEST(requests_wait_for_the_next_agent),  TEST(signals_stay_with_the_trainer),
                TEST(close_ends_a_reattachment),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
