/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gpu_block.cuh"
#include "kernels/rows.h"

/* Warps go over rows, lanes over the channels of a row. */
template <class T>
static __global__ void fill(T *out, const T *bias, size_t rows, size_t channels) {
        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride())
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP)
                        out[row * channels + c] = bias[c];
}

template <class T>
static __global__ void add_bias(T *out, const T *bias, size_t rows, size_t channels) {
        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride())
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP) {
                        T *y = out + row * channels + c;
                        gpu_store(y, gpu_load(y) + gpu_load(bias + c));
                }
}

template <class T>
static __global__ void subtract(T *in, const float *offset, size_t rows, size_t channels) {
        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride())
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP) {
                        T *x = in + row * channels + c;
                        gpu_store(x, gpu_load(x) - offset[c]);
                }
}

template <class T> static __global__ void add(T *out, const T *a, const T *b, size_t count) {
        for (size_t i = gpu_index(); i < count; i += gpu_stride())
                gpu_store(out + i, gpu_load(a + i) + gpu_load(b + i));
}

/* Each lane has its own column, and all threads of the block call. */
template <class T>
__device__ static float column_sum(const T *x, size_t rows, size_t channels, size_t column) {
        float sum = 0.0f;

        if (column < channels)
                for (size_t row = gpu_warp(); row < rows; row += GPU_WARPS)
                        sum += gpu_load(x + row * channels + column);
        return gpu_column_sum(sum);
}

template <class T>
static __global__ void add_bias_gradient(float *dbias, const T *dout, size_t rows,
                                         size_t channels) {
        for (size_t first = gpu_column(); first < channels; first += gpu_column_stride()) {
                size_t c = first + gpu_lane();
                float sum = column_sum(dout, rows, channels, c);
                if (gpu_warp() == 0 && c < channels)
                        dbias[c] += sum;
        }
}

template <class T>
static __global__ void follow_mean(float *running, const T *in, float momentum, size_t rows,
                                   size_t channels) {
        for (size_t first = gpu_column(); first < channels; first += gpu_column_stride()) {
                size_t c = first + gpu_lane();
                float sum = column_sum(in, rows, channels, c);
                if (gpu_warp() == 0 && c < channels)
                        running[c] += momentum * (sum / (float) rows - running[c]);
        }
}

int gpu_rows_fill(void *stream, void *out, const void *bias, size_t rows, size_t channels,
                  enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(fill<T>), GPU_BY_ROW, rows, channels, stream,
                                       static_cast<T *>(out), static_cast<const T *>(bias));
        });
}

int gpu_rows_add_bias(void *stream, void *out, const void *bias, size_t rows, size_t channels,
                      enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(add_bias<T>), GPU_BY_ROW, rows, channels, stream,
                                       static_cast<T *>(out), static_cast<const T *>(bias));
        });
}

int gpu_rows_add_bias_gradient(void *stream, float *dbias, const void *dout, size_t rows,
                               size_t channels, enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(add_bias_gradient<T>), GPU_BY_COLUMN, rows,
                                       channels, stream, dbias, static_cast<const T *>(dout));
        });
}

int gpu_rows_add(void *stream, void *out, const void *a, const void *b, size_t count,
                 enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_each(GPU_KERNEL(add<T>), count, stream, static_cast<T *>(out),
                                       static_cast<const T *>(a), static_cast<const T *>(b), count);
        });
}

int gpu_rows_center_running(void *stream, float *running, void *in, float momentum, size_t rows,
                            size_t channels, enum gpu_type type) {
        int e = gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(follow_mean<T>), GPU_BY_COLUMN, rows, channels,
                                       stream, running, static_cast<const T *>(in), momentum);
        });
        return e ? e : gpu_rows_subtract(stream, in, running, rows, channels, type);
}

int gpu_rows_subtract(void *stream, void *in, const float *offset, size_t rows, size_t channels,
                      enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(subtract<T>), GPU_BY_ROW, rows, channels, stream,
                                       static_cast<T *>(in), offset);
        });
}
