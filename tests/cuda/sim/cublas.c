/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of matrices on the emulated driver's streams (cublas_v2.h).
 */
#include "kernels/cast.h"
#include "tests/cuda/emu.h"
#include "tests/cuda/sim/cublas_v2.h"
#include <stdlib.h>
#include <string.h>

/* clang-format off */
#define DECLARE(name, symbol, since, parameters) extern enum cuda_result symbol parameters;
CUDA_FUNCTIONS(DECLARE)
/* clang-format on */

enum { COLUMNS = 4 }; /* that are added up at once */

struct cublasContext {
        struct cuda_module *module;
        struct cuda_function *function;
        struct cuda_stream *stream;
};

struct matrix {
        const unsigned char *data;
        cudaDataType type;
        int leading;
        long long stride;
        bool transposed;
};
struct product {
        struct matrix a, b, c;
        int m, n, k, count;
        float alpha, beta;
};

static size_t element_bytes(cudaDataType type) {
        return type == CUDA_R_32F ? sizeof(float) : sizeof(uint16_t);
}

/* ---- on the stream ---- */

static float load(const struct matrix *x, size_t index) {
        const unsigned char *at = x->data + index * element_bytes(x->type);
        uint16_t narrow;
        float value;
        if (x->type == CUDA_R_32F) {
                memcpy(&value, at, sizeof value);
                return value;
        }
        memcpy(&narrow, at, sizeof narrow);
        return x->type == CUDA_R_16BF ? cast_f32_of_bf16(narrow) : cast_f32_of_f16(narrow);
}

static void store(const struct matrix *x, size_t index, float value) {
        unsigned char *at = (unsigned char *) x->data + index * element_bytes(x->type);
        uint16_t narrow = x->type == CUDA_R_16BF ? cast_bf16_of_f32(value) : cast_f16_of_f32(value);
        if (x->type == CUDA_R_32F)
                memcpy(at, &value, sizeof value);
        else
                memcpy(at, &narrow, sizeof narrow);
}

/* The element in row i and column j of op(x). */
static float element(const struct matrix *x, size_t i, size_t j) {
        size_t leading = (size_t) x->leading;
        return load(x, x->transposed ? j + i * leading : i + j * leading);
}

/* sums (m, COLUMNS) of columns j... of a (k, m, its columns one after another) times b. */
static void add_up(float *restrict sums, const float *restrict a, const struct product *p,
                   size_t first, size_t columns) {
        size_t m = (size_t) p->m;
        memset(sums, 0, COLUMNS * m * sizeof *sums);
        for (size_t k = 0; k < (size_t) p->k; k++) {
                float factor[COLUMNS] = {0};
                const float *restrict column = a + k * m;
                for (size_t j = 0; j < columns; j++)
                        factor[j] = element(&p->b, k, first + j);
                for (size_t i = 0; i < m; i++) {
                        sums[i] += column[i] * factor[0];
                        sums[m + i] += column[i] * factor[1];
                        sums[2 * m + i] += column[i] * factor[2];
                        sums[3 * m + i] += column[i] * factor[3];
                }
        }
}

static void multiply(const struct product *p, float *a, float *sums) {
        size_t m = (size_t) p->m, n = (size_t) p->n;
        for (size_t k = 0; k < (size_t) p->k; k++)
                for (size_t i = 0; i < m; i++)
                        a[k * m + i] = element(&p->a, i, k);
        for (size_t first = 0; first < n; first += COLUMNS) {
                size_t columns = n - first < COLUMNS ? n - first : COLUMNS;
                add_up(sums, a, p, first, columns);
                for (size_t j = 0; j < columns; j++)
                        for (size_t i = 0; i < m; i++) {
                                size_t at = i + (first + j) * (size_t) p->c.leading;
                                float value = p->alpha * sums[j * m + i];
                                if (p->beta != 0.0f)
                                        value += p->beta * load(&p->c, at);
                                store(&p->c, at, value);
                        }
        }
}

static void advance(struct matrix *x) {
        x->data += x->stride * (long long) element_bytes(x->type);
}

static enum cuda_result run(const struct emu_launch *launch, void **parameters) {
        struct product p = *(const struct product *) parameters[0];
        float *a = malloc((size_t) p.m * (size_t) p.k * sizeof *a + 1);
        float *sums = malloc(COLUMNS * (size_t) p.m * sizeof *sums);
        if (!a || !sums)
                abort();
        for (int i = 0; i < p.count; i++) {
                multiply(&p, a, sums);
                advance(&p.a);
                advance(&p.b);
                advance(&p.c);
        }
        free(a);
        free(sums);
        return CUDA_OK;
}

static const size_t parameter_bytes[] = {sizeof(struct product)};
static const struct emu_kernel kernels[] = {{"product", run, 1, parameter_bytes}};
static const struct emu_image image = {
        .magic = EMU_IMAGE_MAGIC, .kernel_count = 1, .kernels = kernels};

/* ---- handles ---- */

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
        struct cublasContext *h = calloc(1, sizeof *h);
        if (!h)
                return CUBLAS_STATUS_ALLOC_FAILED;
        if (cuModuleLoadData(&h->module, &image) != CUDA_OK) {
                free(h);
                return CUBLAS_STATUS_NOT_INITIALIZED;
        }
        if (cuModuleGetFunction(&h->function, h->module, "product") != CUDA_OK) {
                (void) cublasDestroy_v2(h);
                return CUBLAS_STATUS_NOT_INITIALIZED;
        }
        *handle = h;
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
        if (!handle)
                return CUBLAS_STATUS_NOT_INITIALIZED;
        enum cuda_result result = cuModuleUnload(handle->module);
        free(handle);
        return result == CUDA_OK ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
        if (!handle)
                return CUBLAS_STATUS_NOT_INITIALIZED;
        *version = 0;
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
        if (!handle)
                return CUBLAS_STATUS_NOT_INITIALIZED;
        handle->stream = (struct cuda_stream *) stream;
        return CUBLAS_STATUS_SUCCESS;
}

/* None is needed here. */
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes) {
        if (!handle)
                return CUBLAS_STATUS_NOT_INITIALIZED;
        return workspace || bytes == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
        return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

const char *cublasGetStatusString(cublasStatus_t status) {
        switch (status) {
        case CUBLAS_STATUS_SUCCESS:
                return "success";
        case CUBLAS_STATUS_NOT_INITIALIZED:
                return "the library was not initialized";
        case CUBLAS_STATUS_ALLOC_FAILED:
                return "the resource allocation failed";
        case CUBLAS_STATUS_INVALID_VALUE:
                return "an unsupported value or parameter was passed to the function";
        case CUBLAS_STATUS_EXECUTION_FAILED:
                return "the GPU program failed to execute";
        case CUBLAS_STATUS_NOT_SUPPORTED:
                return "the functionality requested is not supported";
        default:
                return "an internal operation failed";
        }
}

/* ---- products ---- */

static bool is_type(cudaDataType type) {
        return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F;
}

static bool is_leading(int leading, int rows) {
        return leading >= (rows > 1 ? rows : 1);
}

static cublasStatus_t check(const struct product *p, cublasComputeType_t compute) {
        bool known = is_type(p->a.type) && is_type(p->c.type) && p->a.type == p->b.type &&
                     (p->c.type == p->a.type || p->c.type == CUDA_R_32F);
        if (p->m < 0 || p->n < 0 || p->k < 0 || p->count < 0 ||
            !is_leading(p->a.leading, p->a.transposed ? p->k : p->m) ||
            !is_leading(p->b.leading, p->b.transposed ? p->n : p->k) ||
            !is_leading(p->c.leading, p->m))
                return CUBLAS_STATUS_INVALID_VALUE;
        if (!known || (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_PEDANTIC))
                return CUBLAS_STATUS_NOT_SUPPORTED;
        return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType a_type,
                                          int lda, long long stride_a, const void *b,
                                          cudaDataType b_type, int ldb, long long stride_b,
                                          const void *beta, void *c, cudaDataType c_type, int ldc,
                                          long long stride_c, int count,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
        if (!handle)
                return CUBLAS_STATUS_NOT_INITIALIZED;
        if (!alpha || !beta || op_a > CUBLAS_OP_T || op_b > CUBLAS_OP_T)
                return CUBLAS_STATUS_INVALID_VALUE;
        struct product p = {
                .a = {a, a_type, lda, stride_a, op_a == CUBLAS_OP_T},
                .b = {b, b_type, ldb, stride_b, op_b == CUBLAS_OP_T},
                .c = {c, c_type, ldc, stride_c, false},
                .m = m,
                .n = n,
                .k = k,
                .count = count,
                .alpha = *(const float *) alpha,
                .beta = *(const float *) beta,
        };
        cublasStatus_t status = check(&p, compute);
        if (status != CUBLAS_STATUS_SUCCESS || m == 0 || n == 0 || count == 0)
                return status;
        void *parameters[] = {&p};
        enum cuda_result result = cuLaunchKernel(handle->function, 1, 1, 1, 1, 1, 1, 0,
                                                 handle->stream, parameters, NULL);
        return result == CUDA_OK ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void *alpha, const void *a,
                            cudaDataType a_type, int lda, const void *b, cudaDataType b_type,
                            int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
        return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, 0, b,
                                          b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute,
                                          algorithm);
}
