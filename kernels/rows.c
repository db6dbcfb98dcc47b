/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rows.h"
#include <string.h>

void rows_fill(float *restrict out, const float *restrict bias, size_t rows, size_t channels) {
        for (size_t row = 0; row < rows; row++)
                memcpy(out + row * channels, bias, channels * sizeof(*out));
}

void rows_add_bias_gradient(float *restrict dbias, const float *restrict dout, size_t rows,
                            size_t channels) {
        for (size_t row = 0; row < rows; row++)
                for (size_t c = 0; c < channels; c++)
                        dbias[c] += dout[row * channels + c];
}

void rows_add(float *out, const float *a, const float *b, size_t count) {
        for (size_t i = 0; i < count; i++)
                out[i] = a[i] + b[i];
}

void rows_subtract(float *restrict in, const float *restrict offset, size_t rows, size_t channels) {
        for (size_t row = 0; row < rows; row++)
                for (size_t c = 0; c < channels; c++)
                        in[row * channels + c] -= offset[c];
}

void rows_center_running(float *restrict running, float *restrict in, float momentum, size_t rows,
                         size_t channels) {
        for (size_t c = 0; c < channels; c++) {
                float sum = 0.0f;
                for (size_t row = 0; row < rows; row++)
                        sum += in[row * channels + c];
                running[c] += momentum * (sum / (float) rows - running[c]);
        }
        rows_subtract(in, running, rows, channels);
}
