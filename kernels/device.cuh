/* SPDX-License-Identifier: Apache-2.0
 *
 * device.cuh - what .cu files are written in: a part of CUDA's language that nvcc compiles for GPUs
 * and g++, for the tests, as C++17 on a simulator. docs/DEVICE-CODE.md says what belongs to it.
 *
 *     static __global__ void twice(float *out, const float *in, size_t count) {
 *             for (size_t i = gpu_index(); i < count; i += gpu_stride())
 *                     out[i] = 2.0f * in[i];
 *     }
 *     return gpu_launch_each(GPU_KERNEL(twice), count, stream, out, in, count);
 *
 * .cu files own nothing: launchers take pointers, sizes and a stream. Only .cu files include this.
 */
#ifndef CAIRN_KERNELS_DEVICE_CUH
#define CAIRN_KERNELS_DEVICE_CUH

#include "kernels/cast.h"
#include "kernels/gpu.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

/* An array of the block's; it holds garbage. One of the launch's size: at most one a kernel. */
#define GPU_SHARED(type, name, count) __shared__ type name[count]
#define GPU_SHARED_OF_LAUNCH(type, name)                             \
        extern __shared__ __align__(16) unsigned char gpu_shared_[]; \
        type *name = reinterpret_cast<type *>(gpu_shared_)

constexpr unsigned GPU_BLOCKS_MAX = 4096;

template <class T> struct gpu_same { typedef T type; };

/* Queues a kernel; a cudaError_t. Arguments become what the kernel's parameters are. */
template <class... P>
inline int gpu_launch(const char *, void (*kernel)(P...), dim3 grid, dim3 block,
                      size_t shared_bytes, void *stream, typename gpu_same<P>::type... arguments) {
        void *addresses[] = {&arguments..., nullptr};
        return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, addresses,
                                shared_bytes, static_cast<cudaStream_t>(stream));
}
#else
#include <cuda_sim.cuh>
constexpr unsigned GPU_BLOCKS_MAX = 32; /* small tests have more elements than threads */
#endif

/* The first two arguments of a launch: the name of a kernel, for messages, and the kernel. */
#define GPU_KERNEL(...) #__VA_ARGS__, __VA_ARGS__

/* ---- elementwise kernels ---- */

constexpr unsigned GPU_BLOCK = 256, GPU_WARP = 32;
#define GPU_ALL_LANES 0xffffffffu

__device__ static inline size_t gpu_index() {
        return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ static inline size_t gpu_stride() {
        return static_cast<size_t>(gridDim.x) * blockDim.x;
}

/* Blocks for `count` elements, each thread looping where there are many. */
static inline unsigned gpu_blocks(size_t count) {
        size_t blocks = (count + GPU_BLOCK - 1) / GPU_BLOCK;
        return static_cast<unsigned>(blocks < GPU_BLOCKS_MAX ? blocks : GPU_BLOCKS_MAX);
}

template <class K, class... A>
inline int gpu_launch_each(const char *name, K kernel, size_t count, void *stream, A... arguments) {
        if (count == 0)
                return cudaSuccess;
        return gpu_launch(name, kernel, gpu_blocks(count), GPU_BLOCK, 0, stream, arguments...);
}

/* ---- warps: every lane has to come; each gets the same result, in a fixed order ---- */

template <class T> __device__ static inline T gpu_warp_sum(T value) {
        for (unsigned lanes = GPU_WARP / 2; lanes > 0; lanes /= 2)
                value += __shfl_xor_sync(GPU_ALL_LANES, value, lanes);
        return value;
}
template <class T> __device__ static inline T gpu_warp_max(T value) {
        for (unsigned lanes = GPU_WARP / 2; lanes > 0; lanes /= 2) {
                T other = __shfl_xor_sync(GPU_ALL_LANES, value, lanes);
                value = other > value ? other : value;
        }
        return value;
}

/* ---- element types ---- */

struct gpu_bf16 {
        uint16_t bits;
};
struct gpu_f16 {
        uint16_t bits;
};

HOST_DEVICE static inline float gpu_load(const float *x) {
        return *x;
}
HOST_DEVICE static inline float gpu_load(const gpu_bf16 *x) {
        return cast_f32_of_bf16(x->bits);
}
HOST_DEVICE static inline float gpu_load(const gpu_f16 *x) {
        return cast_f32_of_f16(x->bits);
}
HOST_DEVICE static inline void gpu_store(float *x, float value) {
        *x = value;
}
HOST_DEVICE static inline void gpu_store(gpu_bf16 *x, float value) {
        x->bits = cast_bf16_of_f32(value);
}
HOST_DEVICE static inline void gpu_store(gpu_f16 *x, float value) {
        x->bits = cast_f16_of_f32(value);
}

/* Calls f with a zero of the type:
 *
 *     return gpu_with_type(type, [&](auto zero) {
 *             typedef decltype(zero) T;
 *             return gpu_launch_each(GPU_KERNEL(k<T>), count, stream, (T *) out, count);
 *     });
 */
template <class F> inline int gpu_with_type(enum gpu_type type, F f) {
        switch (type) {
        case GPU_F32:
                return f(0.0f);
        case GPU_BF16:
                return f(gpu_bf16{0});
        case GPU_F16:
                return f(gpu_f16{0});
        }
        return cudaErrorInvalidValue;
}

#endif
