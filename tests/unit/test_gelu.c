/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gelu.h"
#include "tests/unit/gradient.h"

enum { N = 67 };

static double gelu(double x) {
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double objective(const double *x, void *argument) {
        const float *weight = argument;
        double sum = 0;

        for (size_t i = 0; i < N; i++)
                sum += (double) weight[i] * gelu(x[i]);
        return sum;
}

static void test_values_and_gradients(void **state) {
        float x[N], y[N], dy[N], dx[N];
        double wide[N];

        gradient_fill(x, N, 1);
        gradient_fill(dy, N, 2);
        for (size_t i = 0; i < N; i++)
                x[i] *= 4.0f;
        gradient_widen(wide, x, N);
        gelu_forward(y, x, N);
        for (size_t i = 0; i < N; i++)
                gradient_close((double) y[i], gelu(wide[i]), 1e-6, "gelu", i);
        gelu_backward(dx, dy, x, N);
        gradient_check(objective, wide, dx, N, dy, "dgelu");
        gelu_backward(dy, dy, x, N);
        assert_memory_equal(dy, dx, sizeof(dx));
}

static void test_far_values(void **state) {
        float x[4] = {-1e4f, 1e4f, 0.0f, NAN}, y[4];

        gelu_forward(y, x, 4);
        assert_true(fabsf(y[0]) < 1e-30f && y[1] == 1e4f && y[2] == 0.0f && isnan(y[3]));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values_and_gradients),
                cmocka_unit_test(test_far_values),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
