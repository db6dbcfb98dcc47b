/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/park.h"
#include "tests/test.h"

#define LIVES(phase_, step_) \
        { .is_there = true, .phase = phase_, .step = step_ }
#define PARKED(step_) \
        { .is_there = true, .is_parked = true, .phase = CUT_COPYING, .step = step_ }
#define DIED(phase_, step_) \
        { .is_there = true, .is_dead = true, .phase = phase_, .step = step_ }
#define FAILED(phase_, step_) \
        { .is_there = true, .is_dead = true, .has_failed = true, .phase = phase_, .step = step_ }

static void test_judge(void **state) {
        static const struct {
                struct park_rank ranks[3];
                enum park_verdict verdict;
        } cases[] = {
                {{LIVES(CUT_STABLE, 7), DIED(CUT_STABLE, 7), LIVES(CUT_STABLE, 7)},
                 PARK_NOBODY_FAILED},
                {{LIVES(CUT_STABLE, 7), FAILED(CUT_STABLE, 7), LIVES(CUT_STABLE, 7)}, PARK_WAIT},
                {{PARKED(7), FAILED(CUT_STABLE, 7), LIVES(CUT_STABLE, 7)}, PARK_WAIT},
                {{PARKED(7), FAILED(CUT_STABLE, 7), PARKED(7)}, PARK_LEVEL},
                {{PARKED(7), FAILED(CUT_COPYING, 7), DIED(CUT_STABLE, 7)}, PARK_LEVEL},
                {{FAILED(CUT_STABLE, 7), FAILED(CUT_STABLE, 7), DIED(CUT_STABLE, 7)}, PARK_LEVEL},
                /* Behind, in the update of the step or before it: it gets there. */
                {{PARKED(7), FAILED(CUT_STABLE, 7), LIVES(CUT_UPDATING, 6)}, PARK_WAIT},
                {{PARKED(7), FAILED(CUT_STABLE, 7), LIVES(CUT_STABLE, 6)}, PARK_WAIT},
                /* The step is stored a moment before the update ends. */
                {{PARKED(7), FAILED(CUT_STABLE, 7), LIVES(CUT_UPDATING, 7)}, PARK_WAIT},
                /* Further, or never to get there. */
                {{PARKED(7), FAILED(CUT_STABLE, 7), LIVES(CUT_STABLE, 8)}, PARK_IMPOSSIBLE},
                {{PARKED(7), FAILED(CUT_STABLE, 7), DIED(CUT_STABLE, 6)}, PARK_IMPOSSIBLE},
                {{PARKED(7), FAILED(CUT_STABLE, 7), DIED(CUT_UPDATING, 7)}, PARK_IMPOSSIBLE},
                {{LIVES(CUT_STABLE, 7), FAILED(CUT_UPDATING, 7), LIVES(CUT_STABLE, 7)},
                 PARK_IMPOSSIBLE},
                {{LIVES(CUT_STABLE, 7), FAILED(CUT_STABLE, 7), {.is_there = false}},
                 PARK_IMPOSSIBLE},
        };

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                int64_t step = 7;
                enum park_verdict verdict = park_judge(cases[i].ranks, 3, &step);
                if (verdict != cases[i].verdict)
                        print_error("case %zu: %d, not %d\n", i, (int) verdict,
                                    (int) cases[i].verdict);
                assert_int_equal(verdict, cases[i].verdict);
                assert_int_equal(step, 7);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_judge)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
