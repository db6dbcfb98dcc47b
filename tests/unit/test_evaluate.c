/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/small_train.h"
#include <math.h>

/* Only a strict gain counts; a plateau, a NaN and an equal zero do not. */
static void test_judge(void **state) {
        struct state st = {.best_loss = INFINITY, .best_step = -1};

        evaluate_judge(&st, 2.0f, 10);
        assert_true(st.best_step == 10 && st.evaluations_without_gain == 0);
        evaluate_judge(&st, 2.0f, 20);
        evaluate_judge(&st, NAN, 30);
        assert_true(st.best_step == 10 && st.evaluations_without_gain == 2);
        evaluate_judge(&st, 0.0f, 40);
        assert_true(st.best_step == 40 && st.best_loss == 0.0 && st.evaluations_without_gain == 0);
        evaluate_judge(&st, 0.0f, 50);
        assert_true(st.evaluations_without_gain == 1);
}

/* An evaluation changes nothing that a step reads. */
static void test_leaves_training_alone(void **state) {
        struct train a, b;
        static const char options[] = "--dropout 0.1 --batchnorm-demo --ema 0.9";

        small_start(&a, options);
        small_start(&b, options);
        for (int i = 0; i < 10; i++) {
                float first, again;
                assert_int_equal(
                        evaluate_loss(&a.group, &a.batch, &a.weights, &a.corpus, 2, &first, NULL),
                        0);
                assert_int_equal(
                        evaluate_loss(&a.group, &a.batch, &a.weights, &a.corpus, 2, &again, NULL),
                        0);
                assert_true(first == again);
                assert_true(small_step(&a) == small_step(&b));
        }
        assert_memory_equal(a.state.running, b.state.running, a.model.width * sizeof(float));
        train_done(&a);
        train_done(&b);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_judge),
                cmocka_unit_test(test_leaves_training_alone),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
