/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_block.cuh - for kernels of the layers: blocks of GPU_BLOCK threads in GPU_WARPS warps, which
 * have rows or columns, with sums in one order. Only .cu files include this.
 *
 *     for (size_t row = gpu_row(); row < rows; row += gpu_row_stride())     // a warp has a row
 *             for (size_t c = gpu_lane(); c < channels; c += GPU_WARP)
 *
 *     for (size_t first = gpu_column(); first < channels; first += gpu_column_stride())
 *                                     // a lane has a column; the warps of the block share the rows
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
__device__ static inline size_t gpu_row() {
        return static_cast<size_t>(blockIdx.x) * GPU_WARPS + gpu_warp();
}
__device__ static inline size_t gpu_row_stride() {
        return static_cast<size_t>(gridDim.x) * GPU_WARPS;
}
__device__ static inline size_t gpu_column() {
        return static_cast<size_t>(blockIdx.x) * GPU_WARP;
}
__device__ static inline size_t gpu_column_stride() {
        return static_cast<size_t>(gridDim.x) * GPU_WARP;
}

/* How many a block has. */
enum gpu_spread { GPU_BY_ROW = GPU_WARPS, GPU_BY_COLUMN = GPU_WARP };

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

/* A lane's column: the sum of what the warps have of it. All threads of the block call this. */
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
