/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attention.h"
#include "tests/kernels/layer_test.h"

/* Sequences of less than a tile, of several, of one more; heads of 1 to 128 elements. */
static const struct attention shapes[] = {
        {.batch = 2, .time = 19, .channels = 6, .heads = 2},
        {.batch = 1, .time = 33, .channels = 128, .heads = 1},
        {.batch = 1, .time = 70, .channels = 66, .heads = 2},
        {.batch = 3, .time = 1, .channels = 4, .heads = 4},
        {.batch = 0, .time = 5, .channels = 4, .heads = 2},
        {.batch = 2, .time = 0, .channels = 4, .heads = 2},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

struct layer {
        struct attention a;
        struct array qkv, att, out, dout, dqkv;
};

static struct layer layer_new(struct attention a, enum gpu_type type) {
        size_t rows = a.batch * a.time;

        return (struct layer){
                .a = a,
                .qkv = array_random(rows * 3 * a.channels, 1, 1.5f, type),
                .att = array_new(NULL, rows * a.heads * a.time, type),
                .out = array_new(NULL, rows * a.channels, type),
                .dout = array_random(rows * a.channels, 2, 1.0f, type),
                .dqkv = array_new(NULL, rows * 3 * a.channels, type),
        };
}

static void layer_free(struct layer *l) {
        array_free(&l->qkv);
        array_free(&l->att);
        array_free(&l->out);
        array_free(&l->dout);
        array_free(&l->dqkv);
}

/* The index in qkv of element i of a head's query (which 0), key or value. */
static size_t at(const struct attention *a, size_t b, size_t t, size_t which, size_t h, size_t i) {
        return ((b * a->time + t) * 3 + which) * a->channels + h * (a->channels / a->heads) + i;
}

/* The layer in double: one query of one head, with what it adds to the gradients. */
struct reference {
        struct attention a;
        const double *x, *dout;
        double *p, *out, *dqkv;
};

static void reference_query(const struct reference *r, size_t b, size_t h, size_t t) {
        const struct attention *a = &r->a;
        const double *x = r->x;
        size_t size = a->channels / a->heads, row = (b * a->time + t) * a->channels + h * size;
        double *p = r->p + ((b * a->heads + h) * a->time + t) * a->time;
        double sum = 0, mean = 0, root = sqrt((double) size), dp[128];

        for (size_t u = 0; u <= t; u++) {
                double dot = 0;
                for (size_t i = 0; i < size; i++)
                        dot += x[at(a, b, t, 0, h, i)] * x[at(a, b, u, 1, h, i)];
                p[u] = exp(dot / root);
                sum += p[u];
        }
        for (size_t u = 0; u <= t; u++) {
                p[u] /= sum;
                dp[u] = 0;
                for (size_t i = 0; i < size; i++) {
                        r->out[row + i] += p[u] * x[at(a, b, u, 2, h, i)];
                        r->dqkv[at(a, b, u, 2, h, i)] += p[u] * r->dout[row + i];
                        dp[u] += r->dout[row + i] * x[at(a, b, u, 2, h, i)];
                }
                mean += p[u] * dp[u];
        }
        for (size_t u = 0; u <= t; u++)
                for (size_t i = 0; i < size; i++) {
                        double slope = p[u] * (dp[u] - mean) / root;
                        r->dqkv[at(a, b, t, 0, h, i)] += slope * x[at(a, b, u, 1, h, i)];
                        r->dqkv[at(a, b, u, 1, h, i)] += slope * x[at(a, b, t, 0, h, i)];
                }
}

static void reference_run(struct reference *r) {
        size_t count = r->a.batch * r->a.time * r->a.channels;

        memset(r->out, 0, count * sizeof(*r->out));
        memset(r->dqkv, 0, 3 * count * sizeof(*r->dqkv));
        for (size_t b = 0; b < r->a.batch; b++)
                for (size_t h = 0; h < r->a.heads; h++)
                        for (size_t t = 0; t < r->a.time; t++)
                                reference_query(r, b, h, t);
}

static double *widened(const struct array *a) {
        double *wide = calloc(a->count + 1, sizeof(*wide));

        assert_non_null(wide);
        gradient_widen(wide, a->value, a->count);
        return wide;
}

static double objective(const double *x, void *argument) {
        struct reference r = *(struct reference *) argument;
        double sum = 0;

        r.x = x;
        reference_run(&r);
        for (size_t i = 0; i < r.a.batch * r.a.time * r.a.channels; i++)
                sum += r.out[i] * r.dout[i];
        return sum;
}

static void forward(struct layer *l) {
        gpu_test_ok(gpu_attention_forward(gpu_test_stream(), l->out.device, l->att.device,
                                          l->qkv.device, l->a, l->qkv.type));
        array_read(&l->out);
        array_read(&l->att);
}

static void backward(struct layer *l) {
        gpu_test_ok(gpu_attention_backward(gpu_test_stream(), l->dqkv.device, l->dout.device,
                                           l->qkv.device, l->att.device, l->a, l->qkv.type));
        array_read(&l->dqkv);
}

/* What is later than the query is neither written nor, as NaN, noticed. */
static void expect_untouched(const struct layer *l) {
        for (size_t i = 0; i < l->att.count; i++)
                if (i % l->a.time > i / l->a.time % l->a.time)
                        assert_true(isnan(l->att.value[i]));
}

static void check(struct attention a, enum gpu_type type) {
        struct layer l = layer_new(a, type);
        double *x = widened(&l.qkv), *dout = widened(&l.dout);
        struct reference r = {.a = a, .x = x, .dout = dout};

        r.p = calloc(l.att.count + 1, sizeof(double));
        r.out = calloc(l.out.count + 1, sizeof(double));
        r.dqkv = calloc(l.qkv.count + 1, sizeof(double));
        assert_true(r.p && r.out && r.dqkv);
        for (size_t i = 0; i < l.att.count; i++)
                l.att.value[i] = NAN;
        array_put(&l.att);
        reference_run(&r);
        forward(&l);
        expect_untouched(&l);
        for (size_t i = 0; i < l.att.count; i++)
                if (isnan(l.att.value[i]))
                        l.att.value[i] = 0.0f; /* those of the reference are 0 */
        array_close(&l.out, r.out, "out");
        array_close(&l.att, r.p, "probabilities");
        backward(&l);
        array_read(&l.att);
        expect_untouched(&l);
        array_close(&l.dqkv, r.dqkv, "dqkv");
        if (type == GPU_F32 && l.qkv.count < 1000)
                gradient_check(objective, x, l.dqkv.value, l.qkv.count, &r, "dqkv");
        layer_free(&l);
        free(x);
        free(dout);
        free(r.p);
        free(r.out);
        free(r.dqkv);
}

static void test_values_and_gradients(void **state) {
        for (size_t s = 0; s < SHAPES; s++)
                for (size_t t = 0; t < 3; t++)
                        check(shapes[s], array_types[t]);
}

/* NaN and infinities come out where they do of the C reference, and nowhere else. */
static void test_odd_values(void **state) {
        struct attention a = {.batch = 2, .time = 37, .channels = 10, .heads = 2};

        for (size_t t = 0; t < 3; t++) {
                struct layer l = layer_new(a, array_types[t]);
                float *scratch = malloc(attention_scratch(&a) * sizeof(float));
                float *out = calloc(l.out.count, sizeof(float));
                float *att = calloc(l.att.count, sizeof(float));
                float *dqkv = calloc(l.qkv.count, sizeof(float));
                assert_true(scratch && out && att && dqkv);
                l.qkv.value[at(&a, 0, 20, 0, 0, 2)] = NAN;       /* one query's row */
                l.qkv.value[at(&a, 0, 33, 1, 1, 0)] = -INFINITY; /* rows from 33 on */
                l.qkv.value[at(&a, 1, 35, 2, 0, 4)] = INFINITY;
                l.qkv.value[at(&a, 1, 3, 1, 1, 0)] = 1e-41f;
                array_put(&l.qkv);
                attention_forward(out, att, l.qkv.value, scratch, &a);
                attention_backward(dqkv, l.dout.value, l.qkv.value, att, scratch, &a);
                forward(&l);
                array_like(&l.out, out, "out");
                backward(&l);
                /* Times infinity, a probability that 16 bits flush to 0 is NaN and not infinite. */
                for (size_t i = 0; i < l.qkv.count && t > 0; i++)
                        assert_true(isfinite(l.dqkv.value[i]) == isfinite(dqkv[i]));
                if (t == 0)
                        array_like(&l.dqkv, dqkv, "dqkv");
                layer_free(&l);
                free(scratch);
                free(out);
                free(att);
                free(dqkv);
        }
}

static void test_refused(void **state) {
        struct attention wide = {.batch = 1, .time = 1, .channels = 129, .heads = 1};
        struct attention uneven = {.batch = 1, .time = 1, .channels = 5, .heads = 2};
        struct attention none = {.batch = 1, .time = 1, .channels = 4, .heads = 0};
        struct layer l = layer_new(shapes[0], GPU_F32);

        l.a = wide;
        assert_int_not_equal(gpu_attention_forward(gpu_test_stream(), l.out.device, l.att.device,
                                                   l.qkv.device, wide, GPU_F32),
                             0);
        assert_int_not_equal(gpu_attention_forward(gpu_test_stream(), l.out.device, l.att.device,
                                                   l.qkv.device, uneven, GPU_F32),
                             0);
        assert_int_not_equal(gpu_attention_backward(gpu_test_stream(), l.dqkv.device, l.dout.device,
                                                    l.qkv.device, l.att.device, none, GPU_F32),
                             0);
        assert_int_not_equal(gpu_attention_forward(gpu_test_stream(), l.out.device, l.att.device,
                                                   l.qkv.device, shapes[0], (enum gpu_type) 3),
                             0);
        layer_free(&l);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values_and_gradients),
                cmocka_unit_test(test_odd_values),
                cmocka_unit_test(test_refused),
                cmocka_unit_test(layers_same_bits),
        };
        int failed = 0;

        while (layers_next_schedule())
                failed += cmocka_run_group_tests(tests, NULL, NULL);
        return failed;
}
