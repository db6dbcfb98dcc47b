/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"
#include "tests/kernels/planted.h"

constexpr unsigned BLOCK = 256;

template <bool barrier> static __global__ void reverse(float *out, const float *in) {
        GPU_SHARED(float, held, BLOCK);
        size_t base = static_cast<size_t>(blockIdx.x) * BLOCK;
        held[threadIdx.x] = 0.0f;
        __syncthreads();
        held[threadIdx.x] = in[base + threadIdx.x];
        if (barrier)
                __syncthreads();
        out[base + threadIdx.x] = held[BLOCK - 1 - threadIdx.x];
}

static __global__ void reverse_dynamic(float *out, const float *in) {
        GPU_SHARED_OF_LAUNCH(float, held);
        size_t base = static_cast<size_t>(blockIdx.x) * BLOCK;
        held[threadIdx.x] = in[base + threadIdx.x];
        __syncthreads();
        out[base + threadIdx.x] = held[BLOCK - 1 - threadIdx.x];
}

template <bool barrier> static __global__ void reverse_warps(float *out, const float *in) {
        GPU_SHARED(float, held, BLOCK);
        size_t i = gpu_index();
        held[threadIdx.x] = 0.0f;
        __syncwarp();
        held[threadIdx.x] = in[i];
        if (barrier)
                __syncwarp();
        out[i] = held[threadIdx.x ^ (GPU_WARP - 1)];
}

static __global__ void count_all(float *out, const float *in, size_t count) {
        for (size_t i = gpu_index(); i < count; i += gpu_stride())
                atomicAdd(reinterpret_cast<unsigned *>(out), static_cast<unsigned>(in[i]));
}

static __global__ void exchange(float *out, const float *in) {
        size_t i = gpu_index();
        out[i] = __shfl_xor_sync(GPU_ALL_LANES, in[i], 5) +
                 __shfl_down_sync(GPU_ALL_LANES, in[i], 3);
}

static __global__ void add_alone(float *out, const float *in) {
        out[0] += in[gpu_index()];
}

static __global__ void read_then_write(float *out, const float *in) {
        out[gpu_index() == 77 ? 0 : 1 + gpu_index()] = out[0] + in[0];
}

static __global__ void one_of_each_block(float *out, const float *in) {
        if (threadIdx.x == 3)
                out[0] = in[0];
}

static __global__ void atomic_and_read(float *out) {
        if (threadIdx.x % 2 == 0)
                atomicAdd(reinterpret_cast<unsigned *>(out), 1u);
        else
                out[1 + gpu_index()] = out[0];
}

static __global__ void half_at_barrier(float *out, bool both) {
        if (threadIdx.x < BLOCK / 2)
                __syncthreads();
        else if (both)
                __syncthreads();
        out[gpu_index()] = 1.0f;
}

static __global__ void ends_early(float *out) {
        if (threadIdx.x == 200)
                return;
        __syncthreads();
        out[gpu_index()] = 1.0f;
}

static __global__ void half_warp(float *out, const float *in, unsigned mask) {
        float x = in[gpu_index()];
        if (threadIdx.x % GPU_WARP < GPU_WARP / 2)
                x = __shfl_xor_sync(mask, x, 1);
        out[gpu_index()] = x;
}

static __global__ void at_offset(float *out, size_t offset) {
        if (gpu_index() == 0)
                out[offset] = 1.0f;
}

static __global__ void over_shared(float *out, unsigned index) {
        GPU_SHARED(float, held, BLOCK);
        held[threadIdx.x] = 1.0f;
        __syncthreads();
        const float *all = held; /* not seen by the compiler as an array */
        out[gpu_index()] = all[index + threadIdx.x];
}

/* The first block that runs writes, all read. */
static __global__ void unwritten(float *out, const float *in, unsigned writes) {
        GPU_SHARED(float, held, BLOCK);
        if (blockIdx.x < writes)
                held[threadIdx.x] = in[gpu_index()];
        __syncthreads();
        out[gpu_index()] = held[threadIdx.x];
}

static __global__ void misaligned(float *out) {
        if (gpu_index() == 0)
                *reinterpret_cast<float *>(reinterpret_cast<uintptr_t>(out) + 2) = 1.0f;
}

static __global__ void too_much(float *out) {
        GPU_SHARED(float, first, 12 * 1024);
        GPU_SHARED(float, second, 256);
        first[threadIdx.x] = second[threadIdx.x] = 0.0f;
        out[gpu_index()] = 0.0f;
}

static __global__ void traps(float *out) {
        out[gpu_index()] = 0.0f;
        if (gpu_index() == 5)
                __trap();
}

static int launch_sound(enum planted what, unsigned blocks, void *stream, float *out,
                        const float *in, size_t count) {
        switch (what) {
        case PLANTED_NOTHING_REVERSE:
                return gpu_launch(GPU_KERNEL(reverse<true>), blocks, BLOCK, 0, stream, out, in);
        case PLANTED_NOTHING_COUNT:
                return gpu_launch(GPU_KERNEL(count_all), blocks, BLOCK, 0, stream, out, in, count);
        case PLANTED_NOTHING_EXCHANGE:
                return gpu_launch(GPU_KERNEL(exchange), blocks, BLOCK, 0, stream, out, in);
        case PLANTED_NOTHING_WARP:
                return gpu_launch(GPU_KERNEL(reverse_warps<true>), blocks, BLOCK, 0, stream, out,
                                  in);
        default:
                return gpu_launch(GPU_KERNEL(reverse_dynamic), blocks, BLOCK, BLOCK * sizeof *out,
                                  stream, out, in);
        }
}

static int launch_race(enum planted what, unsigned blocks, void *stream, float *out,
                       const float *in) {
        switch (what) {
        case PLANTED_SHARED_RACE:
                return gpu_launch(GPU_KERNEL(reverse<false>), blocks, BLOCK, 0, stream, out, in);
        case PLANTED_WARP_RACE:
                return gpu_launch(GPU_KERNEL(reverse_warps<false>), blocks, BLOCK, 0, stream, out,
                                  in);
        case PLANTED_GLOBAL_RACE:
                return gpu_launch(GPU_KERNEL(add_alone), blocks, BLOCK, 0, stream, out, in);
        case PLANTED_READ_RACE:
                return gpu_launch(GPU_KERNEL(read_then_write), blocks - 1, BLOCK, 0, stream, out,
                                  in);
        case PLANTED_BLOCK_RACE:
                return gpu_launch(GPU_KERNEL(one_of_each_block), blocks, BLOCK, 0, stream, out, in);
        default:
                return gpu_launch(GPU_KERNEL(atomic_and_read), 1, BLOCK / 2, 0, stream, out);
        }
}

static int launch_order(enum planted what, unsigned blocks, void *stream, float *out,
                        const float *in) {
        switch (what) {
        case PLANTED_DIVERGENT:
        case PLANTED_TWO_BARRIERS:
                return gpu_launch(GPU_KERNEL(half_at_barrier), blocks, BLOCK, 0, stream, out,
                                  what == PLANTED_TWO_BARRIERS);
        case PLANTED_EARLY_END:
                return gpu_launch(GPU_KERNEL(ends_early), blocks, BLOCK, 0, stream, out);
        case PLANTED_HALF_WARP:
                return gpu_launch(GPU_KERNEL(half_warp), blocks, BLOCK, 0, stream, out, in,
                                  GPU_ALL_LANES);
        default:
                return gpu_launch(GPU_KERNEL(half_warp), blocks, BLOCK, 0, stream, out, in,
                                  0xffff0000u);
        }
}

static int launch_memory(enum planted what, unsigned blocks, void *stream, float *out,
                         const float *in, size_t count) {
        switch (what) {
        case PLANTED_BEHIND:
                return gpu_launch(GPU_KERNEL(at_offset), blocks, BLOCK, 0, stream, out, count);
        case PLANTED_SHARED_OVER:
                return gpu_launch(GPU_KERNEL(over_shared), blocks, BLOCK, 0, stream, out, 1u);
        case PLANTED_UNWRITTEN:
                return gpu_launch(GPU_KERNEL(unwritten), blocks, BLOCK, 0, stream, out, in, 0u);
        case PLANTED_STALE:
                return gpu_launch(GPU_KERNEL(unwritten), blocks, BLOCK, 0, stream, out, in,
                                  blocks / 2);
        case PLANTED_MISALIGNED:
                return gpu_launch(GPU_KERNEL(misaligned), blocks, BLOCK, 0, stream, out);
        case PLANTED_TOO_MUCH:
                return gpu_launch(GPU_KERNEL(too_much), blocks, BLOCK, 0, stream, out);
        default:
                return gpu_launch(GPU_KERNEL(traps), blocks, BLOCK, 0, stream, out);
        }
}

int planted_launch(enum planted what, void *stream, float *out, const float *in, size_t count) {
        unsigned blocks = static_cast<unsigned>(count / BLOCK);
        if (what < PLANTED_SHARED_RACE)
                return launch_sound(what, blocks, stream, out, in, count);
        if (what < PLANTED_DIVERGENT)
                return launch_race(what, blocks, stream, out, in);
        if (what < PLANTED_BEHIND)
                return launch_order(what, blocks, stream, out, in);
        return launch_memory(what, blocks, stream, out, in, count);
}
