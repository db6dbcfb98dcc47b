/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in for cuBLAS against sums in double, and what it refuses.
 */
#include "kernels/cast.h"
#include "tests/kernels/gpu_test.h"
#include <cublas_v2.h>
#include <math.h>

enum { ROOM = 4096, COUNT = 2 };

static const float one = 1.0f, two = 2.0f, zero = 0.0f;

static uint16_t narrow_of(float value, cudaDataType type) {
        return type == CUDA_R_16BF ? cast_bf16_of_f32(value) : cast_f16_of_f32(value);
}

static float wide_of(uint16_t value, cudaDataType type) {
        return type == CUDA_R_16BF ? cast_f32_of_bf16(value) : cast_f32_of_f16(value);
}

/* Device memory with x in the type; x becomes what was stored. */
static void *upload(float *x, size_t count, cudaDataType type) {
        uint16_t narrow[ROOM];
        if (type == CUDA_R_32F)
                return gpu_test_copy(x, count * sizeof *x);
        for (size_t i = 0; i < count; i++) {
                narrow[i] = narrow_of(x[i], type);
                x[i] = wide_of(narrow[i], type);
        }
        return gpu_test_copy(narrow, count * sizeof *narrow);
}

static void download(float *x, const void *device, size_t count, cudaDataType type) {
        uint16_t narrow[ROOM];
        if (type == CUDA_R_32F) {
                gpu_test_fetch(x, device, count * sizeof *x);
                return;
        }
        gpu_test_fetch(narrow, device, count * sizeof *narrow);
        for (size_t i = 0; i < count; i++)
                x[i] = wide_of(narrow[i], type);
}

struct shape {
        int m, n, k;
};

static double wanted_at(const float *a, const float *b, const struct shape *s, int op_a, int op_b,
                        int lda, int ldb, int i, int j) {
        double sum = 0;
        for (int k = 0; k < s->k; k++)
                sum += (double) a[op_a ? k + i * lda : i + k * lda] *
                       (double) b[op_b ? j + k * ldb : k + j * ldb];
        return sum;
}

static void check_product(cublasHandle_t handle, const struct shape *s, int op_a, int op_b,
                          cudaDataType type, cudaDataType c_type, const float *beta) {
        float a[ROOM], b[ROOM], c[ROOM], got[ROOM];
        int lda = (op_a ? s->k : s->m) + 1, ldb = (op_b ? s->n : s->k) + 2, ldc = s->m + 3;
        int a_count = lda * (op_a ? s->m : s->k), b_count = ldb * (op_b ? s->k : s->n);
        int c_count = ldc * s->n;
        assert_true(COUNT * a_count <= ROOM && COUNT * b_count <= ROOM && COUNT * c_count <= ROOM);
        gpu_test_fill(a, ROOM, 1, false);
        gpu_test_fill(b, ROOM, 2, false);
        gpu_test_fill(c, ROOM, 3, false);
        void *da = upload(a, COUNT * (size_t) a_count, type);
        void *db = upload(b, COUNT * (size_t) b_count, type);
        void *dc = upload(c, COUNT * (size_t) c_count, c_type);
        assert_int_equal(cublasGemmStridedBatchedEx(handle, (cublasOperation_t) op_a,
                                                    (cublasOperation_t) op_b, s->m, s->n, s->k,
                                                    &two, da, type, lda, a_count, db, type, ldb,
                                                    b_count, beta, dc, c_type, ldc, c_count, COUNT,
                                                    CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                         CUBLAS_STATUS_SUCCESS);
        download(got, dc, COUNT * (size_t) c_count, c_type);
        for (int at = 0; at < COUNT * c_count; at++) {
                int part = at / c_count, i = at % c_count % ldc, j = at % c_count / ldc;
                double wanted = (double) c[at], bound = 0;
                if (i < s->m) {
                        wanted = 2.0 * wanted_at(a + part * a_count, b + part * b_count, s, op_a,
                                                 op_b, lda, ldb, i, j) +
                                 (double) *beta * (double) c[at];
                        bound = fabs(wanted) * (c_type == CUDA_R_16BF ? 0x1p-8 : 0x1p-11) +
                                (c_type == CUDA_R_32F ? 2e-5 : 1e-3) * (s->k + 1);
                }
                if (!(fabs((double) got[at] - wanted) <= bound))
                        fail_msg("%d x %d x %d, ops %d %d, type %d: C[%d, %d] = %g, not %g", s->m,
                                 s->n, s->k, op_a, op_b, (int) type, i, j, (double) got[at],
                                 wanted);
        }
        gpu_test_free(da);
        gpu_test_free(db);
        gpu_test_free(dc);
}

static cublasHandle_t opened(void) {
        cublasHandle_t handle;
        void *stream = gpu_test_stream();
        assert_int_equal(cublasCreate_v2(&handle), CUBLAS_STATUS_SUCCESS);
        assert_int_equal(cublasSetStream_v2(handle, stream), CUBLAS_STATUS_SUCCESS);
        return handle;
}

static void test_products(void **state) {
        static const struct shape shapes[] = {
                {1, 1, 1}, {3, 5, 7}, {16, 9, 33}, {31, 4, 1}, {2, 17, 0}};
        static const cudaDataType types[][2] = {{CUDA_R_32F, CUDA_R_32F},
                                                {CUDA_R_16BF, CUDA_R_16BF},
                                                {CUDA_R_16BF, CUDA_R_32F},
                                                {CUDA_R_16F, CUDA_R_16F},
                                                {CUDA_R_16F, CUDA_R_32F}};
        cublasHandle_t handle = opened();
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
                for (int ops = 0; ops < 4; ops++)
                        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
                                check_product(handle, &shapes[i], ops & 1, ops >> 1, types[t][0],
                                              types[t][1], ops % 3 ? &one : &zero);
        assert_int_equal(cublasDestroy_v2(handle), CUBLAS_STATUS_SUCCESS);
}

static cublasStatus_t product(cublasHandle_t handle, int m, int lda, cudaDataType b_type,
                              cudaDataType c_type, cublasComputeType_t compute) {
        return cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, 0, 4, &one, NULL, CUDA_R_16BF, lda,
                            NULL, b_type, 4, &zero, NULL, c_type, 4, compute, CUBLAS_GEMM_DEFAULT);
}

static void test_refused(void **state) {
        cublasHandle_t handle = opened();
        cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
        assert_int_equal(product(handle, 4, 4, CUDA_R_16BF, CUDA_R_32F, compute),
                         CUBLAS_STATUS_SUCCESS);
        assert_int_equal(product(handle, 4, 3, CUDA_R_16BF, CUDA_R_32F, compute),
                         CUBLAS_STATUS_INVALID_VALUE);
        assert_int_equal(product(handle, -1, 4, CUDA_R_16BF, CUDA_R_32F, compute),
                         CUBLAS_STATUS_INVALID_VALUE);
        assert_int_equal(product(handle, 4, 4, CUDA_R_16F, CUDA_R_32F, compute),
                         CUBLAS_STATUS_NOT_SUPPORTED);
        assert_int_equal(product(handle, 4, 4, CUDA_R_16BF, CUDA_R_16F, compute),
                         CUBLAS_STATUS_NOT_SUPPORTED);
        assert_int_equal(product(handle, 4, 4, CUDA_R_16BF, CUDA_R_32F, (cublasComputeType_t) 77),
                         CUBLAS_STATUS_NOT_SUPPORTED);
        assert_int_equal(product(NULL, 4, 4, CUDA_R_16BF, CUDA_R_32F, compute),
                         CUBLAS_STATUS_NOT_INITIALIZED);
        /* No stream of its own: there is no other here. */
        assert_int_equal(cublasSetStream_v2(handle, NULL), CUBLAS_STATUS_SUCCESS);
        assert_int_equal(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, NULL,
                                      CUDA_R_32F, 1, NULL, CUDA_R_32F, 1, &zero, NULL, CUDA_R_32F,
                                      1, compute, CUBLAS_GEMM_DEFAULT),
                         CUBLAS_STATUS_EXECUTION_FAILED);
        assert_int_equal(cublasDestroy_v2(handle), CUBLAS_STATUS_SUCCESS);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_products),
                cmocka_unit_test(test_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
