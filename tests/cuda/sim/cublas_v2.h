/* SPDX-License-Identifier: Apache-2.0
 *
 * cublas_v2.h - the calls of cuBLAS that Cairn uses, as a stand-in on the emulated driver's streams
 * (build/tests/cuda/libcublas-emu.so). Found instead of NVIDIA's by -Itests/cuda/sim; the library
 * is opened at run time where the real one would be.
 *
 * Products are sums in float over k = 0, 1, 2, ..., so that the same call gives the same bits each
 * time; alpha and beta are floats of the host. What NVIDIA's library would also take, but Cairn
 * does not use, is CUBLAS_STATUS_NOT_SUPPORTED: other compute types than CUBLAS_COMPUTE_32F and its
 * pedantic form, other element types than FP32, BF16 and FP16. Column-major, as there. A handle
 * belongs to the device that was current when it was made; without a stream of its own (the
 * default one) a product is CUBLAS_STATUS_EXECUTION_FAILED. Threads: one a handle.
 */
#ifndef CAIRN_TESTS_CUBLAS_V2_H
#define CAIRN_TESTS_CUBLAS_V2_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
        CUBLAS_STATUS_SUCCESS = 0,
        CUBLAS_STATUS_NOT_INITIALIZED = 1,
        CUBLAS_STATUS_ALLOC_FAILED = 3,
        CUBLAS_STATUS_INVALID_VALUE = 7,
        CUBLAS_STATUS_ARCH_MISMATCH = 8,
        CUBLAS_STATUS_MAPPING_ERROR = 11,
        CUBLAS_STATUS_EXECUTION_FAILED = 13,
        CUBLAS_STATUS_INTERNAL_ERROR = 14,
        CUBLAS_STATUS_NOT_SUPPORTED = 15,
} cublasStatus_t;

typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 } cublasOperation_t;
typedef enum { CUBLAS_GEMM_DEFAULT = -1 } cublasGemmAlgo_t;
typedef enum {
        CUBLAS_DEFAULT_MATH = 0,
        CUBLAS_PEDANTIC_MATH = 2,
        CUBLAS_TF32_TENSOR_OP_MATH = 3,
        CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16,
} cublasMath_t;
typedef enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69 } cublasComputeType_t;
typedef enum { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType;

typedef struct cublasContext *cublasHandle_t;

#pragma GCC visibility push(default)

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
const char *cublasGetStatusString(cublasStatus_t status);

/* C (m x n) = alpha op(A) (m x k) op(B) (k x n) + beta C */
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int lda, const void *b, cudaDataType b_type,
                            int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int lda, long long stride_a, const void *b,
                                          cudaDataType b_type, int ldb, long long stride_b,
                                          const void *beta, void *c, cudaDataType c_type, int ldc,
                                          long long stride_c, int count,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
