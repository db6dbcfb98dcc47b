/* SPDX-License-Identifier: Apache-2.0
 *
 * blas.h - cuBLAS as a table of functions, from the library that the machine has: what
 * $CAIRN_LIBCUBLAS names, else libcublas.so of this build's CUDA release or the one before, on the
 * loader's path or in /usr/local/cuda. Never unloaded.
 *
 *     TRY(blas_init(&b, stream, tf32, &e));     // after cudaSetDevice
 *     status = blas_multiply(&b, &product);
 *     blas_done(&b);
 *
 * Every product is queued on the stream and gives the same bits each time: one stream, a workspace
 * that never changes, no atomics, and no TF32 unless asked for. One thread.
 */
#ifndef CAIRN_TRAINER_CUDA_BLAS_H
#define CAIRN_TRAINER_CUDA_BLAS_H

#include "base/status.h"
#include <cublas_v2.h>
#include <stdbool.h>

#define BLAS_FUNCTIONS(X)                                                                          \
        X(Create, "cublasCreate_v2", (cublasHandle_t *) )                                          \
        X(Destroy, "cublasDestroy_v2", (cublasHandle_t))                                           \
        X(GetVersion, "cublasGetVersion_v2", (cublasHandle_t, int *) )                             \
        X(SetStream, "cublasSetStream_v2", (cublasHandle_t, cudaStream_t))                         \
        X(SetWorkspace, "cublasSetWorkspace_v2", (cublasHandle_t, void *, size_t))                 \
        X(SetMathMode, "cublasSetMathMode", (cublasHandle_t, cublasMath_t))                        \
        X(GemmEx, "cublasGemmEx",                                                                  \
          (cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,      \
           const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *, \
           cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t))

struct blas {
        cublasHandle_t handle;
        void *workspace;
        int version; /* 130100: 13.1.0 */
#define BLAS_MEMBER(name, symbol, parameters) cublasStatus_t(*name) parameters;
        BLAS_FUNCTIONS(BLAS_MEMBER)
#undef BLAS_MEMBER
};

/* target (m x n) = op(a) (m x k) op(b) (k x n) + beta target, column by column as cuBLAS has it;
 * summed in FP32. */
struct blas_product {
        int m, n, k;
        cublasOperation_t op_a, op_b;
        const void *a, *b;
        int a_columns_apart, b_columns_apart;
        cudaDataType type; /* of a and b */
        void *target;
        cudaDataType target_type;
        float beta;
};

/* The path of that library. UNSUPPORTED. */
int blas_find(char *ret, size_t bytes, struct cairn_error *reterr);
/* UNSUPPORTED: no library, or one that lacks something. NOMEM, DEVICE. */
int blas_init(struct blas *b, cudaStream_t stream, bool tf32, struct cairn_error *reterr);
void blas_done(struct blas *b);
cublasStatus_t blas_multiply(const struct blas *b, const struct blas_product *p);
const char *blas_status_name(cublasStatus_t status);

#endif
