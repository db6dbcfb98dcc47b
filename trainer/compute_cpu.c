/* SPDX-License-Identifier: Apache-2.0
 *
 * The processor: every verb is the C function of its topic, at once, and nothing fails but memory.
 * Weights of any type are widened before the passes, which compute in F32.
 */
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/digest.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/layernorm.h"
#include "kernels/norm.h"
#include "kernels/rows.h"
#include "trainer/compute.h"
#include "trainer/matmul.h"
#include <gnu/libc-version.h>
#include <stdlib.h>
#include <string.h>

static int cpu_open(const struct compute_options *o, struct compute **ret,
                    struct cairn_error *reterr) {
        struct compute *c = calloc(1, sizeof(*c));

        if (!c)
                return error_set(reterr, CAIRN_ERR_NOMEM, "open device", "cpu",
                                 "no memory is free");
        *c = (struct compute){
                .ops = &compute_cpu, .type = CAIRN_F32, .ordinal = -1, .is_host = true};
        matmul_set_threads(o->threads);
        *ret = c;
        return 0;
}

static void cpu_close(struct compute *c) {
        free(c);
}

static int cpu_describe(const struct compute *c, compute_visit_fn visit, void *argument) {
        const char *const values[][2] = {
                {"numerics.backend", "cpu"},        {"numerics.blas", matmul_library()},
                {"numerics.core", matmul_core()},   {"numerics.libc", gnu_get_libc_version()},
                {"numerics.compiler", __VERSION__},
        };

        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
                int r = visit(values[i][0], values[i][1], argument);
                if (r != 0)
                        return r;
        }
        return 0;
}

static int cpu_library(char *ret, size_t bytes, struct cairn_error *reterr) {
        (void) snprintf(ret, bytes, "%s", matmul_library());
        return 0;
}

static void *cpu_queue(const struct compute *c) {
        return NULL;
}

static void cpu_thread_begin(void *context) {
}

static int cpu_allocate(struct compute *c, size_t bytes, void **ret, struct cairn_error *reterr) {
        void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);

        if (!p)
                return error_set(reterr, CAIRN_ERR_NOMEM, "allocate", "cpu",
                                 "%zu MiB of memory are not free", bytes >> 20);
        memset(p, 0, bytes);
        *ret = p;
        return 0;
}

static void cpu_release(struct compute *c, void *memory) {
        free(memory);
}

static void cpu_zero(struct compute *c, void *target, size_t bytes) {
        memset(target, 0, bytes);
}

static void cpu_copy(struct compute *c, void *target, const void *source, size_t bytes) {
        memcpy(target, source, bytes);
}

static int cpu_download(struct compute *c, void *host, const void *source, size_t bytes,
                        struct cairn_error *reterr) {
        memcpy(host, source, bytes);
        return 0;
}

static int cpu_finish(struct compute *c, struct cairn_error *reterr) {
        return 0;
}

static void cpu_cast(struct compute *c, void *target, enum cairn_dtype to, const void *source,
                     enum cairn_dtype from, size_t count) {
        if (to == CAIRN_BF16)
                cast_f32_to_bf16(target, source, count);
        else if (to == CAIRN_F16)
                cast_f32_to_f16(target, source, count);
        else if (from == CAIRN_BF16)
                cast_bf16_to_f32(target, source, count);
        else
                cast_f16_to_f32(target, source, count);
}

static int cpu_digest(struct compute *c, uint64_t *ret, const void *data, size_t bytes,
                      struct cairn_error *reterr) {
        *ret = digest_bytes(data, bytes);
        return 0;
}

static int cpu_norm_squared(struct compute *c, double *sums, const float *x, size_t chunk,
                            size_t count, struct cairn_error *reterr) {
        for (size_t i = 0; i < count; i += chunk)
                sums[i / chunk] = norm_squared_f32(x + i, chunk);
        return 0;
}

static void cpu_adamw(struct compute *c, float *weights, void *narrow, enum cairn_dtype narrow_type,
                      float *moment1, float *moment2, const float *gradient, size_t count,
                      const struct adamw *a, int64_t t, float gradient_scale) {
        adamw_update(weights, narrow_type == CAIRN_BF16 ? narrow : NULL, moment1, moment2, gradient,
                     count, a, t, gradient_scale);
        if (narrow && narrow_type == CAIRN_F16)
                cast_f32_to_f16(narrow, weights, count);
}

static void cpu_ema(struct compute *c, float *average, const float *weights, size_t count,
                    float decay) {
        ema_update(average, weights, count, decay);
}

static void cpu_embedding_forward(struct compute *c, void *out, const uint32_t *tokens,
                                  const void *wte, const void *wpe, size_t batch, size_t time,
                                  size_t channels) {
        embedding_forward(out, tokens, wte, wpe, batch, time, channels);
}

static void cpu_embedding_backward(struct compute *c, float *dwte, float *dwpe, const void *dout,
                                   const uint32_t *tokens, size_t batch, size_t time,
                                   size_t channels, size_t vocabulary) {
        embedding_backward(dwte, dwpe, dout, tokens, batch, time, channels);
}

static void cpu_layernorm_forward(struct compute *c, void *out, float *mean, float *rstd,
                                  const void *in, const void *weight, const void *bias, size_t rows,
                                  size_t channels) {
        layernorm_forward(out, mean, rstd, in, weight, bias, rows, channels);
}

static void cpu_layernorm_backward(struct compute *c, void *din, float *dweight, float *dbias,
                                   const void *dout, const void *in, const void *weight,
                                   const float *mean, const float *rstd, size_t rows,
                                   size_t channels) {
        layernorm_backward(din, dweight, dbias, dout, in, weight, mean, rstd, rows, channels);
}

static void cpu_matmul_forward(struct compute *c, void *out, const void *in, const void *weight,
                               const void *bias, size_t rows, size_t inputs, size_t outputs) {
        matmul_forward(out, in, weight, bias, rows, inputs, outputs);
}

static void cpu_matmul_backward(struct compute *c, void *din, float *dweight, float *dbias,
                                const void *dout, const void *in, const void *weight, size_t rows,
                                size_t inputs, size_t outputs) {
        matmul_backward(din, dweight, dbias, dout, in, weight, rows, inputs, outputs);
}

static void cpu_attention_forward(struct compute *c, void *out, void *att, const void *qkv,
                                  void *scratch, const struct attention *a) {
        attention_forward(out, att, qkv, scratch, a);
}

static void cpu_attention_backward(struct compute *c, void *dqkv, const void *dout, const void *qkv,
                                   void *att, void *scratch, const struct attention *a) {
        attention_backward(dqkv, dout, qkv, att, scratch, a);
}

static void cpu_gelu_forward(struct compute *c, void *out, const void *in, size_t count) {
        gelu_forward(out, in, count);
}

static void cpu_gelu_backward(struct compute *c, void *din, const void *dout, const void *in,
                              size_t count) {
        gelu_backward(din, dout, in, count);
}

static void cpu_dropout_forward(struct compute *c, void *out, uint8_t *mask, const void *in,
                                size_t samples, size_t elements, const struct dropout_site *site) {
        dropout_forward(out, mask, in, samples, elements, site);
}

static void cpu_dropout_backward(struct compute *c, void *din, const void *dout,
                                 const uint8_t *mask, size_t count, float probability) {
        dropout_backward(din, dout, mask, count, probability);
}

static void cpu_cross_entropy_forward(struct compute *c, float *losses, void *logits,
                                      const uint32_t *targets, size_t rows, size_t classes) {
        cross_entropy_forward(losses, logits, targets, rows, classes);
}

static void cpu_cross_entropy_backward(struct compute *c, void *probabilities,
                                       const uint32_t *targets, size_t rows, size_t classes,
                                       float scale) {
        cross_entropy_backward(probabilities, targets, rows, classes, scale);
}

static void cpu_rows_add(struct compute *c, void *out, const void *a, const void *b, size_t count) {
        rows_add(out, a, b, count);
}

static void cpu_rows_center_running(struct compute *c, float *running, void *in, float momentum,
                                    size_t rows, size_t channels) {
        rows_center_running(running, in, momentum, rows, channels);
}

static void cpu_rows_subtract(struct compute *c, void *in, const float *offset, size_t rows,
                              size_t channels) {
        rows_subtract(in, offset, rows, channels);
}

static int cpu_sum(struct compute *c, double *ret, const float *x, size_t count,
                   struct cairn_error *reterr) {
        double sum = 0.0;

        for (size_t i = 0; i < count; i++)
                sum += (double) x[i];
        *ret = sum;
        return 0;
}

const struct compute_ops compute_cpu = {
        .abi = COMPUTE_ABI,
        .bytes = sizeof(compute_cpu),
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .describe = cpu_describe,
        .library = cpu_library,
        .queue = cpu_queue,
        .thread_begin = cpu_thread_begin,
        .allocate = cpu_allocate,
        .release = cpu_release,
        .zero = cpu_zero,
        .copy = cpu_copy,
        .upload = cpu_copy,
        .download = cpu_download,
        .finish = cpu_finish,
        .check = cpu_finish,
        .cast = cpu_cast,
        .digest = cpu_digest,
        .norm_squared = cpu_norm_squared,
        .adamw = cpu_adamw,
        .ema = cpu_ema,
        .embedding_forward = cpu_embedding_forward,
        .embedding_backward = cpu_embedding_backward,
        .layernorm_forward = cpu_layernorm_forward,
        .layernorm_backward = cpu_layernorm_backward,
        .matmul_forward = cpu_matmul_forward,
        .matmul_backward = cpu_matmul_backward,
        .attention_scratch = attention_scratch,
        .attention_forward = cpu_attention_forward,
        .attention_backward = cpu_attention_backward,
        .gelu_forward = cpu_gelu_forward,
        .gelu_backward = cpu_gelu_backward,
        .dropout_forward = cpu_dropout_forward,
        .dropout_backward = cpu_dropout_backward,
        .cross_entropy_forward = cpu_cross_entropy_forward,
        .cross_entropy_backward = cpu_cross_entropy_backward,
        .rows_add = cpu_rows_add,
        .rows_center_running = cpu_rows_center_running,
        .rows_subtract = cpu_rows_subtract,
        .sum = cpu_sum,
};
