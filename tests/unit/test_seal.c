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
        return 0;
}
static int tear_down(void **state) {
        cairn_close(now.c);
        now.c = NULL;
        fake_agent_done(&agent);
        return 0;
}

static int add_late(float *data, const char *name) {
        return cairn_register(now.c,
                              &(struct cairn_tensor){CAIRN_TENSOR_INIT, .name = name,
                                                     .role = CAIRN_MOMENT1, .dtype = CAIRN_F32,
                                                     .rank = 1, .shape = {3}, .data = data});
}

/* An optimizer that makes its state at the first step. */
static void sealing_again_inside_an_update(void **state) {
        float *late;
        int64_t counter = 41;
        small_begin(&now, &agent);
        small_update(&now, 1);
        assert_int_equal(cairn_seal(now.c), CAIRN_ERR_API);
        assert_int_equal(cairn_update_begin(now.c), 0);
        assert_int_equal(cairn_alloc(now.c, 64 * MiB, (void **) &late), 0);
        assert_int_equal(add_late(late, "late"), 0);
        assert_int_equal(cairn_state_i64(now.c, "late_counter", &counter), 0);
        assert_int_equal(cairn_update_end(now.c, 2), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(now.c), "call cairn_seal first"));
        late[0] = 3.5f;
        assert_int_equal(atomic_load(&agent.page->seal_number), 1);
        assert_int_equal(cairn_seal(now.c), 0);
        /* The number becomes public together with the state that follows it. */
        assert_int_equal(atomic_load(&agent.page->seal_number), 1);
        assert_int_equal(cairn_update_end(now.c, 2), 0);
        assert_int_equal(atomic_load(&agent.page->seal_number), 2);
        assert_int_equal(agent.seal_number, 2);
        assert_int_equal(agent.slabs, 2);
        assert_int_equal(fake_agent_take(&agent, true), 0);
        assert_int_equal(agent.image.step, 2);
}

/* Who ignores that a tensor was refused is told before anything is saved without it. */
static void a_refused_registration_is_told_once(void **state) {
        float *moment;
        small_begin(&now, &agent);
        assert_int_equal(cairn_update_begin(now.c), 0);
        assert_int_equal(cairn_alloc(now.c, 3 * sizeof *moment, (void **) &moment), 0);
        assert_int_equal(add_late(moment, "moment"), 0);
        assert_int_equal(add_late(moment, "moment"), CAIRN_ERR_API);
        assert_int_equal(add_late(moment, "moment/2"), 0);
        assert_int_equal(cairn_seal(now.c), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(now.c), "registered before"));
        assert_int_equal(atomic_load(&agent.page->seal_number), 1);
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(cairn_update_end(now.c, 1), 0);
}

static void what_is_sealed_is_fixed_outside_updates(void **state) {
        small_begin(&now, &agent);
        assert_int_equal(add_late(now.m, "late"), CAIRN_ERR_API);
        assert_int_equal(cairn_state_i64(now.c, "late", &now.samples), CAIRN_ERR_API);
        assert_int_equal(cairn_describe(now.c, "config.late", "1"), CAIRN_ERR_API);
        small_update(&now, 1);
}

static void a_refused_first_seal_may_be_repeated(void **state) {
        assert_int_equal(small_open(&now, &agent), 0);
        small_declare(&now);
        small_fill(&now, 1);
        agent.seal_status = CAIRN_ERR_NOMEM;
        assert_int_equal(cairn_seal(now.c), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(cairn_error_text(now.c), "refused by the fake agent"));
        assert_int_equal(cairn_restore(now.c, NULL), CAIRN_ERR_API);
        fake_agent_lock(&agent);
        agent.seal_status = 0;
        fake_agent_unlock(&agent);
        assert_int_equal(cairn_seal(now.c), 0);
        assert_int_equal(agent.seal_number, 1);
        assert_int_equal(cairn_restore(now.c, NULL), 0);
}

/* The state has its new shape whatever the agent says: training goes on, and the next agent gets
 * the seal. */
static void a_later_seal_holds_without_an_agent(void **state) {
        float *late;
        small_begin(&now, &agent);
        assert_int_equal(cairn_update_begin(now.c), 0);
        assert_int_equal(cairn_alloc(now.c, 12, (void **) &late), 0);
        assert_int_equal(add_late(late, "late"), 0);
        agent.seal_status = CAIRN_ERR_NOMEM;
        assert_int_equal(cairn_seal(now.c), CAIRN_ERR_NOMEM);
        assert_int_equal(cairn_update_end(now.c, 1), 0);
        assert_int_equal(atomic_load(&agent.page->seal_number), 2);
        fake_agent_stop(&agent);
        agent.seal_status = 0;
        fake_agent_start(&agent);
        for (int i = 0; i < 3000; i++) {
                clock_system.sleep_ns(clock_system.context, 20000000);
                fake_agent_lock(&agent);
                uint64_t number = agent.seal_number;
                fake_agent_unlock(&agent);
                if (number == 2)
                        break;
        }
        assert_int_equal(fake_agent_take(&agent, true), 0);
        assert_int_equal(agent.image.step, 1);
}

static void the_gates_deadline_has_a_minimum(void **state) {
        agent.gate_deadline_ns = 1;
        agent.every_steps = 1;
        small_begin(&now, &agent);
        small_update(&now, 1);
        uint64_t begin_ns = clock_now(&clock_system);
        small_update(&now, 2);
        assert_true(clock_now(&clock_system) - begin_ns >= 1900 * NSEC_PER_MSEC);
}

/* Registering, sealing and restoring 100,000 tensors. */
static void a_hundred_thousand_tensors(void **state) {
        enum { COUNT = 100000 };
        char name[64];
        char *memory;
        assert_int_equal(small_open(&now, &agent), 0);
        assert_int_equal(cairn_alloc(now.c, (uint64_t) COUNT * 64, (void **) &memory), 0);
        uint64_t begin_ns = clock_now(&clock_system);
        for (int i = 0; i < COUNT; i++) {
                (void) snprintf(name, sizeof name, "model.layers.%d.attention.weight", i);
                struct cairn_tensor t = {CAIRN_TENSOR_INIT,
                                         .name = name,
                                         .role = CAIRN_PARAMETER,
                                         .dtype = CAIRN_F32,
                                         .rank = 2,
                                         .shape = {4, 4},
                                         .data = memory + (size_t) i * 64};
                assert_int_equal(cairn_register(now.c, &t), 0);
        }
        uint64_t registered_ns = clock_now(&clock_system);
        int r = cairn_seal(now.c);
        if (r < 0)
                print_error("%s\n", cairn_error_text(now.c));
        assert_int_equal(r, 0);
        uint64_t sealed_ns = clock_now(&clock_system);
        assert_int_equal(cairn_restore(now.c, NULL), 0);
        print_message("100,000 tensors: register %llu ms, seal %llu ms\n",
                      (unsigned long long) ((registered_ns - begin_ns) / NSEC_PER_MSEC),
                      (unsigned long long) ((sealed_ns - registered_ns) / NSEC_PER_MSEC));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(sealing_again_inside_an_update),
                TEST(a_refused_registration_is_told_once),
                TEST(what_is_sealed_is_fixed_outside_updates),
                TEST(a_refused_first_seal_may_be_repeated),
                TEST(a_later_seal_holds_without_an_agent),
                TEST(the_gates_deadline_has_a_minimum),
                TEST(a_hundred_thousand_tensors),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
