/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs of state, update and layers: launches of kernels/gpu.h, products by cuBLAS; and the
 * table, which is all that the plugin exports.
 */
#include "trainer/cuda/cuda.h"

/* ---- state and update ---- */

static void cuda_cast(struct compute *c, void *target, enum cairn_dtype to, const void *source,
                      enum cairn_dtype from, size_t count) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_cast(g->stream, target, cuda_type_of(to), source, cuda_type_of(from), count,
                           NULL),
                  "cast");
}

/* A reduction's results come back in the order in which they were queued. */
static int take_results(struct cuda *g, void *ret, size_t bytes, struct cairn_error *reterr) {
        return cuda_download(&g->base, ret, g->results, bytes, reterr);
}

static int cuda_digest(struct compute *c, uint64_t *ret, const void *data, size_t bytes,
                       struct cairn_error *reterr) {
        struct cuda *g = cuda_of(c);

        TRY(cuda_make_results(g, sizeof(*ret), reterr));
        cuda_keep(g, gpu_digest(g->stream, g->results, data, bytes), "digest");
        return take_results(g, ret, sizeof(*ret), reterr);
}

static int cuda_norm_squared(struct compute *c, double *sums, const float *x, size_t chunk,
                             size_t count, struct cairn_error *reterr) {
        struct cuda *g = cuda_of(c);
        size_t bytes = count / chunk * sizeof(*sums);

        TRY(cuda_make_results(g, bytes, reterr));
        cuda_keep(g, gpu_norm_squared(g->stream, g->results, x, chunk, count), "norm_squared");
        return take_results(g, sums, bytes, reterr);
}

static int cuda_sum(struct compute *c, double *ret, const float *x, size_t count,
                    struct cairn_error *reterr) {
        struct cuda *g = cuda_of(c);

        TRY(cuda_make_results(g, sizeof(*ret), reterr));
        cuda_keep(g, gpu_sum(g->stream, g->results, x, count), "sum");
        return take_results(g, ret, sizeof(*ret), reterr);
}

static void cuda_adamw(struct compute *c, float *weights, void *narrow,
                       enum cairn_dtype narrow_type, float *moment1, float *moment2,
                       const float *gradient, size_t count, const struct adamw *a, int64_t t,
                       float gradient_scale) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_adamw(g->stream, weights, narrow, cuda_type_of(narrow_type), moment1, moment2,
                            gradient, count, *a, t, gradient_scale),
                  "adamw");
}

static void cuda_ema(struct compute *c, float *average, const float *weights, size_t count,
                     float decay) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_ema(g->stream, average, weights, count, decay), "ema");
}

/* ---- layers ---- */

static void cuda_embedding_forward(struct compute *c, void *out, const uint32_t *tokens,
                                   const void *wte, const void *wpe, size_t batch, size_t time,
                                   size_t channels) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_embedding_forward(g->stream, out, tokens, wte, wpe, batch, time, channels,
                                        g->type),
                  "embedding_forward");
}

static void cuda_embedding_backward(struct compute *c, float *dwte, float *dwpe, const void *dout,
                                    const uint32_t *tokens, size_t batch, size_t time,
                                    size_t channels, size_t vocabulary) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_embedding_backward(g->stream, dwte, dwpe, dout, tokens, batch, time, channels,
                                         vocabulary, g->type),
                  "embedding_backward");
}

static void cuda_layernorm_forward(struct compute *c, void *out, float *mean, float *rstd,
                                   const void *in, const void *weight, const void *bias,
                                   size_t rows, size_t channels) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_layernorm_forward(g->stream, out, mean, rstd, in, weight, bias, rows,
                                        channels, g->type),
                  "layernorm_forward");
}

static void cuda_layernorm_backward(struct compute *c, void *din, float *dweight, float *dbias,
                                    const void *dout, const void *in, const void *weight,
                                    const float *mean, const float *rstd, size_t rows,
                                    size_t channels) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_layernorm_backward(g->stream, din, dweight, dbias, dout, in, weight, mean,
                                         rstd, rows, channels, g->type),
                  "layernorm_backward");
}

/* Row by row, what cuBLAS reads column by column is the transposed matrix: out^T = weight in^T. */
static void cuda_matmul_forward(struct compute *c, void *out, const void *in, const void *weight,
                                const void *bias, size_t rows, size_t inputs, size_t outputs) {
        struct cuda *g = cuda_of(c);
        struct blas_product p = {.m = (int) outputs,
                                 .n = (int) rows,
                                 .k = (int) inputs,
                                 .op_a = CUBLAS_OP_T,
                                 .op_b = CUBLAS_OP_N,
                                 .a = weight,
                                 .a_columns_apart = (int) inputs,
                                 .b = in,
                                 .b_columns_apart = (int) inputs,
                                 .type = g->blas_type,
                                 .target = out,
                                 .target_type = g->blas_type};

        cuda_keep_blas(g, blas_multiply(&g->blas, &p), "matmul_forward");
        if (bias)
                cuda_keep(g, gpu_rows_add_bias(g->stream, out, bias, rows, outputs, g->type),
                          "rows_add_bias");
}

static void cuda_matmul_backward(struct compute *c, void *din, float *dweight, float *dbias,
                                 const void *dout, const void *in, const void *weight, size_t rows,
                                 size_t inputs, size_t outputs) {
        struct cuda *g = cuda_of(c);
        /* din^T = weight^T dout^T; dweight^T += in^T dout */
        struct blas_product to_input = {.m = (int) inputs,
                                        .n = (int) rows,
                                        .k = (int) outputs,
                                        .op_a = CUBLAS_OP_N,
                                        .op_b = CUBLAS_OP_N,
                                        .a = weight,
                                        .a_columns_apart = (int) inputs,
                                        .b = dout,
                                        .b_columns_apart = (int) outputs,
                                        .type = g->blas_type,
                                        .target = din,
                                        .target_type = g->blas_type};
        struct blas_product to_weight = {.m = (int) inputs,
                                         .n = (int) outputs,
                                         .k = (int) rows,
                                         .op_a = CUBLAS_OP_N,
                                         .op_b = CUBLAS_OP_T,
                                         .a = in,
                                         .a_columns_apart = (int) inputs,
                                         .b = dout,
                                         .b_columns_apart = (int) outputs,
                                         .type = g->blas_type,
                                         .target = dweight,
                                         .target_type = CUDA_R_32F,
                                         .beta = 1.0f};

        cuda_keep_blas(g, blas_multiply(&g->blas, &to_input), "matmul_backward");
        cuda_keep_blas(g, blas_multiply(&g->blas, &to_weight), "matmul_backward");
        if (dbias)
                cuda_keep(
                        g,
                        gpu_rows_add_bias_gradient(g->stream, dbias, dout, rows, outputs, g->type),
                        "rows_add_bias_gradient");
}

static size_t no_scratch(const struct attention *a) {
        return 0;
}

static void cuda_attention_forward(struct compute *c, void *out, void *att, const void *qkv,
                                   void *scratch, const struct attention *a) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_attention_forward(g->stream, out, att, qkv, *a, g->type),
                  "attention_forward");
}

static void cuda_attention_backward(struct compute *c, void *dqkv, const void *dout,
                                    const void *qkv, void *att, void *scratch,
                                    const struct attention *a) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_attention_backward(g->stream, dqkv, dout, qkv, att, *a, g->type),
                  "attention_backward");
}

static void cuda_gelu_forward(struct compute *c, void *out, const void *in, size_t count) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_gelu_forward(g->stream, out, in, count, g->type), "gelu_forward");
}

static void cuda_gelu_backward(struct compute *c, void *din, const void *dout, const void *in,
                               size_t count) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_gelu_backward(g->stream, din, dout, in, count, g->type), "gelu_backward");
}

static void cuda_dropout_forward(struct compute *c, void *out, uint8_t *mask, const void *in,
                                 size_t samples, size_t elements, const struct dropout_site *site) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_dropout_forward(g->stream, out, mask, in, samples, elements, *site, g->type),
                  "dropout_forward");
}

static void cuda_dropout_backward(struct compute *c, void *din, const void *dout,
                                  const uint8_t *mask, size_t count, float probability) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_dropout_backward(g->stream, din, dout, mask, count, probability, g->type),
                  "dropout_backward");
}

static void cuda_cross_entropy_forward(struct compute *c, float *losses, void *logits,
                                       const uint32_t *targets, size_t rows, size_t classes) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_cross_entropy_forward(g->stream, losses, logits, targets, rows, classes,
                                            g->type),
                  "cross_entropy_forward");
}

static void cuda_cross_entropy_backward(struct compute *c, void *probabilities,
                                        const uint32_t *targets, size_t rows, size_t classes,
                                        float scale) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g,
                  gpu_cross_entropy_backward(g->stream, probabilities, targets, rows, classes,
                                             scale, g->type),
                  "cross_entropy_backward");
}

static void cuda_rows_add(struct compute *c, void *out, const void *a, const void *b,
                          size_t count) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_rows_add(g->stream, out, a, b, count, g->type), "rows_add");
}

static void cuda_rows_center_running(struct compute *c, float *running, void *in, float momentum,
                                     size_t rows, size_t channels) {
        struct cuda *g = cuda_of(c);

        cuda_keep(
                g,
                gpu_rows_center_running(g->stream, running, in, momentum, rows, channels, g->type),
                "rows_center_running");
}

static void cuda_rows_subtract(struct compute *c, void *in, const float *offset, size_t rows,
                               size_t channels) {
        struct cuda *g = cuda_of(c);

        cuda_keep(g, gpu_rows_subtract(g->stream, in, offset, rows, channels, g->type),
                  "rows_subtract");
}

const struct compute_ops cairn_cuda_compute = {
        .abi = COMPUTE_ABI,
        .bytes = sizeof(cairn_cuda_compute),
        .name = "cuda",
        .open = cuda_open,
        .close = cuda_close,
        .describe = cuda_describe,
        .library = blas_find,
        .queue = cuda_queue,
        .thread_begin = cuda_thread_begin,
        .allocate = cuda_allocate,
        .release = cuda_release,
        .zero = cuda_zero,
        .copy = cuda_copy,
        .upload = cuda_upload,
        .download = cuda_download,
        .finish = cuda_finish,
        .check = cuda_check,
        .cast = cuda_cast,
        .digest = cuda_digest,
        .norm_squared = cuda_norm_squared,
        .adamw = cuda_adamw,
        .ema = cuda_ema,
        .embedding_forward = cuda_embedding_forward,
        .embedding_backward = cuda_embedding_backward,
        .layernorm_forward = cuda_layernorm_forward,
        .layernorm_backward = cuda_layernorm_backward,
        .matmul_forward = cuda_matmul_forward,
        .matmul_backward = cuda_matmul_backward,
        .attention_scratch = no_scratch,
        .attention_forward = cuda_attention_forward,
        .attention_backward = cuda_attention_backward,
        .gelu_forward = cuda_gelu_forward,
        .gelu_backward = cuda_gelu_backward,
        .dropout_forward = cuda_dropout_forward,
        .dropout_backward = cuda_dropout_backward,
        .cross_entropy_forward = cuda_cross_entropy_forward,
        .cross_entropy_backward = cuda_cross_entropy_backward,
        .rows_add = cuda_rows_add,
        .rows_center_running = cuda_rows_center_running,
        .rows_subtract = cuda_rows_subtract,
        .sum = cuda_sum,
};
