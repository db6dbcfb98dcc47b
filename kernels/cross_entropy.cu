/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cross_entropy.h"
#include "kernels/exp.h"
#include "kernels/gpu_block.cuh"

/* A warp has a row; its lanes share the classes. */
template <class T>
static __global__ void forward(float *losses, T *logits, const uint32_t *targets, size_t rows,
                               size_t classes) {
        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride()) {
                T *x = logits + row * classes;
                float target = gpu_load(x + targets[row]), max = -INFINITY, sum = 0.0f;
                for (size_t c = gpu_lane(); c < classes; c += GPU_WARP)
                        max = gpu_larger(max, gpu_load(x + c));
                max = gpu_warp_max(max);
                for (size_t c = gpu_lane(); c < classes; c += GPU_WARP)
                        sum += exp_f32(gpu_load(x + c) - max);
                sum = gpu_warp_sum(sum);
                float inverse = 1.0f / sum;
                __syncwarp(); /* all have read the target, which is overwritten now */
                for (size_t c = gpu_lane(); c < classes; c += GPU_WARP)
                        gpu_store(x + c, exp_f32(gpu_load(x + c) - max) * inverse);
                /* From the logits, not log(p): p may have underflowed. */
                if (gpu_lane() == 0)
                        losses[row] = logf(sum) - (target - max);
        }
}

template <class T>
static __global__ void backward(T *probabilities, const uint32_t *targets, float scale, size_t rows,
                                size_t classes) {
        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride())
                for (size_t c = gpu_lane(); c < classes; c += GPU_WARP) {
                        T *p = probabilities + row * classes + c;
                        gpu_store(p, (gpu_load(p) - (c == targets[row] ? 1.0f : 0.0f)) * scale);
                }
}

int gpu_cross_entropy_forward(void *stream, float *losses, void *logits, const uint32_t *targets,
                              size_t rows, size_t classes, enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(forward<T>), GPU_BY_ROW, rows, classes, stream,
                                       losses, static_cast<T *>(logits), targets);
        });
}

int gpu_cross_entropy_backward(void *stream, void *probabilities, const uint32_t *targets,
                               size_t rows, size_t classes, float scale, enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(backward<T>), GPU_BY_ROW, rows, classes, stream,
                                       static_cast<T *>(probabilities), targets, scale);
        });
}
