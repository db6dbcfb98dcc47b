/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gpu_block.cuh"
#include "kernels/layernorm.h"

/* A warp has a row; its lanes share the channels. */
template <class T>
static __global__ void forward(T *out, float *mean, float *rstd, const T *in, const T *weight,
                               const T *bias, size_t rows, size_t channels) {
        float n = (float) channels;

        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride()) {
                const T *x = in + row * channels;
                float sum = 0.0f, squares = 0.0f;
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP)
                        sum += gpu_load(x + c);
                float m = gpu_warp_sum(sum) / n;
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP) {
                        float centered = gpu_load(x + c) - m;
                        squares += centered * centered;
                }
                float r = 1.0f / sqrtf(gpu_warp_sum(squares) / n + 1e-5f);
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP) {
                        float normal = (gpu_load(x + c) - m) * r;
                        gpu_store(out + row * channels + c,
                                  normal * gpu_load(weight + c) + gpu_load(bias + c));
                }
                if (gpu_lane() == 0) {
                        mean[row] = m;
                        rstd[row] = r;
                }
        }
}

/* A block has 32 channels; its warps share the rows. */
template <class T>
static __global__ void backward_weights(float *dweight, float *dbias, const T *dout, const T *in,
                                        const float *mean, const float *rstd, size_t rows,
                                        size_t channels) {
        for (size_t first = gpu_column(); first < channels; first += gpu_column_stride()) {
                size_t c = first + gpu_lane();
                float dw = 0.0f, db = 0.0f;
                for (size_t row = gpu_warp(); row < rows && c < channels; row += GPU_WARPS) {
                        float g = gpu_load(dout + row * channels + c);
                        float x = gpu_load(in + row * channels + c);
                        dw += g * ((x - mean[row]) * rstd[row]);
                        db += g;
                }
                dw = gpu_column_sum(dw);
                db = gpu_column_sum(db);
                if (gpu_warp() == 0 && c < channels) {
                        dweight[c] += dw;
                        dbias[c] += db;
                }
        }
}

template <class T>
static __global__ void backward(T *din, const T *dout, const T *in, const T *weight,
                                const float *mean, const float *rstd, size_t rows,
                                size_t channels) {
        float n = (float) channels;

        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride()) {
                const T *x = in + row * channels, *dy = dout + row * channels;
                float m = mean[row], r = rstd[row], sum = 0.0f, dot = 0.0f;
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP) {
                        float g = gpu_load(dy + c) * gpu_load(weight + c);
                        sum += g;
                        dot += g * ((gpu_load(x + c) - m) * r);
                }
                float sum_mean = gpu_warp_sum(sum) / n, dot_mean = gpu_warp_sum(dot) / n;
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP) {
                        float g = gpu_load(dy + c) * gpu_load(weight + c);
                        float normal = (gpu_load(x + c) - m) * r;
                        gpu_store(din + row * channels + c, (g - sum_mean - normal * dot_mean) * r);
                }
        }
}

int gpu_layernorm_forward(void *stream, void *out, float *mean, float *rstd, const void *in,
                          const void *weight, const void *bias, size_t rows, size_t channels,
                          enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(forward<T>), GPU_BY_ROW, rows, channels, stream,
                                       static_cast<T *>(out), mean, rstd,
                                       static_cast<const T *>(in), static_cast<const T *>(weight),
                                       static_cast<const T *>(bias));
        });
}

/* The weights first: din may be dout. */
int gpu_layernorm_backward(void *stream, void *din, float *dweight, float *dbias, const void *dout,
                           const void *in, const void *weight, const float *mean, const float *rstd,
                           size_t rows, size_t channels, enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                const T *dy = static_cast<const T *>(dout), *x = static_cast<const T *>(in);
                int e = gpu_launch_rows(GPU_KERNEL(backward_weights<T>), GPU_BY_COLUMN, rows,
                                        channels, stream, dweight, dbias, dy, x, mean, rstd);
                return e ? e
                         : gpu_launch_rows(GPU_KERNEL(backward<T>), GPU_BY_ROW, rows, channels,
                                           stream, static_cast<T *>(din), dy, x,
                                           static_cast<const T *>(weight), mean, rstd);
        });
}
