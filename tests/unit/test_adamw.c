/* SPDX-License-Identifier: Apache-2.0 */
#include "format/dtype.h"
#include "kernels/adamw.h"
#include "kernels/cast.h"
#include "tests/unit/gradient.h"

enum { N = 37 };
static const struct adamw settings = {
        .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1, .learning_rate = 0.01};

static void test_bias_correction(void **state) {
        static const int64_t steps[] = {1, 2, 3, 10, 1000, 2047, 2048, 2049, 65505, 16777217};

        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
                double wanted = 1.0 - pow(0.999, (double) steps[i]);
                assert_true(fabs(adamw_bias_correction(0.999, steps[i]) - wanted) < 1e-12);
        }
        /* 2048 and 2049 are one number in FP16: here they are two. */
        assert_true(adamw_bias_correction(0.999, 2048) < adamw_bias_correction(0.999, 2049));
        assert_true(adamw_bias_correction(0.999, 0) == 0.0);
        assert_true(adamw_bias_correction(0.999, INT64_MAX) == 1.0);
}

static void test_against_double(void **state) {
        float w[N], m[N] = {0}, v[N] = {0}, g[N];
        double W[N], M[N] = {0}, V[N] = {0};
        uint16_t bf16[N];

        gradient_fill(w, N, 1);
        gradient_widen(W, w, N);
        for (int64_t t = 1; t <= 50; t++) {
                gradient_fill(g, N, (uint32_t) (10 + t));
                adamw_update(w, bf16, m, v, g, N, &settings, t, 0.5f);
                for (size_t i = 0; i < N; i++) {
                        double G = 0.5 * (double) g[i];
                        M[i] = 0.9 * M[i] + 0.1 * G;
                        V[i] = 0.99 * V[i] + 0.01 * G * G;
                        double mhat = M[i] / (1 - pow(0.9, (double) t));
                        double vhat = V[i] / (1 - pow(0.99, (double) t));
                        W[i] -= 0.01 * (mhat / (sqrt(vhat) + 1e-8) + 0.1 * W[i]);
                }
        }
        for (size_t i = 0; i < N; i++) {
                gradient_close((double) w[i], W[i], 1e-6, "weight", i);
                gradient_close((double) m[i], M[i], 1e-6, "moment1", i);
                gradient_close((double) v[i], V[i], 1e-6, "moment2", i);
                assert_int_equal(bf16[i], cast_bf16_of_f32(w[i]));
        }
}

/* Decay is decoupled: without a gradient the weights shrink, the moments stay zero. */
static void test_no_gradient(void **state) {
        float w = 1.0f, m = 0.0f, v = 0.0f, g = 0.0f;

        adamw_update(&w, NULL, &m, &v, &g, 1, &settings, 1, 1.0f);
        assert_true(w == 1.0f - (float) (0.01 * 0.1) && m == 0.0f && v == 0.0f);
}

/* Moments of 3,000 steps with g = 1e-4, the first one through FP16: the next update is what it
 * would have been, with that gradient and with none. The second one would not survive, and may not.
 */
static void resume_20_first_update_after_narrow_moments(void **state) {
        const struct adamw a = {
                .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .learning_rate = 1e-3};
        float w = 0.0f, m = 0.0f, v = 0.0f, stored;
        uint16_t narrow;
        struct conversion_result result = {0};

        for (int64_t t = 1; t <= 3000; t++)
                adamw_update(&w, NULL, &m, &v, &(float){1e-4f}, 1, &a, t, 1.0f);
        assert_int_equal(dtype_convert(&narrow, CAIRN_F16, &m, CAIRN_F32, 1, &result, NULL), 0);
        assert_int_equal(dtype_convert(&stored, CAIRN_F32, &narrow, CAIRN_F16, 1, NULL, NULL), 0);
        assert_true(stored != m && result.overflow_count == 0 && result.underflow_count == 0);
        for (int i = 0; i < 2; i++) {
                float g = i ? 0.0f : 1e-4f, exact[] = {w, m, v}, restored[] = {w, stored, v};
                adamw_update(&exact[0], NULL, &exact[1], &exact[2], &g, 1, &a, 3001, 1.0f);
                adamw_update(&restored[0], NULL, &restored[1], &restored[2], &g, 1, &a, 3001, 1.0f);
                double ratio = (double) (restored[0] - w) / (double) (exact[0] - w);
                assert_true(fabs(ratio - 1.0) <= 0.01);
        }
        assert_int_equal(dtype_convert(&narrow, CAIRN_F16, &v, CAIRN_F32, 1, &result, NULL), 0);
        assert_int_equal(result.underflow_count, 1);
        assert_true(dtype_check_stored(CAIRN_MOMENT1, CAIRN_F32, CAIRN_F16, NULL) == 0);
        assert_true(dtype_check_stored(CAIRN_MOMENT2, CAIRN_F32, CAIRN_F16, NULL) < 0);
}

static void test_average(void **state) {
        float average[3] = {0.0f, 1.0f, 4.0f}, w[3] = {1.0f, 1.0f, 0.0f};

        ema_update(average, w, 3, 0.75f);
        assert_true(average[0] == 0.25f && average[1] == 1.0f && average[2] == 3.0f);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bias_correction),
                cmocka_unit_test(test_against_double),
                cmocka_unit_test(test_no_gradient),
                cmocka_unit_test(resume_20_first_update_after_narrow_moments),
                cmocka_unit_test(test_average),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
