/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rows.h"
#include "tests/kernels/layer_test.h"

struct shape {
        size_t rows, channels;
};
static const struct shape shapes[] = {{7, 5}, {1, 300}, {70, 33}, {3, 1}, {0, 4}, {4, 0}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]), MOST = 7 * 330 };

static void check_elements(struct shape s, enum gpu_type type) {
        size_t count = s.rows * s.channels;
        struct array out = array_random(count, 1, 1.0f, type),
                     a = array_random(count, 2, 1.0f, type);
        struct array b = array_random(count, 3, 1.0f, type),
                     bias = array_random(s.channels, 4, 1.0f, type);
        struct array offset = array_random(s.channels, 5, 1.0f, GPU_F32);
        static float wanted[MOST];

        array_plant(&a, 6);
        array_plant(&bias, 7);
        gpu_test_ok(gpu_rows_add(gpu_test_stream(), out.device, a.device, b.device, count, type));
        array_read(&out);
        rows_add(wanted, a.value, b.value, count);
        array_equals(&out, wanted, "add");
        /* out may be a or b */
        gpu_test_ok(gpu_rows_add(gpu_test_stream(), a.device, a.device, b.device, count, type));
        gpu_test_ok(gpu_rows_add_bias(gpu_test_stream(), a.device, bias.device, s.rows, s.channels,
                                      type));
        array_read(&a);
        for (size_t i = 0; i < count; i++)
                wanted[i] = out.value[i] + bias.value[i % s.channels];
        array_equals(&a, wanted, "add bias");
        gpu_test_ok(gpu_rows_fill(gpu_test_stream(), out.device, bias.device, s.rows, s.channels,
                                  type));
        array_read(&out);
        rows_fill(wanted, bias.value, s.rows, s.channels);
        array_equals(&out, wanted, "fill");
        gpu_test_ok(gpu_rows_subtract(gpu_test_stream(), b.device, offset.device, s.rows,
                                      s.channels, type));
        memcpy(wanted, b.value, count * sizeof(float));
        array_read(&b);
        rows_subtract(wanted, offset.value, s.rows, s.channels);
        array_equals(&b, wanted, "subtract");
        array_free(&out);
        array_free(&a);
        array_free(&b);
        array_free(&bias);
        array_free(&offset);
}

/* The sums of the columns in double, times `factor`, added to what is in target. */
static void add_columns(double *target, const struct array *x, struct shape s, double factor) {
        for (size_t i = 0; i < s.rows * s.channels; i++)
                target[i % s.channels] += factor * (double) x->value[i];
}

static void check_sums(struct shape s, enum gpu_type type, bool planted) {
        struct array x = array_random(s.rows * s.channels, 1, 1.0f, type);
        struct array dbias = array_random(s.channels, 2, 1.0f, GPU_F32);
        struct array running = array_random(s.channels, 3, 1.0f, GPU_F32);
        static float like[MOST], centered[MOST];
        static double wanted[MOST];

        if (planted)
                array_plant(&x, 4);
        memcpy(like, dbias.value, s.channels * sizeof(float));
        gradient_widen(wanted, dbias.value, s.channels);
        rows_add_bias_gradient(like, x.value, s.rows, s.channels);
        add_columns(wanted, &x, s, 1.0);
        gpu_test_ok(gpu_rows_add_bias_gradient(gpu_test_stream(), dbias.device, x.device, s.rows,
                                               s.channels, type));
        array_read(&dbias);
        array_like(&dbias, like, "bias gradient");
        if (!planted)
                array_close(&dbias, wanted, "bias gradient");

        for (size_t c = 0; c < s.channels; c++)
                wanted[c] = (s.rows ? 0.75 : 1.0) * (double) running.value[c];
        add_columns(wanted, &x, s, 0.25 / (double) s.rows);
        memcpy(like, running.value, s.channels * sizeof(float));
        memcpy(centered, x.value, x.count * sizeof(float));
        if (s.rows > 0)
                rows_center_running(like, centered, 0.25f, s.rows, s.channels);
        gpu_test_ok(gpu_rows_center_running(gpu_test_stream(), running.device, x.device, 0.25f,
                                            s.rows, s.channels, type));
        array_read(&running);
        array_read(&x);
        array_like(&running, like, "running mean");
        array_like(&x, centered, "centered");
        if (!planted)
                array_close(&running, wanted, "running mean");
        array_free(&x);
        array_free(&dbias);
        array_free(&running);
}

static void test_elements(void **state) {
        for (size_t s = 0; s < SHAPES; s++)
                for (size_t t = 0; t < 3; t++)
                        check_elements(shapes[s], array_types[t]);
}

static void test_sums(void **state) {
        for (size_t s = 0; s < SHAPES; s++)
                for (size_t t = 0; t < 3; t++) {
                        check_sums(shapes[s], array_types[t], false);
                        check_sums(shapes[s], array_types[t], true);
                }
}

/* More rows, and more columns, than a launch has warps: they go on in strides. */
static void test_strides(void **state) {
        enum { ROWS = 8 * 4096 + 9, COLUMNS = 32 * 4096 + 33 };
        struct array out = array_new(NULL, ROWS, GPU_F32), one = array_random(1, 1, 1.0f, GPU_F32);
        struct array dbias = array_random(COLUMNS, 2, 1.0f, GPU_F32);
        struct array dout = array_random(COLUMNS, 3, 1.0f, GPU_F32);
        float *wanted = calloc(COLUMNS, sizeof(*wanted));

        assert_non_null(wanted);
        gpu_test_ok(gpu_rows_fill(gpu_test_stream(), out.device, one.device, ROWS, 1, GPU_F32));
        array_read(&out);
        rows_fill(wanted, one.value, ROWS, 1);
        array_equals(&out, wanted, "fill");
        memcpy(wanted, dbias.value, COLUMNS * sizeof(float));
        rows_add_bias_gradient(wanted, dout.value, 1, COLUMNS);
        gpu_test_ok(gpu_rows_add_bias_gradient(gpu_test_stream(), dbias.device, dout.device, 1,
                                               COLUMNS, GPU_F32));
        array_read(&dbias);
        array_equals(&dbias, wanted, "bias gradient");
        array_free(&out);
        array_free(&one);
        array_free(&dbias);
        array_free(&dout);
        free(wanted);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_elements),
                cmocka_unit_test(test_sums),
                cmocka_unit_test(test_strides),
                cmocka_unit_test(layers_same_bits),
        };
        int failed = 0;

        while (layers_next_schedule())
                failed += cmocka_run_group_tests(tests, NULL, NULL);
        return failed;
}
