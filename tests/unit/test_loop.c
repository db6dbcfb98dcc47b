/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "format/host_state.h"
#include "tests/unit/small_session.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

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

static void calls_out_of_order_change_nothing(void **state) {
        small_begin(&now, &agent);
        assert_int_equal(cairn_update_end(now.c, 1), CAIRN_ERR_API);
        assert_int_equal(cairn_update_begin(now.c), 0);
        assert_int_equal(cairn_update_begin(now.c), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(now.c), "cairn_update_end comes next"));
        assert_int_equal(cairn_update_end(now.c, 0), CAIRN_ERR_API);
        assert_int_equal(cairn_update_end(now.c, -3), CAIRN_ERR_API);
        assert_int_equal(cut_read(agent.page).phase, CUT_UPDATING);
        assert_int_equal(cairn_update_end(now.c, 5), 0);
        assert_int_equal(cairn_update_begin(now.c), 0);
        assert_int_equal(cairn_update_end(now.c, 5), CAIRN_ERR_API);
        assert_int_equal(cairn_update_end(now.c, 6), 0);
        assert_int_equal(cut_read(agent.page).seq, 3);
        assert_int_equal(atomic_load(&agent.page->last_step), 6);
}

/* The request stands before STABLE does, so the next gate cannot overtake it. */
static void scheduled_snapshots_are_wanted_before_the_next_update(void **state) {
        agent.every_steps = 3;
        small_begin(&now, &agent);
        small_update(&now, 1);
        small_update(&now, 2);
        assert_int_equal(atomic_load(&agent.page->wanted_seq), 0);
        small_update(&now, 3);
        assert_int_equal(cut_read(agent.page).seq, 4);
        assert_int_equal(atomic_load(&agent.page->wanted_seq), 4);
        uint64_t rung = 0;
        assert_int_equal(read(agent.ring_fd, &rung, sizeof rung), sizeof rung);
        assert_int_equal(rung, 1);
        assert_int_equal(fake_agent_take(&agent, false), 0);
        assert_int_equal(agent.image.step, 3);
        small_update(&now, 4);
        assert_int_equal(read(agent.ring_fd, &rung, sizeof rung), -1);
}

/* A copier that never comes costs one gate's deadline, once. */
static void the_gate_waits_once_for_a_dead_copier(void **state) {
        struct cairn_statistics statistics = {.size = sizeof statistics};
        agent.every_steps = 1;
        small_begin(&now, &agent);
        small_update(&now, 1);
        uint64_t begin_ns = clock_now(&clock_system);
        small_update(&now, 2);
        uint64_t waited_ns = clock_now(&clock_system) - begin_ns;
        assert_in_range(waited_ns, 1900000000, 8000000000);
        begin_ns = clock_now(&clock_system);
        small_update(&now, 3);
        assert_true(clock_now(&clock_system) - begin_ns < 1800000000);
        assert_int_equal(cairn_get_statistics(now.c, &statistics), 0);
        assert_int_equal(statistics.gate_expired, 1);
        assert_true(statistics.stall_ns >= 1900000000);
        assert_int_equal(statistics.seq, 4);
        assert_int_equal(statistics.committed_step, -1);
}

/* B32: what the trainer does to its host values after update_end is of the next interval. */
static void b32_host_values_belong_to_the_cut(void **state) {
        small_begin(&now, &agent);
        small_update(&now, 1);
        now.samples = 123;
        now.best = 456;
        now.truth = 789;
        memset(now.rng, 0xee, sizeof now.rng);
        assert_int_equal(fake_agent_take(&agent, true), 0);
        cairn_close(now.c);
        fake_agent_forget(&agent);
        agent.mode = CAIRN_START_RESUME;
        assert_int_equal(small_open(&now, &agent), 0);
        small_declare(&now);
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_restore(now.c, NULL), 0);
        assert_int_equal(now.samples, 2000);
        assert_true(now.best == 2 / 3.0);
        assert_int_equal(now.truth, 1);
        assert_true(*now.step == 1.0f);
        assert_int_equal(now.rng_bytes, 2);
        assert_int_equal(now.rng[0], 2);
}

/* Tensors that change anywhere are as they were at update_end. */
static void anytime_tensors_are_shadowed(void **state) {
        small_begin(&now, &agent);
        small_update(&now, 1);
        now.stat[0] = 1e9f;
        assert_int_equal(fake_agent_take(&agent, true), 0);
        cairn_close(now.c);
        fake_agent_forget(&agent);
        agent.mode = CAIRN_START_RESUME;
        assert_int_equal(small_open(&now, &agent), 0);
        small_declare(&now);
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_restore(now.c, NULL), 0);
        assert_true(now.stat[0] == 2.0f);
        /* The restored value is in the shadow as well: a cut before the first update has it. */
        now.stat[0] = 1e9f;
        assert_int_equal(fake_agent_take(&agent, true), 0);
}

static void a_value_longer_than_its_capacity_is_named(void **state) {
        small_begin(&now, &agent);
        assert_int_equal(cairn_update_begin(now.c), 0);
        now.rng_bytes = 17;
        assert_int_equal(cairn_update_end(now.c, 1), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(now.c), "rng"));
        now.rng_bytes = 16;
        assert_int_equal(cairn_update_end(now.c, 1), 0);
}

static void debug_mutation_names_the_tensor(void **state) {
        setenv("CAIRN_DEBUG_MUTATION", "1", 1);
        small_begin(&now, &agent);
        unsetenv("CAIRN_DEBUG_MUTATION");
        small_update(&now, 1);
        now.stat[2] = 5; /* anytime: fine */
        small_update(&now, 2);
        now.m[3] = -1;
        assert_int_equal(cairn_update_begin(now.c), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(now.c), "begin update m: "));
        assert_non_null(strstr(cairn_error_text(now.c), "step 2"));
        assert_int_equal(cut_read(agent.page).phase, CUT_STABLE);
        small_update(&now, 3);
}

static void should_stop_follows_the_page(void **state) {
        assert_false(cairn_should_stop(NULL));
        small_begin(&now, &agent);
        assert_false(cairn_should_stop(now.c));
        atomic_store(&agent.page->wishes, CUT_WISH_STOP);
        assert_true(cairn_should_stop(now.c));
}

/* A page that somebody scribbled on ends the session, not the training. */
static void a_broken_word_poisons(void **state) {
        small_begin(&now, &agent);
        assert_int_equal(cairn_update_begin(now.c), 0);
        atomic_store(&agent.page->word, 3);
        assert_int_equal(cairn_update_end(now.c, 1), CAIRN_ERR_FATAL);
        assert_int_equal(cairn_update_begin(now.c), CAIRN_ERR_FATAL);
        assert_int_equal(cairn_snapshot(now.c, NULL), CAIRN_ERR_FATAL);
        assert_non_null(strstr(cairn_error_text(now.c), "poisoned"));
}

static void updates_cost_little(void **state) {
        enum { ROUNDS = 20000 };
        uint64_t best_ns = UINT64_MAX;
        small_begin(&now, &agent);
        int64_t step = 0;
        for (int i = 0; i < 5; i++) {
                uint64_t begin_ns = clock_now(&clock_system);
                for (int k = 0; k < ROUNDS; k++) {
                        step++;
                        (void) cairn_update_begin(now.c);
                        (void) cairn_update_end(now.c, step);
                }
                uint64_t each_ns = (clock_now(&clock_system) - begin_ns) / ROUNDS;
                best_ns = each_ns < best_ns ? each_ns : best_ns;
        }
        print_message("cairn_update_begin and _end: %llu ns\n", (unsigned long long) best_ns);
        assert_int_equal(cut_read(agent.page).seq, 1 + 5 * ROUNDS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(calls_out_of_order_change_nothing),
                TEST(scheduled_snapshots_are_wanted_before_the_next_update),
                TEST(the_gate_waits_once_for_a_dead_copier),
                TEST(b32_host_values_belong_to_the_cut),
                TEST(anytime_tensors_are_shadowed),
                TEST(a_value_longer_than_its_capacity_is_named),
                TEST(debug_mutation_names_the_tensor),
                TEST(should_stop_follows_the_page),
                TEST(a_broken_word_poisons),
                TEST(updates_cost_little),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
