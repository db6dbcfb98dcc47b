/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"
#include "kernels/cast.h"
#include "tests/kernels/gpu_test.h"

enum { LARGE = 1000003 };
static const struct adamw settings = {
        .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.1, .learning_rate = 3e-4};

struct tensors {
        float *w, *m, *v, *g;
};

static struct tensors filled(size_t count, bool special) {
        struct tensors t = {malloc(count * 4 + 1), malloc(count * 4 + 1), malloc(count * 4 + 1),
                            malloc(count * 4 + 1)};
        gpu_test_fill(t.w, count, 1, special);
        gpu_test_fill(t.m, count, 2, special);
        gpu_test_fill(t.v, count, 3, special);
        gpu_test_fill(t.g, count, 4, special);
        /* A second moment is not negative; a few are here, for what becomes NaN. */
        for (size_t i = 0; i < count; i++)
                if (!special || i % 7 != 0)
                        t.v[i] = t.v[i] < 0.0f ? -t.v[i] : t.v[i];
        return t;
}

static void clear(struct tensors *t) {
        free(t->w);
        free(t->m);
        free(t->v);
        free(t->g);
}

static void same_narrow(const void *device, enum gpu_type type, const float *w, size_t count) {
        uint16_t *got = malloc(count * sizeof *got + 1), *wanted = malloc(count * sizeof *got + 1);
        if (type == GPU_BF16)
                cast_f32_to_bf16(wanted, w, count);
        else
                cast_f32_to_f16(wanted, w, count);
        gpu_test_fetch(got, device, count * sizeof *got);
        /* Which NaN an operation makes differs between processors. */
        for (size_t i = 0; i < count; i++)
                if (got[i] != wanted[i] && w[i] == w[i])
                        fail_msg("narrow[%zu]: %04x, %04x is right", i, got[i], wanted[i]);
        free(got);
        free(wanted);
}

/* Two updates, so that the second begins with what the first left. */
static void check(size_t count, bool special, enum gpu_type type, int64_t step, float scale) {
        struct tensors t = filled(count, special);
        float *w = gpu_test_copy(t.w, count * 4), *m = gpu_test_copy(t.m, count * 4);
        float *v = gpu_test_copy(t.v, count * 4), *g = gpu_test_copy(t.g, count * 4);
        void *narrow = type == GPU_F32 ? NULL : gpu_test_new(count * 2);
        float *got = malloc(count * 4 + 1);

        for (int i = 0; i < 2; i++) {
                adamw_update(t.w, NULL, t.m, t.v, t.g, count, &settings, step + i, scale);
                gpu_test_ok(gpu_adamw(gpu_test_stream(), w, narrow, type, m, v, g, count, settings,
                                      step + i, scale));
        }
        gpu_test_fetch(got, w, count * 4);
        gpu_test_same_floats(got, t.w, count, "weights");
        gpu_test_fetch(got, m, count * 4);
        gpu_test_same_floats(got, t.m, count, "moment1");
        gpu_test_fetch(got, v, count * 4);
        gpu_test_same_floats(got, t.v, count, "moment2");
        if (narrow)
                same_narrow(narrow, type, t.w, count);
        gpu_test_free(w);
        gpu_test_free(m);
        gpu_test_free(v);
        gpu_test_free(g);
        gpu_test_free(narrow);
        free(got);
        clear(&t);
}

static void test_counts(void **state) {
        for (const size_t *count = gpu_test_counts(); *count != SIZE_MAX; count++) {
                check(*count, false, GPU_BF16, 1, 1.0f);
                check(*count, true, GPU_F16, 1000, 0.125f);
                check(*count, true, GPU_F32, 16777217, 1.0f);
        }
}

/* The step is an integer: those that FP16, BF16 and FP32 cannot hold are others than their
 * neighbours. */
static void test_steps(void **state) {
        static const int64_t steps[] = {1, 2, 257, 2049, 65505, 16777215, 16777216, 1LL << 40};
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
                check(1000, false, GPU_BF16, steps[i], 1.0f / 65536.0f);
}

static void test_large(void **state) {
        check(LARGE, true, GPU_BF16, 10, 1.0f);
}

static void test_ema(void **state) {
        float average[9999], weights[9999], got[9999];
        for (const size_t *count = gpu_test_counts(); *count != SIZE_MAX; count++) {
                size_t bytes = *count * sizeof *got;
                gpu_test_fill(average, *count, 5, true);
                gpu_test_fill(weights, *count, 6, true);
                float *a = gpu_test_copy(average, bytes), *w = gpu_test_copy(weights, bytes);
                gpu_test_ok(gpu_ema(gpu_test_stream(), a, w, *count, 0.999f));
                gpu_test_fetch(got, a, bytes);
                ema_update(average, weights, *count, 0.999f);
                gpu_test_same_floats(got, average, *count, "average");
                gpu_test_free(a);
                gpu_test_free(w);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_counts),
                cmocka_unit_test(test_steps),
                cmocka_unit_test(test_large),
                cmocka_unit_test(test_ema),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
