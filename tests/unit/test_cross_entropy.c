/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cross_entropy.h"
#include "tests/unit/gradient.h"

enum { ROWS = 4, V = 21, N = ROWS * V };
static const uint32_t targets[ROWS] = {0, 20, 7, 7};

static double loss_of_row(const double *x, uint32_t target) {
        double sum = 0;

        for (size_t c = 0; c < V; c++)
                sum += exp(x[c]);
        return log(sum) - x[target];
}

static double objective(const double *x, void *argument) {
        double sum = 0;

        for (size_t r = 0; r < ROWS; r++)
                sum += loss_of_row(x + r * V, targets[r]);
        return sum * 0.25;
}

static void test_values_and_gradients(void **state) {
        float x[N], losses[ROWS];
        double wide[N];

        gradient_fill(x, N, 1);
        for (size_t i = 0; i < N; i++)
                x[i] *= 5.0f;
        gradient_widen(wide, x, N);
        cross_entropy_forward(losses, x, targets, ROWS, V);
        for (size_t r = 0; r < ROWS; r++)
                gradient_close((double) losses[r], loss_of_row(wide + r * V, targets[r]), 1e-6,
                               "loss", r);
        cross_entropy_backward(x, targets, ROWS, V, 0.25f);
        gradient_check(objective, wide, x, N, NULL, "dloss");
}

/* A certain mistake costs its distance, not the logarithm of a flushed probability. */
static void test_far_logits(void **state) {
        float x[2] = {500.0f, -500.0f}, loss;
        uint32_t target = 1;

        cross_entropy_forward(&loss, x, &target, 1, 2);
        assert_true(fabsf(loss - 1000.0f) < 1e-3f);
        x[0] = NAN;
        cross_entropy_forward(&loss, x, &target, 1, 2);
        assert_true(isnan(loss));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values_and_gradients),
                cmocka_unit_test(test_far_logits),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
