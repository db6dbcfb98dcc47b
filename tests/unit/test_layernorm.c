/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/layernorm.h"
#include "tests/unit/gradient.h"

enum { ROWS = 3, C = 13, X = ROWS * C };

/* Input, weight and bias one after the other, so that one check covers all gradients. */
static void reference(double *y, const double *in) {
        const double *weight = in + X, *bias = in + X + C;

        for (size_t r = 0; r < ROWS; r++) {
                const double *x = in + r * C;
                double mean = 0, variance = 0;
                for (size_t c = 0; c < C; c++)
                        mean += x[c] / C;
                for (size_t c = 0; c < C; c++)
                        variance += (x[c] - mean) * (x[c] - mean) / C;
                for (size_t c = 0; c < C; c++)
                        y[r * C + c] = (x[c] - mean) / sqrt(variance + 1e-5) * weight[c] + bias[c];
        }
}

static double objective(const double *in, void *argument) {
        const float *dy = argument;
        double y[X], sum = 0;

        reference(y, in);
        for (size_t i = 0; i < X; i++)
                sum += (double) dy[i] * y[i];
        return sum;
}

static void test_values_and_gradients(void **state) {
        float in[X + 2 * C], y[X], dy[X], mean[ROWS], rstd[ROWS], d[X + 2 * C] = {0};
        double wide[X + 2 * C], wanted[X];

        gradient_fill(in, X + 2 * C, 1);
        gradient_fill(dy, X, 2);
        gradient_widen(wide, in, X + 2 * C);
        layernorm_forward(y, mean, rstd, in, in + X, in + X + C, ROWS, C);
        reference(wanted, wide);
        for (size_t i = 0; i < X; i++)
                gradient_close((double) y[i], wanted[i], 1e-6, "layernorm", i);
        layernorm_backward(d, d + X, d + X + C, dy, in, in + X, mean, rstd, ROWS, C);
        gradient_check(objective, wide, d, X + 2 * C, dy, "dlayernorm");

        float again[2 * C] = {0};
        layernorm_backward(dy, again, again + C, dy, in, in + X, mean, rstd, ROWS, C);
        assert_memory_equal(dy, d, sizeof(dy));
        assert_memory_equal(again, d + X, sizeof(again));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values_and_gradients),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
