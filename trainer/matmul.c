/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/matmul.h"
#include "kernels/rows.h"
#include <cblas.h>

void matmul_forward(float *out, const float *in, const float *weight, const float *bias,
                    size_t rows, size_t inputs, size_t outputs) {
        blasint m = (blasint) rows, n = (blasint) outputs, k = (blasint) inputs;

        if (bias)
                rows_fill(out, bias, rows, outputs);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, in, k, weight, k,
                    bias ? 1.0f : 0.0f, out, n);
}

void matmul_backward(float *din, float *dweight, float *dbias, const float *dout, const float *in,
                     const float *weight, size_t rows, size_t inputs, size_t outputs) {
        blasint m = (blasint) rows, n = (blasint) outputs, k = (blasint) inputs;

        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, k, n, 1.0f, dout, n, weight, k,
                    0.0f, din, k);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, k, m, 1.0f, dout, n, in, k, 1.0f,
                    dweight, k);
        if (dbias)
                rows_add_bias_gradient(dbias, dout, rows, outputs);
}

void matmul_set_threads(int threads) {
        openblas_set_num_threads(threads);
}

const char *matmul_library(void) {
        return openblas_get_config();
}

const char *matmul_core(void) {
        return openblas_get_corename();
}
