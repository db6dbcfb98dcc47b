/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention.h"
#include "tests/unit/gradient.h"

enum { B = 2, T = 19, C = 6, NH = 2, HS = C / NH, IN = B * T * 3 * C, OUT = B * T * C };
static const struct attention shape = {.batch = B, .time = T, .channels = C, .heads = NH};

static double at(const double *qkv, size_t b, size_t t, size_t which, size_t h, size_t i) {
        return qkv[((b * T + t) * 3 + which) * C + h * HS + i];
}

static void reference(double *out, const double *qkv) {
        for (size_t b = 0; b < B; b++)
                for (size_t h = 0; h < NH; h++)
                        for (size_t t = 0; t < T; t++) {
                                double p[T], sum = 0, *y = out + (b * T + t) * C + h * HS;
                                for (size_t t2 = 0; t2 <= t; t2++) {
                                        double dot = 0;
                                        for (size_t i = 0; i < HS; i++)
                                                dot += at(qkv, b, t, 0, h, i) *
                                                       at(qkv, b, t2, 1, h, i);
                                        p[t2] = exp(dot / sqrt(HS));
                                        sum += p[t2];
                                }
                                for (size_t i = 0; i < HS; i++) {
                                        y[i] = 0;
                                        for (size_t t2 = 0; t2 <= t; t2++)
                                                y[i] += p[t2] / sum * at(qkv, b, t2, 2, h, i);
                                }
                        }
}

static double objective(const double *qkv, void *argument) {
        const float *dy = argument;
        double out[OUT], sum = 0;

        reference(out, qkv);
        for (size_t i = 0; i < OUT; i++)
                sum += (double) dy[i] * out[i];
        return sum;
}

static void test_values_and_gradients(void **state) {
        float qkv[IN], out[OUT], dout[OUT], dqkv[IN], att[B * NH * T * T];
        double wide[IN], wanted[OUT];
        float *scratch = malloc(attention_scratch(&shape) * sizeof(float));

        gradient_fill(qkv, IN, 1);
        gradient_fill(dout, OUT, 2);
        gradient_widen(wide, qkv, IN);
        attention_forward(out, att, qkv, scratch, &shape);
        reference(wanted, wide);
        for (size_t i = 0; i < OUT; i++)
                gradient_close((double) out[i], wanted[i], 1e-6, "attention", i);
        memset(dqkv, 0xff, sizeof(dqkv));
        attention_backward(dqkv, dout, qkv, att, scratch, &shape);
        gradient_check(objective, wide, dqkv, IN, dout, "dattention");
        free(scratch);
}

/* What comes later must not be seen. */
static void test_causal(void **state) {
        float qkv[IN], out[OUT], changed[OUT], att[B * NH * T * T];
        float *scratch = malloc(attention_scratch(&shape) * sizeof(float));

        gradient_fill(qkv, IN, 1);
        attention_forward(out, att, qkv, scratch, &shape);
        for (size_t i = 11 * 3 * C; i < T * 3 * C; i++)
                qkv[i] += 1.0f;
        attention_forward(changed, att, qkv, scratch, &shape);
        assert_memory_equal(out, changed, 11 * C * sizeof(float));
        assert_memory_not_equal(out + 11 * C, changed + 11 * C, C * sizeof(float));
        free(scratch);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values_and_gradients),
                cmocka_unit_test(test_causal),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
