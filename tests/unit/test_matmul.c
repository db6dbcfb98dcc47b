/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gradient.h"
#include "trainer/matmul.h"

enum { ROWS = 5, IN = 7, OUT = 3, ALL = ROWS * IN + OUT * IN + OUT };

/* in, weight and bias one after the other */
static double value(const double *x, size_t row, size_t out) {
        double sum = x[ROWS * IN + OUT * IN + out];

        for (size_t i = 0; i < IN; i++)
                sum += x[row * IN + i] * x[ROWS * IN + out * IN + i];
        return sum;
}

static double objective(const double *x, void *argument) {
        const float *dy = argument;
        double sum = 0;

        for (size_t i = 0; i < ROWS * OUT; i++)
                sum += (double) dy[i] * value(x, i / OUT, i % OUT);
        return sum;
}

static void test_values_and_gradients(void **state) {
        float x[ALL], y[ROWS * OUT], dy[ROWS * OUT], d[ALL] = {0};
        const float *weight = x + ROWS * IN, *bias = weight + OUT * IN;
        float *dweight = d + ROWS * IN, *dbias = dweight + OUT * IN;
        double wide[ALL];

        matmul_set_threads(1);
        gradient_fill(x, ALL, 1);
        gradient_fill(dy, ROWS * OUT, 2);
        gradient_widen(wide, x, ALL);
        matmul_forward(y, x, weight, bias, ROWS, IN, OUT);
        for (size_t i = 0; i < ROWS * OUT; i++)
                gradient_close((double) y[i], value(wide, i / OUT, i % OUT), 1e-6, "matmul", i);
        matmul_backward(d, dweight, dbias, dy, x, weight, ROWS, IN, OUT);
        gradient_check(objective, wide, d, ALL, dy, "dmatmul");
        matmul_forward(y, x, weight, NULL, ROWS, IN, OUT);
        for (size_t i = 0; i < ROWS * OUT; i++)
                gradient_close((double) y[i] + (double) bias[i % OUT],
                               value(wide, i / OUT, i % OUT), 1e-6, "matmul", i);
}

static void test_fingerprint(void **state) {
        assert_true(strlen(matmul_library()) > 0 && strlen(matmul_core()) > 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values_and_gradients),
                cmocka_unit_test(test_fingerprint),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
