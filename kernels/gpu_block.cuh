/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_block.cuh - for kernels of the layers: blocks of GPU_BLOCK threads in GPU_WARPS warps, with
 * sums over a block and over columns, always in the same order. Only .cu files include this.
 *
 *     for (size_t row = blockIdx.x; row < rows; row += gridDim.x)      // a block has a row
 *             for (size_t c = threadIdx.x; c < channels; c += GPU_BLOCK)
 *
 *     for (size_t first = gpu_column(); first < channels; first += gpu_column_stride())
 *                                     // a lane has a column; the warps share the rows
 */
#ifndef CAIRN_KERNELS_GPU_BLOCK_CUH
#define CAIRN_KERNELS_GPU_BLOCK_CUH

#include "kernels/device.cuh"

enum { GPU_WARPS = GPU_BLOCK / GPU_WARP };

/* Before a loop whose copies would cost nvcc more than they save a GPU. */
#ifdef __CUDACC__
#define GPU_NO_UNROLL _Pragma("unroll 1")
#else
#define GPU_NO_UNROLL
#endif

__device__ static inline unsigned gpu_lane() {
        return threadIdx.x % GPU_WARP;
}
__device__ static inline unsigned gpu_warp() {
        return threadIdx.x / GPU_WARP;
}
__device__ static inline size_t gpu_column() {
        return static_cast<size_t>(blockIdx.x) * GPU_WARP;
}
__device__ static inline size_t gpu_column_stride() {
        return static_cast<size_t>(gridDim.x) * GPU_WARP;
}

enum gpu_spread { GPU_BY_ROW = 1, GPU_BY_COLUMN = GPU_WARP };

/* Starts a kernel whose last two parameters are rows and channels; not if one is 0. */
template <class K, class... A>
inline int gpu_launch_rows(const char *name, K kernel, enum gpu_spread spread, size_t rows,
                           size_t channels, void *stream, A... arguments) {
        size_t count = spread == GPU_BY_ROW ? rows : channels;
        size_t blocks = count / spread + (count % spread != 0);
        if (rows == 0 || channels == 0)
                return cudaSuccess;
        return gpu_launch(name, kernel, gpu_blocks(blocks * GPU_BLOCK), GPU_BLOCK, 0, stream,
                          arguments..., rows, channels);
}

/* NaN loses: a maximum is NaN for nobody, and the sum that it is for has met the NaN. */
__device__ static inline float gpu_larger(float x, float y) {
        return y > x ? y : x;
}

/* ---- all threads of the block call these, and all get the same bits ---- */

__device__ static inline float gpu_block_sum(float x) {
        GPU_SHARED(float, parts, GPU_WARPS);
        x = gpu_warp_sum(x);
        if (gpu_lane() == 0)
                parts[gpu_warp()] = x;
        __syncthreads();
        x = 0.0f;
        for (unsigned w = 0; w < GPU_WARPS; w++)
                x += parts[w];
        __syncthreads(); /* the next sum writes the parts again */
        return x;
}

__device__ static inline float gpu_block_max(float x) {
        GPU_SHARED(float, parts, GPU_WARPS);
        x = gpu_warp_max(x);
        if (gpu_lane() == 0)
                parts[gpu_warp()] = x;
        __syncthreads();
        for (unsigned w = 0; w < GPU_WARPS; w++)
                x = gpu_larger(x, parts[w]);
        __syncthreads();
        return x;
}

/* A lane's column: the sum of what its warps have of it. */
__device__ static inline float gpu_column_sum(float x) {
        GPU_SHARED(float, parts, GPU_BLOCK);
        parts[threadIdx.x] = x;
        __syncthreads();
        x = 0.0f;
        for (unsigned w = 0; w < GPU_WARPS; w++)
                x += parts[w * GPU_WARP + gpu_lane()];
        __syncthreads();
        return x;
}

#endif
