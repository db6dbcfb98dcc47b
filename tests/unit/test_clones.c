/* SPDX-License-Identifier: Apache-2.0
 *
 * The copies of the hot loops for wider vectors give the bits of the plain ones: the same sources
 * are compiled here once more without clones and compared with the library's.
 */
#include "tests/unit/gradient.h"

#define CAIRN_KERNELS_CLONES_H
#define CLONES __attribute__((noinline))
#define gelu_forward plain_gelu_forward
#define gelu_backward plain_gelu_backward
#define attention_scratch plain_attention_scratch
#define attention_forward plain_attention_forward
#define attention_backward plain_attention_backward
#define layernorm_forward plain_layernorm_forward
#define layernorm_backward plain_layernorm_backward
#define cross_entropy_forward plain_cross_entropy_forward
#define cross_entropy_backward plain_cross_entropy_backward
#define adamw_bias_correction plain_adamw_bias_correction
#define adamw_update plain_adamw_update
#define ema_update plain_ema_update
#include "kernels/adamw.c"         /* NOLINT(bugprone-suspicious-include) */
#include "kernels/attention.c"     /* NOLINT(bugprone-suspicious-include) */
#include "kernels/cross_entropy.c" /* NOLINT(bugprone-suspicious-include) */
#include "kernels/gelu.c"          /* NOLINT(bugprone-suspicious-include) */
#include "kernels/layernorm.c"     /* NOLINT(bugprone-suspicious-include) */
#undef gelu_forward
#undef gelu_backward
#undef attention_forward
#undef attention_backward
#undef layernorm_forward
#undef layernorm_backward
#undef cross_entropy_forward
#undef adamw_update

void gelu_forward(float *out, const float *in, size_t count);
void gelu_backward(float *din, const float *dout, const float *in, size_t count);
void attention_forward(float *out, float *att, const float *qkv, float *scratch,
                       const struct attention *a);
void attention_backward(float *dqkv, const float *dout, const float *qkv, const float *att,
                        float *scratch, const struct attention *a);
void layernorm_forward(float *out, float *mean, float *rstd, const float *in, const float *weight,
                       const float *bias, size_t rows, size_t channels);
void layernorm_backward(float *din, float *dweight, float *dbias, const float *dout,
                        const float *in, const float *weight, const float *mean, const float *rstd,
                        size_t rows, size_t channels);
void cross_entropy_forward(float *losses, float *logits, const uint32_t *targets, size_t rows,
                           size_t classes);
void adamw_update(float *weights, uint16_t *weights_bf16, float *moment1, float *moment2,
                  const float *gradient, size_t count, const struct adamw *a, int64_t t,
                  float gradient_scale);

enum { N = 4099, ROWS = 31, C = 132, T = 33, W = 24 };
static float in[N], slope[N], ours[N], plain[N], ours2[N], plain2[N], ours3[N], plain3[N];

static void fill(void) {
        gradient_fill(in, N, 1);
        gradient_fill(slope, N, 2);
        for (size_t i = 0; i < N; i++)
                in[i] *= 5.0f;
}

static void test_gelu(void **state) {
        fill();
        gelu_forward(ours, in, N);
        plain_gelu_forward(plain, in, N);
        assert_memory_equal(ours, plain, sizeof(ours));
        gelu_backward(ours, slope, in, N);
        plain_gelu_backward(plain, slope, in, N);
        assert_memory_equal(ours, plain, sizeof(ours));
}

static void test_layernorm(void **state) {
        float mean[2][ROWS], rstd[2][ROWS], gradient[2][2 * C] = {0};

        fill();
        layernorm_forward(ours, mean[0], rstd[0], in, slope, slope + C, ROWS, C);
        plain_layernorm_forward(plain, mean[1], rstd[1], in, slope, slope + C, ROWS, C);
        assert_memory_equal(ours, plain, ROWS * C * sizeof(float));
        assert_memory_equal(mean[0], mean[1], sizeof(mean[0]));
        assert_memory_equal(rstd[0], rstd[1], sizeof(rstd[0]));
        layernorm_backward(ours, gradient[0], gradient[0] + C, slope, in, slope, mean[0], rstd[0],
                           ROWS, C);
        plain_layernorm_backward(plain, gradient[1], gradient[1] + C, slope, in, slope, mean[0],
                                 rstd[0], ROWS, C);
        assert_memory_equal(ours, plain, ROWS * C * sizeof(float));
        assert_memory_equal(gradient[0], gradient[1], sizeof(gradient[0]));
}

static void test_attention(void **state) {
        static const struct attention a = {.batch = 1, .time = T, .channels = W, .heads = 2};
        float *scratch = malloc(plain_attention_scratch(&a) * sizeof(float));

        fill();
        attention_forward(ours, ours2, in, scratch, &a);
        plain_attention_forward(plain, plain2, in, scratch, &a);
        assert_memory_equal(ours, plain, sizeof(ours));
        assert_memory_equal(ours2, plain2, sizeof(ours2));
        attention_backward(ours, slope, in, ours2, scratch, &a);
        plain_attention_backward(plain, slope, in, ours2, scratch, &a);
        assert_memory_equal(ours, plain, sizeof(ours));
        free(scratch);
}

static void test_cross_entropy(void **state) {
        float losses[2][ROWS];
        uint32_t targets[ROWS];

        fill();
        for (uint32_t r = 0; r < ROWS; r++)
                targets[r] = r % C;
        memcpy(ours, in, sizeof(ours));
        memcpy(plain, in, sizeof(plain));
        cross_entropy_forward(losses[0], ours, targets, ROWS, C);
        plain_cross_entropy_forward(losses[1], plain, targets, ROWS, C);
        assert_memory_equal(ours, plain, sizeof(ours));
        assert_memory_equal(losses[0], losses[1], sizeof(losses[0]));
}

static void test_adamw(void **state) {
        static const struct adamw a = {.beta1 = 0.9,
                                       .beta2 = 0.99,
                                       .epsilon = 1e-8,
                                       .weight_decay = 0.1,
                                       .learning_rate = 0.01};
        static uint16_t bf16[2][N];

        fill();
        memcpy(ours, in, sizeof(ours));
        memcpy(plain, in, sizeof(plain));
        for (size_t i = 0; i < N; i++)
                ours2[i] = plain2[i] = ours3[i] = plain3[i] = 0.0f;
        for (int64_t t = 1; t < 20; t++) {
                adamw_update(ours, bf16[0], ours2, ours3, slope, N, &a, t, 0.7f);
                plain_adamw_update(plain, bf16[1], plain2, plain3, slope, N, &a, t, 0.7f);
        }
        assert_memory_equal(ours, plain, sizeof(ours));
        assert_memory_equal(ours2, plain2, sizeof(ours));
        assert_memory_equal(ours3, plain3, sizeof(ours));
        assert_memory_equal(bf16[0], bf16[1], sizeof(bf16[0]));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_gelu),      cmocka_unit_test(test_layernorm),
                cmocka_unit_test(test_attention), cmocka_unit_test(test_cross_entropy),
                cmocka_unit_test(test_adamw),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
