/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"
#include "kernels/gelu.h"

template <class T> static __global__ void forward(T *out, const T *in, size_t count) {
        for (size_t i = gpu_index(); i < count; i += gpu_stride())
                gpu_store(out + i, gelu_value(gpu_load(in + i)));
}

template <class T>
static __global__ void backward(T *din, const T *dout, const T *in, size_t count) {
        for (size_t i = gpu_index(); i < count; i += gpu_stride())
                gpu_store(din + i, gpu_load(dout + i) * gelu_slope(gpu_load(in + i)));
}

int gpu_gelu_forward(void *stream, void *out, const void *in, size_t count, enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_each(GPU_KERNEL(forward<T>), count, stream, static_cast<T *>(out),
                                       static_cast<const T *>(in), count);
        });
}

int gpu_gelu_backward(void *stream, void *din, const void *dout, const void *in, size_t count,
                      enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_each(GPU_KERNEL(backward<T>), count, stream,
                                       static_cast<T *>(din), static_cast<const T *>(dout),
                                       static_cast<const T *>(in), count);
        });
}
