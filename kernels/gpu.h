/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu.h - this room's arithmetic on a GPU: launchers with C linkage of the kernels in the .cu file
 * of the same topic, whose C reference lies beside it (adamw.h, adamw.c, adamw.cu). They are built
 * into cairn-cuda.so by nvcc, and for the tests as C++ on the simulator (docs/DEVICE-CODE.md).
 *
 *     int e = gpu_adamw(stream, ...);          // a cudaError_t; 0: queued
 *
 * A launcher queues on `stream` (a cudaStream_t) and returns; it never waits and allocates nothing.
 * All pointers are of device memory unless said otherwise and stay the caller's; they belong to the
 * launch until the stream has passed it. Structs are given by value or copied before the return.
 * Counts may be odd or 0 (nothing is launched). Threads: any, like the runtime's.
 *
 * `type` is that of activations and weights; statistics, losses, gradients of weights and sums are
 * FP32 (or double where said). No float atomics and a fixed order of every reduction: the same
 * launch gives the same bits each time. Bit for bit the C reference: cast, gather, scatter, digest,
 * nonfinite, norm, AdamW, EMA, dropout masks, and the whole-number results. The layers are within
 * 1e-5 (FP32) or 1e-2 (BF16, FP16) relative L2 error of a double-precision reference.
 */
#ifndef CAIRN_KERNELS_GPU_H
#define CAIRN_KERNELS_GPU_H

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gpu_type { GPU_F32 = 0, GPU_BF16 = 1, GPU_F16 = 2 };

/* ---- state: what a checkpoint moves ---- */

/* What a cast lost, added to what is there: the caller zeroes it. Errors of finite values only. */
struct gpu_cast_report {
        uint64_t overflows;  /* finite values that became infinite */
        uint64_t underflows; /* values other than 0 that became 0 */
        uint64_t inexact;
        double largest_error; /* |stored - value| */
};
/* Round to nearest even, NaN stays a quiet NaN, as format/dtype.h has it. report may be NULL. */
int gpu_cast(void *stream, void *target, enum gpu_type to, const void *source, enum gpu_type from,
             size_t count, struct gpu_cast_report *report);

struct gpu_piece {
        void *address;
        uint64_t offset, bytes; /* in the gathered image */
};
/* Many small tensors to one image and back. `pieces` is device memory, ordered by offset. */
int gpu_gather(void *stream, void *image, const struct gpu_piece *pieces, size_t count);
int gpu_scatter(void *stream, const void *image, const struct gpu_piece *pieces, size_t count);

/* digest.h's digest of `bytes` to *digest. */
int gpu_digest(void *stream, uint64_t *digest, const void *data, size_t bytes);
/* Adds how many of x are infinite or NaN. */
int gpu_nonfinite(void *stream, uint64_t *sum, const void *x, enum gpu_type type, size_t count);

/* ---- the update ---- */

/* sums[i] = norm_squared_f32 of the i-th `chunk` values (the last may be shorter). */
int gpu_norm_squared(void *stream, double *sums, const float *x, size_t chunk, size_t count);
/* adamw_update; narrow (NULL: none) receives the weights as narrow_type. t: after the increment. */
int gpu_adamw(void *stream, float *weights, void *narrow, enum gpu_type narrow_type, float *moment1,
              float *moment2, const float *gradient, size_t count, struct adamw a, int64_t t,
              float gradient_scale);
int gpu_ema(void *stream, float *average, const float *weights, size_t count, float decay);

/* ---- the layers; shapes and meaning as in the header of the topic ---- */

int gpu_embedding_forward(void *stream, void *out, const uint32_t *tokens, const void *wte,
                          const void *wpe, size_t batch, size_t time, size_t channels,
                          enum gpu_type type);
/* Adds to dwte (V, C) and dwpe in the order of the tokens. */
int gpu_embedding_backward(void *stream, float *dwte, float *dwpe, const void *dout,
                           const uint32_t *tokens, size_t batch, size_t time, size_t channels,
                           size_t vocabulary, enum gpu_type type);

int gpu_layernorm_forward(void *stream, void *out, float *mean, float *rstd, const void *in,
                          const void *weight, const void *bias, size_t rows, size_t channels,
                          enum gpu_type type);
/* din may be dout. Adds to dweight and dbias. */
int gpu_layernorm_backward(void *stream, void *din, float *dweight, float *dbias, const void *dout,
                           const void *in, const void *weight, const float *mean, const float *rstd,
                           size_t rows, size_t channels, enum gpu_type type);

/* att (B, NH, T, T) in `type`; no scratch. A head has at most 128 channels (else
 * cudaErrorInvalidValue). */
int gpu_attention_forward(void *stream, void *out, void *att, const void *qkv, struct attention a,
                          enum gpu_type type);
/* Overwrites att with its gradient on the way to dqkv. */
int gpu_attention_backward(void *stream, void *dqkv, const void *dout, const void *qkv, void *att,
                           struct attention a, enum gpu_type type);

int gpu_gelu_forward(void *stream, void *out, const void *in, size_t count, enum gpu_type type);
int gpu_gelu_backward(void *stream, void *din, const void *dout, const void *in, size_t count,
                      enum gpu_type type);

int gpu_dropout_forward(void *stream, void *out, uint8_t *mask, const void *in, size_t samples,
                        size_t elements, struct dropout_site site, enum gpu_type type);
int gpu_dropout_backward(void *stream, void *din, const void *dout, const uint8_t *mask,
                         size_t count, float probability, enum gpu_type type);

/* In place: logits become probabilities, these become gradients. */
int gpu_cross_entropy_forward(void *stream, float *losses, void *logits, const uint32_t *targets,
                              size_t rows, size_t classes, enum gpu_type type);
int gpu_cross_entropy_backward(void *stream, void *probabilities, const uint32_t *targets,
                               size_t rows, size_t classes, float scale, enum gpu_type type);

/* rows.h */
int gpu_rows_fill(void *stream, void *out, const void *bias, size_t rows, size_t channels,
                  enum gpu_type type);
int gpu_rows_add_bias(void *stream, void *out, const void *bias, size_t rows, size_t channels,
                      enum gpu_type type);
int gpu_rows_add_bias_gradient(void *stream, float *dbias, const void *dout, size_t rows,
                               size_t channels, enum gpu_type type);
int gpu_rows_add(void *stream, void *out, const void *a, const void *b, size_t count,
                 enum gpu_type type);
int gpu_rows_center_running(void *stream, float *running, void *in, float momentum, size_t rows,
                            size_t channels, enum gpu_type type);
int gpu_rows_subtract(void *stream, void *in, const float *offset, size_t rows, size_t channels,
                      enum gpu_type type);
/* *sum = sum_f32 of norm.h. */
int gpu_sum(void *stream, double *sum, const float *x, size_t count);

#ifdef __cplusplus
}
#endif

#endif
