/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda.h - what the files of the CUDA back end share: one GPU, one stream, and the first failure of
 * what was queued on it. compute.h is the contract; ops.c has the table.
 *
 *     cuda_keep(g, gpu_gelu_forward(g->stream, ...), "gelu_forward");
 *     TRY(cuda_wait(g, reterr));            // all of it is done, or tells why not
 *
 * One thread, whose current device is this one.
 */
#ifndef CAIRN_TRAINER_CUDA_H
#define CAIRN_TRAINER_CUDA_H

#include "kernels/gpu.h"
#include "trainer/compute.h"
#include "trainer/cuda/blas.h"
#include <cuda_runtime_api.h>

/* Page-locked memory that uploads are copied from: used from its begin after each wait. */
enum { CUDA_BOUNCE_BYTES = 8 << 20 };

struct cuda {
        struct compute base;
        enum gpu_type type;
        cudaDataType blas_type;
        cudaStream_t stream;
        cudaEvent_t event;
        uint64_t limit_ns;
        struct blas blas;
        char *bounce;
        size_t bounce_used;
        void *results; /* of reductions, on the device */
        size_t results_bytes;
        struct cairn_error error; /* the first one since the last wait; status 0: none */
        char title[320];          /* "cuda:0 (NVIDIA H200)" */
        char gpu[288], driver[96], runtime[32], library[48]; /* for the fingerprint */
        bool tf32;
};

static inline struct cuda *cuda_of(struct compute *c) {
        return (struct cuda *) c;
}
static inline enum gpu_type cuda_type_of(enum cairn_dtype dtype) {
        return dtype == CAIRN_BF16 ? GPU_BF16 : dtype == CAIRN_F16 ? GPU_F16 : GPU_F32;
}

/* 0 for cudaSuccess. NOMEM, or DEVICE with the runtime's code and words. */
int cuda_error(cudaError_t e, const char *operation, const char *object,
               struct cairn_error *reterr);
/* result: a cudaError_t. Keeps the first failure. */
void cuda_keep(struct cuda *g, int result, const char *operation);
void cuda_keep_blas(struct cuda *g, cublasStatus_t status, const char *operation);
/* Until all that was queued is done, limit_ns at most; a failure is kept. */
void cuda_drain(struct cuda *g);
/* The same, and tells what failed. */
int cuda_wait(struct cuda *g, struct cairn_error *reterr);
/* g->results is at least so large. */
int cuda_make_results(struct cuda *g, size_t bytes, struct cairn_error *reterr);

/* memory.c */
int cuda_allocate(struct compute *c, size_t bytes, void **ret, struct cairn_error *reterr);
void cuda_release(struct compute *c, void *memory);
void cuda_zero(struct compute *c, void *target, size_t bytes);
void cuda_copy(struct compute *c, void *target, const void *source, size_t bytes);
void cuda_upload(struct compute *c, void *target, const void *source, size_t bytes);
int cuda_download(struct compute *c, void *host, const void *source, size_t bytes,
                  struct cairn_error *reterr);
int cuda_finish(struct compute *c, struct cairn_error *reterr);
int cuda_check(struct compute *c, struct cairn_error *reterr);

/* ops.c: the table; COMPUTE_CUDA_SYMBOL */
__attribute__((visibility("default"))) extern const struct compute_ops cairn_cuda_compute;

/* cuda.c */
int cuda_open(const struct compute_options *o, struct compute **ret, struct cairn_error *reterr);
void cuda_close(struct compute *c);
int cuda_describe(const struct compute *c, compute_visit_fn visit, void *argument);
void *cuda_queue(const struct compute *c);
void cuda_thread_begin(void *context);

#endif
