/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gelu.h"
#include "tests/kernels/layer_test.h"

static double gelu(double x) {
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_derivative(double x) {
        double u = sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);

        return 0.5 * (1.0 + t) +
               0.5 * x * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

/* The kernels' results beside those of both references; without the double one for odd values. */
static void check(struct array *x, struct array *dy, bool finite) {
        size_t count = x->count;
        struct array y = array_new(NULL, count, x->type), dx = array_new(NULL, count, x->type);
        float *reference = calloc(count + 1, sizeof(float));
        double *wanted = calloc(count + 1, sizeof(double));

        gpu_test_ok(gpu_gelu_forward(gpu_test_stream(), y.device, x->device, count, x->type));
        array_read(&y);
        gelu_forward(reference, x->value, count);
        array_equals(&y, reference, "gelu");
        for (size_t i = 0; i < count; i++)
                wanted[i] = gelu((double) x->value[i]);
        if (finite)
                array_close(&y, wanted, "gelu");

        gpu_test_ok(gpu_gelu_backward(gpu_test_stream(), dx.device, dy->device, x->device, count,
                                      x->type));
        array_read(&dx);
        gelu_backward(reference, dy->value, x->value, count);
        array_equals(&dx, reference, "dgelu");
        for (size_t i = 0; i < count; i++)
                wanted[i] = (double) dy->value[i] * gelu_derivative((double) x->value[i]);
        if (finite)
                array_close(&dx, wanted, "dgelu");

        /* din may be dout */
        gpu_test_ok(gpu_gelu_backward(gpu_test_stream(), dy->device, dy->device, x->device, count,
                                      x->type));
        array_read(dy);
        array_equals(dy, reference, "dgelu in place");
        array_free(&y);
        array_free(&dx);
        free(reference);
        free(wanted);
}

static void test_gelu(void **state) {
        static const size_t counts[] = {0, 1, 255, 257, 1003};

        for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++)
                for (size_t t = 0; t < 3; t++) {
                        struct array x = array_random(counts[n], 1, 6.0f, array_types[t]);
                        struct array dy = array_random(counts[n], 2, 1.0f, array_types[t]);
                        check(&x, &dy, true);
                        array_plant(&x, 3);
                        array_plant(&dy, 4);
                        check(&x, &dy, false);
                        array_free(&x);
                        array_free(&dy);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_gelu),
                cmocka_unit_test(layers_same_bits),
        };
        int failed = 0;

        while (layers_next_schedule())
                failed += cmocka_run_group_tests(tests, NULL, NULL);
        return failed;
}
