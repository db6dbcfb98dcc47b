/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/layernorm.h"
#include "kernels/clones.h"
#include "kernels/lanes.h"
#include <math.h>

CLONES void layernorm_forward(float *restrict out, float *restrict mean, float *restrict rstd,
                              const float *restrict in, const float *restrict weight,
                              const float *restrict bias, size_t rows, size_t channels) {
        float n = (float) channels;

        for (size_t row = 0; row < rows; row++) {
                const float *x = in + row * channels;
                float *y = out + row * channels;
                float m = lanes_sum_f32(x, channels) / n;
                for (size_t c = 0; c < channels; c++)
                        y[c] = x[c] - m;
                float r = 1.0f / sqrtf(lanes_dot_f32(y, y, channels) / n + 1e-5f);
                for (size_t c = 0; c < channels; c++)
                        y[c] = y[c] * r * weight[c] + bias[c];
                mean[row] = m;
                rstd[row] = r;
        }
}

CLONES void layernorm_backward(float *din, float *restrict dweight, float *restrict dbias,
                               const float *dout, const float *restrict in,
                               const float *restrict weight, const float *restrict mean,
                               const float *restrict rstd, size_t rows, size_t channels) {
        float n = (float) channels;

        for (size_t row = 0; row < rows; row++) {
                const float *x = in + row * channels, *dy = dout + row * channels;
                float *dx = din + row * channels;
                float m = mean[row], r = rstd[row];
                float sum[LANES] = {0}, dot[LANES] = {0};
                for (size_t c = 0; c < channels; c++) {
                        float g = dy[c] * weight[c];
                        sum[c % LANES] += g;
                        dot[c % LANES] += g * ((x[c] - m) * r);
                }
                float sum_mean = lanes_total_f32(sum) / n, dot_mean = lanes_total_f32(dot) / n;
                for (size_t c = 0; c < channels; c++) {
                        float normal = (x[c] - m) * r, g = dy[c];
                        dweight[c] += g * normal;
                        dbias[c] += g;
                        dx[c] = (g * weight[c] - sum_mean - normal * dot_mean) * r;
                }
        }
}
