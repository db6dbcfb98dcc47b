/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/schedule.h"
#include <math.h>

static struct schedule make(enum settings_decay decay) {
        struct settings s = {.steps = 100,
                             .warmup = 10,
                             .global_batch = 4,
                             .decay = decay,
                             .lr = 1e-3,
                             .min_lr = 1e-4};
        struct schedule h;

        schedule_init(&h, &s);
        return h;
}

static bool near(double a, double b) {
        return fabs(a - b) < 1e-15;
}

static void test_warmup(void **state) {
        struct schedule h = make(DECAY_LINEAR);

        assert_true(near(schedule_rate(&h, 0), 1e-4));
        assert_true(near(schedule_rate(&h, 4 * 4), 5e-4));
        assert_true(near(schedule_rate(&h, 9 * 4), 1e-3));
        assert_true(near(schedule_rate(&h, 10 * 4), 1e-3));
}

static void test_decay(void **state) {
        struct schedule linear = make(DECAY_LINEAR), cosine = make(DECAY_COSINE);
        struct schedule constant = make(DECAY_CONSTANT);

        assert_true(near(schedule_rate(&linear, 55 * 4), 5.5e-4));
        assert_true(near(schedule_rate(&cosine, 55 * 4), 5.5e-4));
        assert_true(schedule_rate(&cosine, 30 * 4) > schedule_rate(&linear, 30 * 4));
        assert_true(near(schedule_rate(&constant, 99 * 4), 1e-3));
        assert_true(near(schedule_rate(&linear, 100 * 4), 1e-4));
        assert_true(near(schedule_rate(&cosine, 1000 * 4), 1e-4));
        for (int64_t step = 10; step < 99; step++)
                assert_true(schedule_rate(&cosine, (step + 1) * 4) <
                            schedule_rate(&cosine, step * 4));
}

static void test_without_warmup(void **state) {
        struct schedule h = make(DECAY_COSINE);

        h.warmup_samples = 0;
        assert_true(near(schedule_rate(&h, 0), 1e-3));
        h.warmup_samples = h.total_samples; /* never leaves the warm-up, never divides by zero */
        assert_true(near(schedule_rate(&h, h.total_samples - 4), 1e-3));
        assert_true(near(schedule_rate(&h, h.total_samples), 1e-4));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_warmup),
                cmocka_unit_test(test_decay),
                cmocka_unit_test(test_without_warmup),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
