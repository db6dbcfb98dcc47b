/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"
#include "kernels/digest.h"

static __global__ void begin(unsigned long long *digest, size_t bytes) {
        *digest = digest_mix(bytes);
}

/* The little-endian word whose first byte is data[at]; bytes from `end` on count as 0. */
__device__ static inline uint64_t word_of_bytes(const unsigned char *data, size_t at, size_t end) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < end; i++)
                word |= static_cast<uint64_t>(data[at + i]) << 8 * i;
        return word;
}

static __global__ void add_words(unsigned long long *digest, const unsigned char *data,
                                 size_t bytes) {
        bool aligned = reinterpret_cast<uintptr_t>(data) % 8 == 0;
        unsigned long long sum = 0;
        for (size_t i = gpu_index(); i < (bytes + 7) / 8; i += gpu_stride()) {
                uint64_t word = aligned && 8 * i + 8 <= bytes
                                        ? reinterpret_cast<const uint64_t *>(data)[i]
                                        : word_of_bytes(data, 8 * i, bytes);
                sum += digest_mix(word ^ digest_mix(i + 1));
        }
        sum = gpu_warp_sum(sum);
        if (threadIdx.x % GPU_WARP == 0)
                atomicAdd(digest, sum);
}

int gpu_digest(void *stream, uint64_t *digest, const void *data, size_t bytes) {
        unsigned long long *target = reinterpret_cast<unsigned long long *>(digest);
        int error = gpu_launch(GPU_KERNEL(begin), 1, 1, 0, stream, target, bytes);
        if (error != cudaSuccess)
                return error;
        return gpu_launch_each(GPU_KERNEL(add_words), (bytes + 7) / 8, stream, target,
                               static_cast<const unsigned char *>(data), bytes);
}
