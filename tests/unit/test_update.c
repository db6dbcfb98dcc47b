/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/small_train.h"
#include <math.h>

static void start(struct train *t, const char *options) {
        small_start(t, options);
        for (size_t i = 0; i < t->state.shard.whole; i++)
                t->gradient_block[i] = 0.0f;
}

static void examine(struct train *t, struct update *u) {
        size_t count = t->state.shard.whole;

        assert_int_equal(update_sums(&t->state, t->sums, t->gradient_block, count, NULL), 0);
        update_examine(u, &t->state, t->sums, count / SHARD_CHUNK, &t->settings);
}

static void apply(struct train *t, struct update *u) {
        examine(t, u);
        update_apply(u, &t->state, t->gradient_block, &t->settings, 0.01);
}

static void test_skipped_update(void **state) {
        struct train t;
        struct update u;

        start(&t, "--loss-scale dynamic --loss-scale-growth 3 --ema 0.9");
        size_t bytes = t.model.block_count * sizeof(float);
        float *before = malloc(bytes);
        memcpy(before, t.state.parameters, bytes);
        t.gradient_block[t.model.tensor[5].offset] = INFINITY;
        apply(&t, &u);
        assert_false(u.is_finite);
        assert_memory_equal(before, t.state.parameters, bytes);
        assert_memory_equal(before, t.state.ema, bytes);
        assert_true(t.state.truths[5] == 0 && t.state.skipped == 1 && t.state.ema_updates == 0);
        assert_true(t.state.loss_scale == 32768.0 && t.state.nonfinite_run == 1);

        t.gradient_block[t.model.tensor[5].offset] = 0.25f;
        for (int i = 0; i < 3; i++)
                apply(&t, &u);
        assert_true(u.is_finite && t.state.truths[5] == 3 && t.state.nonfinite_run == 0);
        assert_true(t.state.loss_scale == 65536.0 && t.state.good_steps == 0);
        assert_memory_not_equal(before, t.state.parameters, bytes);
        free(before);
        train_done(&t);
}

static void test_scale_is_bounded(void **state) {
        struct train t;
        struct update u;

        start(&t, "--loss-scale dynamic --loss-scale-growth 1");
        for (int i = 0; i < 40; i++)
                apply(&t, &u);
        assert_true(t.state.loss_scale == 0x1p24);
        t.gradient_block[0] = NAN;
        for (int i = 0; i < 60; i++) {
                assert_int_equal(update_is_hopeless(&t.state, &t.settings), i >= 48);
                apply(&t, &u);
        }
        assert_true(t.state.loss_scale == 0x1p-24);
        train_done(&t);
}

/* Padding between tensors is no gradient; scale and clipping enter once. */
/* Overridden to fewer good steps than there were already. */
static void test_growth_is_lowered(void **state) {
        struct train t;
        struct update u;

        start(&t, "--loss-scale dynamic --loss-scale-growth 5");
        t.state.good_steps = 9;
        apply(&t, &u);
        assert_true(t.state.loss_scale == 131072.0 && t.state.good_steps == 0);
        train_done(&t);
}

static void test_norm_and_clip(void **state) {
        struct train t;
        struct update u;

        start(&t, "--loss-scale 1024 --clip 2");
        t.gradient_block[t.model.tensor[0].offset] = 3.0f * 1024.0f;
        t.gradient_block[t.model.tensor[3].offset] = 4.0f * 1024.0f;
        examine(&t, &u);
        assert_true(fabs(u.norm - 5.0) < 1e-12);
        assert_true(fabsf(u.gradient_scale - 0.4f / 1024.0f) < 1e-9f);
        t.settings.clip = 0;
        examine(&t, &u);
        assert_true(u.gradient_scale == 1.0f / 1024.0f);
        train_done(&t);
}

/* A power of two as loss scale changes no bit of the run. */
static void test_scale_is_exact(void **state) {
        struct train a, b;

        small_start(&a, "--clip 0");
        small_start(&b, "--clip 0 --loss-scale 4096");
        for (int i = 0; i < 20; i++)
                assert_true(small_step(&a) == small_step(&b));
        assert_memory_equal(a.state.parameters, b.state.parameters,
                            a.model.block_count * sizeof(float));
        train_done(&a);
        train_done(&b);
}

static void test_hopeless(void **state) {
        struct train t;
        struct update u;

        start(&t, "");
        t.gradient_block[0] = NAN;
        for (int i = 0; i < 3; i++) {
                assert_false(update_is_hopeless(&t.state, &t.settings));
                apply(&t, &u);
        }
        assert_true(update_is_hopeless(&t.state, &t.settings));
        train_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_skipped_update),    cmocka_unit_test(test_scale_is_bounded),
                cmocka_unit_test(test_norm_and_clip),     cmocka_unit_test(test_scale_is_exact),
                cmocka_unit_test(test_growth_is_lowered), cmocka_unit_test(test_hopeless),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
