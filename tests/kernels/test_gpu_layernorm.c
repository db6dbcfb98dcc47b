/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/layernorm.h"
#include "tests/kernels/layer_test.h"

struct shape {
        size_t rows, channels;
};
static const struct shape shapes[] = {{3, 13}, {2, 257}, {1, 600}, {4, 1}, {9, 32}, {0, 5}};
enum { MOST = 600 };

/* What the layer is given and gives. */
struct layer {
        struct array x, weight, bias, y, mean, rstd, dy, dx, dweight, dbias;
};

static struct layer layer_new(struct shape s, enum gpu_type type) {
        size_t count = s.rows * s.channels;

        return (struct layer){
                .x = array_random(count, 1, 2.0f, type),
                .weight = array_random(s.channels, 2, 1.0f, type),
                .bias = array_random(s.channels, 3, 1.0f, type),
                .y = array_new(NULL, count, type),
                .mean = array_new(NULL, s.rows, GPU_F32),
                .rstd = array_new(NULL, s.rows, GPU_F32),
                .dy = array_random(count, 4, 1.0f, type),
                .dx = array_new(NULL, count, type),
                .dweight = array_random(s.channels, 5, 1.0f, GPU_F32),
                .dbias = array_random(s.channels, 6, 1.0f, GPU_F32),
        };
}

static void layer_free(struct layer *l) {
        struct array *all[] = {&l->x,    &l->weight, &l->bias, &l->y,       &l->mean,
                               &l->rstd, &l->dy,     &l->dx,   &l->dweight, &l->dbias};

        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
                array_free(all[i]);
}

/* The layer in double. dweight and dbias are added to. */
struct reference {
        struct shape s;
        double in[3 * MOST]; /* x, weight, bias */
        double dy[MOST], y[MOST], dx[MOST], dweight[MOST], dbias[MOST];
};

static void reference_row(struct reference *r, const double *in, size_t row) {
        size_t channels = r->s.channels;
        const double *x = in + row * channels, *dy = r->dy + row * channels;
        const double *weight = in + r->s.rows * channels, *bias = weight + channels;
        double n = (double) channels, mean = 0, variance = 0, sum = 0, dot = 0;

        for (size_t c = 0; c < channels; c++)
                mean += x[c] / n;
        for (size_t c = 0; c < channels; c++)
                variance += (x[c] - mean) * (x[c] - mean) / n;
        double rstd = 1.0 / sqrt(variance + 1e-5);
        for (size_t c = 0; c < channels; c++) {
                double normal = (x[c] - mean) * rstd;
                r->y[row * channels + c] = normal * weight[c] + bias[c];
                r->dweight[c] += dy[c] * normal;
                r->dbias[c] += dy[c];
                sum += dy[c] * weight[c] / n;
                dot += dy[c] * weight[c] * normal / n;
        }
        for (size_t c = 0; c < channels; c++)
                r->dx[row * channels + c] =
                        (dy[c] * weight[c] - sum - (x[c] - mean) * rstd * dot) * rstd;
}

static void reference_run(struct reference *r, const struct layer *l, struct shape s) {
        size_t count = s.rows * s.channels;

        r->s = s;
        gradient_widen(r->in, l->x.value, count);
        gradient_widen(r->in + count, l->weight.value, s.channels);
        gradient_widen(r->in + count + s.channels, l->bias.value, s.channels);
        gradient_widen(r->dy, l->dy.value, count);
        gradient_widen(r->dweight, l->dweight.value, s.channels);
        gradient_widen(r->dbias, l->dbias.value, s.channels);
        for (size_t row = 0; row < s.rows; row++)
                reference_row(r, r->in, row);
}

static double objective(const double *in, void *argument) {
        struct reference *r = argument;
        double sum = 0;

        for (size_t row = 0; row < r->s.rows; row++)
                reference_row(r, in, row);
        for (size_t i = 0; i < r->s.rows * r->s.channels; i++)
                sum += r->y[i] * r->dy[i];
        return sum;
}

/* `before` is what was in dweight and dbias. */
static void check_numerically(struct reference *r, const struct layer *l, const float *before) {
        size_t channels = r->s.channels, count = r->s.rows * channels;
        float analytic[3 * MOST];

        memcpy(analytic, l->dx.value, count * sizeof(float));
        for (size_t c = 0; c < channels; c++) {
                analytic[count + c] = l->dweight.value[c] - before[c];
                analytic[count + channels + c] = l->dbias.value[c] - before[channels + c];
        }
        gradient_check(objective, r->in, analytic, count + 2 * channels, r, "dlayernorm");
}

static void run(struct layer *l, struct shape s, enum gpu_type type) {
        gpu_test_ok(gpu_layernorm_forward(gpu_test_stream(), l->y.device, l->mean.device,
                                          l->rstd.device, l->x.device, l->weight.device,
                                          l->bias.device, s.rows, s.channels, type));
        array_read(&l->y);
        array_read(&l->mean);
        array_read(&l->rstd);
        gpu_test_ok(gpu_layernorm_backward(gpu_test_stream(), l->dx.device, l->dweight.device,
                                           l->dbias.device, l->dy.device, l->x.device,
                                           l->weight.device, l->mean.device, l->rstd.device, s.rows,
                                           s.channels, type));
        array_read(&l->dx);
        array_read(&l->dweight);
        array_read(&l->dbias);
}

/* din may be dout: everything comes out as before, but for what is added. */
static void run_in_place(struct layer *l, struct shape s, enum gpu_type type) {
        struct array dweight = array_random(s.channels, 5, 1.0f, GPU_F32);
        struct array dbias = array_random(s.channels, 6, 1.0f, GPU_F32);

        gpu_test_ok(gpu_layernorm_backward(gpu_test_stream(), l->dy.device, dweight.device,
                                           dbias.device, l->dy.device, l->x.device,
                                           l->weight.device, l->mean.device, l->rstd.device, s.rows,
                                           s.channels, type));
        array_read(&l->dy);
        array_read(&dweight);
        array_read(&dbias);
        array_equals(&l->dy, l->dx.value, "dx in place");
        array_equals(&dweight, l->dweight.value, "dweight in place");
        array_equals(&dbias, l->dbias.value, "dbias in place");
        array_free(&dweight);
        array_free(&dbias);
}

static void check(struct shape s, enum gpu_type type, bool planted) {
        struct layer l = layer_new(s, type);
        static struct reference wanted;
        static float y[MOST], dx[MOST], dweight[MOST], dbias[MOST], mean[MOST], rstd[MOST];
        float before[2 * MOST];

        if (planted) {
                array_plant(&l.x, 7);
                array_plant(&l.dy, 8);
        }
        memcpy(dweight, l.dweight.value, s.channels * sizeof(float));
        memcpy(dbias, l.dbias.value, s.channels * sizeof(float));
        memcpy(before, dweight, s.channels * sizeof(float));
        memcpy(before + s.channels, dbias, s.channels * sizeof(float));
        reference_run(&wanted, &l, s);
        layernorm_forward(y, mean, rstd, l.x.value, l.weight.value, l.bias.value, s.rows,
                          s.channels);
        layernorm_backward(dx, dweight, dbias, l.dy.value, l.x.value, l.weight.value, mean, rstd,
                           s.rows, s.channels);
        run(&l, s, type);
        array_like(&l.y, y, "y");
        array_like(&l.mean, mean, "mean");
        array_like(&l.rstd, rstd, "rstd");
        array_like(&l.dx, dx, "dx");
        array_like(&l.dweight, dweight, "dweight");
        array_like(&l.dbias, dbias, "dbias");
        if (!planted) {
                array_close(&l.y, wanted.y, "y");
                if (s.channels > 1) /* of one channel the gradient is 0 but for rounding */
                        array_close(&l.dx, wanted.dx, "dx");
                array_close(&l.dweight, wanted.dweight, "dweight");
                array_close(&l.dbias, wanted.dbias, "dbias");
        }
        if (!planted && type == GPU_F32 && s.rows == 3)
                check_numerically(&wanted, &l, before);
        run_in_place(&l, s, type);
        layer_free(&l);
}

static void test_layernorm(void **state) {
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
                for (size_t t = 0; t < 3; t++) {
                        check(shapes[s], array_types[t], false);
                        check(shapes[s], array_types[t], true);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_layernorm),
                cmocka_unit_test(layers_same_bits),
        };
        int failed = 0;

        while (layers_next_schedule())
                failed += cmocka_run_group_tests(tests, NULL, NULL);
        return failed;
}
