/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"
#include "base/states.h"
#include "tests/test.h"

enum light { RED, GREEN, LIGHT_COUNT };

static const struct state_row lights[] = {
        [RED] = {"red", STATE_TO(GREEN)},
        [GREEN] = {"green", STATE_TO(RED)},
};

static void assert_false_fact(void *argument) {
        CAIRN_ASSERT(1 + 1 == 3);
}

static void step_red_to_red(void *argument) {
        (void) state_table_step(lights, LIGHT_COUNT, RED, RED);
}

static void step_out_of_table(void *argument) {
        (void) state_table_step(lights, LIGHT_COUNT, RED, LIGHT_COUNT);
}

static void test_assert_is_on(void **state) {
        CAIRN_ASSERT(1 + 1 == 2);
        test_assert_aborts(assert_false_fact, NULL);
}

static void test_state_table(void **state) {
        assert_string_equal(state_table_step(lights, LIGHT_COUNT, RED, GREEN), "green");
        test_assert_aborts(step_red_to_red, NULL);
        test_assert_aborts(step_out_of_table, NULL);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_assert_is_on),
                cmocka_unit_test(test_state_table),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
