/* SPDX-License-Identifier: Apache-2.0
 *
 * compute.h - where the arithmetic of training runs, as a table of verbs: on this processor
 * (compute_cpu.c) or on a GPU (cuda/, the plugin cairn-cuda.so). What a verb means is said by the
 * header of its topic in kernels/.
 *
 *     TRY(compute_open("cuda:1", &options, &c, &e));
 *     TRY(c->ops->allocate(c, bytes, &block, &e));             // zeroed, 256-byte aligned
 *     c->ops->upload(c, block, weights, bytes);
 *     c->ops->matmul_forward(c, ...); c->ops->gelu_forward(c, ...);
 *     TRY(c->ops->download(c, losses, block, bytes, &e));      // waits, tells what failed before
 *     c->ops->release(c, block);
 *     c->ops->close(c);
 *
 * Pointers are of the back end's memory: from allocate, or from cairn_alloc of a handle that was
 * opened for the same device; those of host memory say so. `type` is that of activations and of
 * weights in the passes (`void *`); statistics, losses, gradients of weights and everything of the
 * optimizer are float.
 *
 * Verbs without a result only queue: they run in the order of the calls, and the first failure is
 * kept until finish, download, sum, norm_squared or digest, which wait for all before them, tell of
 * it. Each such wait ends within limit_ns. NOMEM: what was queued since the last wait is undone or
 * half done, and less of it may be tried again. Any other failure is the device's (DEVICE, TIMEOUT)
 * and final: is_lost is set, and the process has to end with COMPUTE_EXIT_LOST, freeing nothing.
 *
 * The same calls on the same machine give the same bits. One thread.
 */
#ifndef CAIRN_TRAINER_COMPUTE_H
#define CAIRN_TRAINER_COMPUTE_H

#include "base/status.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/dropout.h"
#include <stdbool.h>

/* Exit status of a process whose device does not answer any more, or for good with errors. `cairn
 * run` starts it again. */
#define COMPUTE_EXIT_LOST 71

struct compute_options {
        int ordinal;            /* of the GPU among the visible ones */
        enum cairn_dtype dtype; /* of the weights: F32, BF16, F16 */
        int threads;            /* cpu: of BLAS */
        bool tf32;              /* cuda: products of F32 in TF32 */
        uint64_t limit_ns;      /* of each wait */
};

struct compute_ops;
struct compute {
        const struct compute_ops *ops;
        enum cairn_dtype type;
        int ordinal;  /* -1: no GPU */
        bool is_host; /* its memory is the host's: it may be read and written in place */
        bool is_lost;
};

typedef int (*compute_visit_fn)(const char *key, const char *value, void *argument);

struct compute_ops {
        uint32_t abi, bytes; /* COMPUTE_ABI, of this struct */
        const char *name;    /* "cpu", "cuda" */

        int (*open)(const struct compute_options *o, struct compute **ret,
                    struct cairn_error *reterr);
        void (*close)(struct compute *c); /* NULL allowed; all memory was released before */
        /* visit("numerics.blas", "...", argument) for all that the bits of a result depend on;
         * stops at the first non-zero result and returns it. */
        int (*describe)(const struct compute *c, compute_visit_fn visit, void *argument);
        /* Where the library is that multiplies; it is loaded for that, and no device is touched. */
        int (*library)(char *ret, size_t bytes, struct cairn_error *reterr);
        void *(*queue)(const struct compute *c); /* the CUstream that all is queued on */
        /* Makes the device the calling thread's, for a library that starts its own. context: c */
        void (*thread_begin)(void *context);

        /* ---- memory ---- */
        int (*allocate)(struct compute *c, size_t bytes, void **ret, struct cairn_error *reterr);
        void (*release)(struct compute *c, void *memory); /* NULL allowed */
        void (*zero)(struct compute *c, void *target, size_t bytes);
        void (*copy)(struct compute *c, void *target, const void *source, size_t bytes);
        /* source is host memory and the caller's again on return. */
        void (*upload)(struct compute *c, void *target, const void *source, size_t bytes);
        int (*download)(struct compute *c, void *host, const void *source, size_t bytes,
                        struct cairn_error *reterr);
        int (*finish)(struct compute *c, struct cairn_error *reterr);
        /* What is known to have failed, without waiting: before an update is said to be whole. */
        int (*check)(struct compute *c, struct cairn_error *reterr);

        /* ---- state and update ---- */
        /* F32 to or from BF16 or F16. */
        void (*cast)(struct compute *c, void *target, enum cairn_dtype to, const void *source,
                     enum cairn_dtype from, size_t count);
        int (*digest)(struct compute *c, uint64_t *ret, const void *data, size_t bytes,
                      struct cairn_error *reterr);
        /* sums (host): one for each `chunk` values; count is a multiple of it. */
        int (*norm_squared)(struct compute *c, double *sums, const float *x, size_t chunk,
                            size_t count, struct cairn_error *reterr);
        /* narrow (NULL: none) receives the weights as narrow_type. */
        void (*adamw)(struct compute *c, float *weights, void *narrow, enum cairn_dtype narrow_type,
                      float *moment1, float *moment2, const float *gradient, size_t count,
                      const struct adamw *a, int64_t t, float gradient_scale);
        void (*ema)(struct compute *c, float *average, const float *weights, size_t count,
                    float decay);

        /* ---- layers ---- */
        void (*embedding_forward)(struct compute *c, void *out, const uint32_t *tokens,
                                  const void *wte, const void *wpe, size_t batch, size_t time,
                                  size_t channels);
        void (*embedding_backward)(struct compute *c, float *dwte, float *dwpe, const void *dout,
                                   const uint32_t *tokens, size_t batch, size_t time,
                                   size_t channels, size_t vocabulary);
        void (*layernorm_forward)(struct compute *c, void *out, float *mean, float *rstd,
                                  const void *in, const void *weight, const void *bias, size_t rows,
                                  size_t channels);
        void (*layernorm_backward)(struct compute *c, void *din, float *dweight, float *dbias,
                                   const void *dout, const void *in, const void *weight,
                                   const float *mean, const float *rstd, size_t rows,
                                   size_t channels);
        /* matmul.h */
        void (*matmul_forward)(struct compute *c, void *out, const void *in, const void *weight,
                               const void *bias, size_t rows, size_t inputs, size_t outputs);
        void (*matmul_backward)(struct compute *c, void *din, float *dweight, float *dbias,
                                const void *dout, const void *in, const void *weight, size_t rows,
                                size_t inputs, size_t outputs);
        size_t (*attention_scratch)(const struct attention *a); /* elements of `type` */
        void (*attention_forward)(struct compute *c, void *out, void *att, const void *qkv,
                                  void *scratch, const struct attention *a);
        /* att is undefined afterwards. */
        void (*attention_backward)(struct compute *c, void *dqkv, const void *dout, const void *qkv,
                                   void *att, void *scratch, const struct attention *a);
        void (*gelu_forward)(struct compute *c, void *out, const void *in, size_t count);
        void (*gelu_backward)(struct compute *c, void *din, const void *dout, const void *in,
                              size_t count);
        void (*dropout_forward)(struct compute *c, void *out, uint8_t *mask, const void *in,
                                size_t samples, size_t elements, const struct dropout_site *site);
        void (*dropout_backward)(struct compute *c, void *din, const void *dout,
                                 const uint8_t *mask, size_t count, float probability);
        void (*cross_entropy_forward)(struct compute *c, float *losses, void *logits,
                                      const uint32_t *targets, size_t rows, size_t classes);
        void (*cross_entropy_backward)(struct compute *c, void *probabilities,
                                       const uint32_t *targets, size_t rows, size_t classes,
                                       float scale);
        void (*rows_add)(struct compute *c, void *out, const void *a, const void *b, size_t count);
        void (*rows_center_running)(struct compute *c, float *running, void *in, float momentum,
                                    size_t rows, size_t channels);
        void (*rows_subtract)(struct compute *c, void *in, const float *offset, size_t rows,
                              size_t channels);
        int (*sum)(struct compute *c, double *ret, const float *x, size_t count,
                   struct cairn_error *reterr);
};
#define COMPUTE_ABI 2
#define COMPUTE_CUDA_SYMBOL "cairn_cuda_compute" /* what cairn-cuda.so exports */

extern const struct compute_ops compute_cpu;

/* device: "cpu", "cuda" (the GPU of this rank on its node) or "cuda:N". API: it is none of these.
 * UNSUPPORTED: this build or machine has it not; the sentence says what to build or install. */
int compute_open(const char *device, const struct compute_options *o, struct compute **ret,
                 struct cairn_error *reterr);
/* The plugin's table alone. UNSUPPORTED. */
int compute_load_cuda(const struct compute_ops **ret, struct cairn_error *reterr);
static inline void compute_close(struct compute *c) {
        if (c)
                c->ops->close(c);
}

#endif
