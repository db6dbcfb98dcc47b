/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/small_train.h"

/* After loading weights only, masters and average start from them, in the first update: here it is
 * skipped, so that it can be seen. */
static void test_init_from(void **state) {
        struct train t;

        small_start(&t, "--dtype bf16 --ema 0.9 --overflow-step 1");
        uint16_t *weights = t.state.parameters;
        for (size_t i = 0; i < t.model.block_count; i++)
                weights[i] = (uint16_t) (0x3c00 + i % 512);
        state_restored(&t.state);
        (void) small_step(&t);
        for (size_t i = 0; i < t.model.block_count; i++) {
                uint32_t bits;
                memcpy(&bits, &t.state.masters[i], sizeof(bits));
                assert_true(bits == (uint32_t) weights[i] << 16);
        }
        assert_memory_equal(t.state.ema, t.state.masters, t.model.block_count * sizeof(float));
        assert_memory_equal(t.state.working, t.state.masters, t.model.block_count * sizeof(float));
        train_done(&t);
}

/* What the operator overrides is what the run uses, with everything that follows from it. */
static void test_override(void **state) {
        struct train t;

        fake_override_key = "config.global-batch";
        fake_override_value = "6";
        small_start(&t, "");
        assert_true(t.settings.global_batch == 6 && t.settings.accumulate == 3);
        train_done(&t);

        const struct compute cpu = {.ordinal = -1};
        struct checkpoint cp;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct settings s;
        assert_int_equal(small_parse(&s, "", &e), 0);
        fake_override_value = "many";
        assert_int_equal(checkpoint_open(&cp, &s, &cpu), 0);
        assert_int_equal(checkpoint_override(&cp, &s, &e), CAIRN_ERR_API);
        assert_string_equal(e.object, "--global-batch");
        checkpoint_close(&cp);
        fake_override_key = NULL;
}

static void test_description(void **state) {
        struct train t;

        small_start(&t, "");
        assert_true(t.checkpoint.cairn->descriptions > 35);
        train_done(&t);
}

static void fail_and_train(void *argument) {
        struct train *t = argument;

        for (int i = 0; i < 5; i++)
                (void) small_step(t);
        _exit(t->checkpoint.failures == 10 && t->step == 5 ? 0 : 1);
}

/* No failure of a checkpoint ends training; each is counted. */
static void test_failures(void **state) {
        struct train t;

        small_start(&t, "");
        fake_status = CAIRN_ERR_PEER;
        assert_int_equal(test_in_child(fail_and_train, &t), 0);
        fake_status = 0;
        train_done(&t);
}

static void count_calls(double seconds, void *argument) {
        int *calls = argument;

        (*calls)++;
}

static void test_last(void **state) {
        struct train t;
        int64_t saved = -1;
        int calls = 0;

        small_start(&t, "");
        (void) small_step(&t);
        assert_int_equal(checkpoint_last(&t.checkpoint, 5, count_calls, &calls, &saved), 0);
        assert_true(saved == 1 && calls == 0);
        fake_status = CAIRN_ERR_TIMEOUT;
        assert_int_equal(checkpoint_last(&t.checkpoint, 5, count_calls, &calls, &saved),
                         CAIRN_ERR_TIMEOUT);
        assert_int_equal(calls, 4);
        fake_status = CAIRN_ERR_NOSPACE;
        assert_int_equal(checkpoint_last(&t.checkpoint, 5, count_calls, &calls, &saved),
                         CAIRN_ERR_NOSPACE);
        fake_status = 0;
        train_done(&t);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_init_from),   cmocka_unit_test(test_override),
                cmocka_unit_test(test_description), cmocka_unit_test(test_failures),
                cmocka_unit_test(test_last),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
