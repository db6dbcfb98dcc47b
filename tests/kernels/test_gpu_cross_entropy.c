/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cross_entropy.h"
#include "tests/kernels/layer_test.h"

struct shape {
        size_t rows, classes;
};
enum { CHECKED_ROWS = 4, CHECKED_CLASSES = 21 }; /* by a numerical gradient, too */
static const struct shape shapes[] = {
        {CHECKED_ROWS, CHECKED_CLASSES}, {3, 300}, {2, 50257}, {9, 1}, {0, 5}};
enum { MOST = 2 * 50257, ROWS_MAX = 9 };

static void reference(double *losses, double *p, double *d, const double *x,
                      const uint32_t *targets, struct shape s, double scale) {
        for (size_t row = 0; row < s.rows; row++) {
                double sum = 0, target = x[row * s.classes + targets[row]];
                for (size_t c = 0; c < s.classes; c++)
                        sum += exp(x[row * s.classes + c] - target);
                losses[row] = log(sum);
                for (size_t c = 0; c < s.classes; c++) {
                        size_t i = row * s.classes + c;
                        p[i] = exp(x[i] - target) / sum;
                        d[i] = (p[i] - (c == targets[row])) * scale;
                }
        }
}

static double wanted_losses[ROWS_MAX], p[MOST], d[MOST], wide[MOST];

static double objective(const double *x, void *argument) {
        struct shape s = {CHECKED_ROWS, CHECKED_CLASSES};
        double sum = 0;

        reference(wanted_losses, p, d, x, argument, s, 0.25);
        for (size_t row = 0; row < CHECKED_ROWS; row++)
                sum += 0.25 * wanted_losses[row];
        return sum;
}

static void check(struct shape s, enum gpu_type type, bool planted) {
        static float like[MOST], like_losses[ROWS_MAX];
        struct array x = array_random(s.rows * s.classes, 1, 5.0f, type);
        struct array losses = array_new(NULL, s.rows, GPU_F32);
        uint32_t targets[ROWS_MAX] = {0};

        for (size_t row = 0; row < s.rows; row++)
                targets[row] = (uint32_t) ((s.classes - 1) * row / s.rows);
        void *device_targets = gpu_test_copy(targets, s.rows * sizeof(*targets));
        if (planted) /* in one row; the others must not notice */
                for (size_t i = 0; i < 3; i++) {
                        static const float odd[] = {1e-41f, -INFINITY, NAN};
                        x.value[(i * 7 + 3) % (s.classes + (s.classes == 0)) * (x.count > 0)] =
                                odd[i];
                }
        array_put(&x);
        memcpy(like, x.value, x.count * sizeof(float));
        gradient_widen(wide, x.value, x.count);
        reference(wanted_losses, p, d, wide, targets, s, 0.25);
        gpu_test_ok(gpu_cross_entropy_forward(gpu_test_stream(), losses.device, x.device,
                                              device_targets, s.rows, s.classes, type));
        array_read(&losses);
        array_read(&x);
        cross_entropy_forward(like_losses, like, targets, s.rows, s.classes);
        array_like(&x, like, "probabilities");
        array_like(&losses, like_losses, "losses");
        if (!planted) {
                array_close(&x, p, "probabilities");
                array_close(&losses, wanted_losses, "losses");
        }
        gpu_test_ok(gpu_cross_entropy_backward(gpu_test_stream(), x.device, device_targets, s.rows,
                                               s.classes, 0.25f, type));
        array_read(&x);
        cross_entropy_backward(like, targets, s.rows, s.classes, 0.25f);
        array_like(&x, like, "dlogits");
        if (!planted)
                array_close(&x, d, "dlogits");
        if (!planted && type == GPU_F32 && s.rows == CHECKED_ROWS)
                gradient_check(objective, wide, x.value, x.count, targets, "dlogits");
        array_free(&x);
        array_free(&losses);
        gpu_test_free(device_targets);
}

static void test_cross_entropy(void **state) {
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
                for (size_t t = 0; t < 3; t++) {
                        check(shapes[s], array_types[t], false);
                        check(shapes[s], array_types[t], true);
                }
}

/* A certain mistake costs its distance; infinite logits make NaN, not a loss of 0. */
static void test_far_logits(void **state) {
        static const float rows[][2] = {
                {500, -500}, {INFINITY, 0}, {-INFINITY, -INFINITY}, {0, -INFINITY}};
        static const uint32_t targets[] = {1, 0, 0, 0};
        enum { N = sizeof(rows) / sizeof(rows[0]) };
        struct array x = array_new(rows[0], 2 * N, GPU_F32), losses = array_new(NULL, N, GPU_F32);
        void *device_targets = gpu_test_copy(targets, sizeof(targets));
        float like[2 * N], like_losses[N];

        memcpy(like, rows, sizeof(like));
        cross_entropy_forward(like_losses, like, targets, N, 2);
        gpu_test_ok(gpu_cross_entropy_forward(gpu_test_stream(), losses.device, x.device,
                                              device_targets, N, 2, GPU_F32));
        array_read(&x);
        array_read(&losses);
        array_like(&x, like, "probabilities");
        array_like(&losses, like_losses, "losses");
        assert_true(fabsf(losses.value[0] - 1000.0f) < 1e-3f);
        array_free(&x);
        array_free(&losses);
        gpu_test_free(device_targets);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_cross_entropy),
                cmocka_unit_test(test_far_logits),
                cmocka_unit_test(layers_same_bits),
        };
        int failed = 0;

        while (layers_next_schedule())
                failed += cmocka_run_group_tests(tests, NULL, NULL);
        return failed;
}
