/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/adamw.h"
#include "kernels/device.cuh"

template <class T>
static __global__ void update(float *weights, T *narrow, float *moment1, float *moment2,
                              const float *gradient, size_t count, struct adamw_factors f) {
        for (size_t i = gpu_index(); i < count; i += gpu_stride()) {
                float w = adamw_element(weights[i], &moment1[i], &moment2[i], gradient[i], f);
                weights[i] = w;
                if (narrow)
                        gpu_store(&narrow[i], w);
        }
}

int gpu_adamw(void *stream, float *weights, void *narrow, enum gpu_type narrow_type, float *moment1,
              float *moment2, const float *gradient, size_t count, struct adamw a, int64_t t,
              float gradient_scale) {
        return gpu_with_type(narrow_type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_each(GPU_KERNEL(update<T>), count, stream, weights,
                                       static_cast<T *>(narrow), moment1, moment2, gradient, count,
                                       adamw_factors(&a, t, gradient_scale));
        });
}

static __global__ void ema(float *average, const float *weights, size_t count, float gain) {
        for (size_t i = gpu_index(); i < count; i += gpu_stride())
                average[i] += gain * (weights[i] - average[i]);
}

int gpu_ema(void *stream, float *average, const float *weights, size_t count, float decay) {
        return gpu_launch_each(GPU_KERNEL(ema), count, stream, average, weights, count,
                               1.0f - decay);
}
