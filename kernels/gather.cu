/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"

/* So many blocks share a piece; each takes every so many-th slice of it. */
constexpr unsigned SLICE = 1 << 16, BLOCKS_A_PIECE = 8, PIECES_MAX = 1 << 16;

struct alignas(16) wide {
        uint64_t word[2];
};

/* Whole words of W; the bytes around them one at a time. Both addresses are equally far from the
 * next word. */
template <class W>
__device__ static void copy_words(unsigned char *target, const unsigned char *source,
                                  size_t bytes) {
        size_t head = (sizeof(W) - reinterpret_cast<uintptr_t>(target) % sizeof(W)) % sizeof(W);
        head = head < bytes ? head : bytes;
        size_t words = (bytes - head) / sizeof(W), tail = head + words * sizeof(W);
        for (size_t i = threadIdx.x; i < head; i += blockDim.x)
                target[i] = source[i];
        for (size_t i = threadIdx.x; i < words; i += blockDim.x)
                reinterpret_cast<W *>(target + head)[i] =
                        reinterpret_cast<const W *>(source + head)[i];
        for (size_t i = tail + threadIdx.x; i < bytes; i += blockDim.x)
                target[i] = source[i];
}

__device__ static void copy_slice(unsigned char *target, const unsigned char *source,
                                  size_t bytes) {
        size_t apart = reinterpret_cast<uintptr_t>(target) ^ reinterpret_cast<uintptr_t>(source);
        if (apart % sizeof(wide) == 0)
                copy_words<wide>(target, source, bytes);
        else if (apart % sizeof(uint32_t) == 0)
                copy_words<uint32_t>(target, source, bytes);
        else
                copy_words<unsigned char>(target, source, bytes);
}

template <bool to_image>
static __global__ void move(unsigned char *image, const struct gpu_piece *pieces, size_t count) {
        for (size_t p = blockIdx.x; p < count; p += gridDim.x) {
                const struct gpu_piece piece = pieces[p];
                unsigned char *tensor = static_cast<unsigned char *>(piece.address);
                unsigned char *place = image + piece.offset;
                for (size_t at = static_cast<size_t>(blockIdx.y) * SLICE; at < piece.bytes;
                     at += static_cast<size_t>(gridDim.y) * SLICE) {
                        size_t left = piece.bytes - at, bytes = left < SLICE ? left : SLICE;
                        if (to_image)
                                copy_slice(place + at, tensor + at, bytes);
                        else
                                copy_slice(tensor + at, place + at, bytes);
                }
        }
}

static dim3 blocks_of(size_t count) {
        return dim3(static_cast<unsigned>(count < PIECES_MAX ? count : PIECES_MAX), BLOCKS_A_PIECE);
}

int gpu_gather(void *stream, void *image, const struct gpu_piece *pieces, size_t count) {
        if (count == 0)
                return cudaSuccess;
        return gpu_launch(GPU_KERNEL(move<true>), blocks_of(count), GPU_BLOCK, 0, stream,
                          static_cast<unsigned char *>(image), pieces, count);
}

int gpu_scatter(void *stream, const void *image, const struct gpu_piece *pieces, size_t count) {
        if (count == 0)
                return cudaSuccess;
        return gpu_launch(GPU_KERNEL(move<false>), blocks_of(count), GPU_BLOCK, 0, stream,
                          static_cast<unsigned char *>(const_cast<void *>(image)), pieces, count);
}
