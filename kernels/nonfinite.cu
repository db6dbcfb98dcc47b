/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"

__device__ static inline bool is_nonfinite(float x) {
        return (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u;
}
__device__ static inline bool is_nonfinite(gpu_bf16 x) {
        return (x.bits & 0x7f80u) == 0x7f80u;
}
__device__ static inline bool is_nonfinite(gpu_f16 x) {
        return (x.bits & 0x7c00u) == 0x7c00u;
}

template <class T>
static __global__ void count_nonfinite(unsigned long long *sum, const T *x, size_t count) {
        unsigned long long found = 0;
        for (size_t i = gpu_index(); i < count; i += gpu_stride())
                found += is_nonfinite(x[i]);
        found = gpu_warp_sum(found);
        if (threadIdx.x % GPU_WARP == 0 && found > 0)
                atomicAdd(sum, found);
}

int gpu_nonfinite(void *stream, uint64_t *sum, const void *x, enum gpu_type type, size_t count) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_each(GPU_KERNEL(count_nonfinite<T>), count, stream,
                                       reinterpret_cast<unsigned long long *>(sum),
                                       static_cast<const T *>(x), count);
        });
}
