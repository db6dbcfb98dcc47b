/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"
#include "kernels/lanes.h"

/* A thread is a lane of a chunk, so that each adds in the order of lanes.h; the lanes of one chunk
 * lie side by side in a warp. */
template <bool squares>
static __global__ void sum_lanes(double *sums, const float *x, size_t chunk, size_t count) {
        size_t begin = gpu_index() / LANES * chunk;
        size_t end = begin >= count || count - begin < chunk ? count : begin + chunk;
        double sum = 0.0;
        for (size_t i = begin + threadIdx.x % LANES; i < end; i += LANES)
                sum += squares ? static_cast<double>(x[i]) * static_cast<double>(x[i])
                               : static_cast<double>(x[i]);
        for (unsigned width = LANES / 2; width > 0; width /= 2)
                sum += __shfl_down_sync(GPU_ALL_LANES, sum, width);
        if (threadIdx.x % LANES == 0 && (begin < count || gpu_index() == 0))
                sums[gpu_index() / LANES] = sum;
}

int gpu_norm_squared(void *stream, double *sums, const float *x, size_t chunk, size_t count) {
        if (count == 0)
                return cudaSuccess;
        if (chunk == 0)
                return cudaErrorInvalidValue;
        chunk = chunk < count ? chunk : count;
        size_t blocks = ((count + chunk - 1) / chunk * LANES + GPU_BLOCK - 1) / GPU_BLOCK;
        if (blocks > INT32_MAX)
                return cudaErrorInvalidValue;
        return gpu_launch(GPU_KERNEL(sum_lanes<true>), static_cast<unsigned>(blocks), GPU_BLOCK, 0,
                          stream, sums, x, chunk, count);
}

/* One chunk. */
int gpu_sum(void *stream, double *sum, const float *x, size_t count) {
        return gpu_launch(GPU_KERNEL(sum_lanes<false>), 1, GPU_WARP, 0, stream, sum, x,
                          count > 0 ? count : 1, count);
}
