/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embedding.h"
#include "kernels/gpu_block.cuh"

template <class T>
static __global__ void forward(T *out, const uint32_t *tokens, const T *wte, const T *wpe,
                               size_t time, size_t rows, size_t channels) {
        for (size_t row = gpu_row(); row < rows; row += gpu_row_stride()) {
                const T *token = wte + tokens[row] * channels;
                const T *position = wpe + row % time * channels;
                for (size_t c = gpu_lane(); c < channels; c += GPU_WARP)
                        gpu_store(out + row * channels + c,
                                  gpu_load(token + c) + gpu_load(position + c));
        }
}

/* Many rows of dout may belong to one row of dwte. A block owns GPU_BLOCK channels of a row of
 * dwte and looks at all tokens, GPU_BLOCK at a time: each thread compares one, found[] has a bit
 * for each that is the row's, and the rows of dout are added in the order of the tokens. */
template <class T>
__device__ static float add_found(float sum, const T *dout, size_t channels,
                                  const unsigned found[GPU_WARPS]) {
        for (size_t w = 0; w < GPU_WARPS; w++) {
                size_t row = w * GPU_WARP;
                for (unsigned bits = found[w]; bits != 0; bits >>= 1, row++)
                        if (bits & 1u)
                                sum += gpu_load(dout + row * channels);
        }
        return sum;
}

template <class T>
static __global__ void backward_tokens(float *dwte, const T *dout, const uint32_t *tokens,
                                       size_t rows, size_t channels, size_t vocabulary) {
        size_t pieces = (channels + GPU_BLOCK - 1) / GPU_BLOCK;
        GPU_SHARED(unsigned, found, GPU_WARPS);

        for (size_t n = blockIdx.x; n < vocabulary * pieces; n += gridDim.x) {
                size_t token = n / pieces, c = n % pieces * GPU_BLOCK + threadIdx.x;
                float sum = c < channels ? dwte[token * channels + c] : 0.0f;
                for (size_t first = 0; first < rows; first += GPU_BLOCK) {
                        size_t row = first + threadIdx.x;
                        unsigned mine = row < rows && tokens[row] == token;
                        __syncthreads(); /* nobody reads the last ones any more */
                        unsigned bits = __ballot_sync(GPU_ALL_LANES, mine);
                        if (gpu_lane() == 0)
                                found[gpu_warp()] = bits;
                        __syncthreads();
                        if (c < channels)
                                sum = add_found(sum, dout + first * channels + c, channels, found);
                }
                if (c < channels)
                        dwte[token * channels + c] = sum;
        }
}

template <class T>
static __global__ void backward_positions(float *dwpe, const T *dout, size_t batch, size_t time,
                                          size_t channels) {
        for (size_t i = gpu_index(); i < time * channels; i += gpu_stride()) {
                float sum = dwpe[i];
                for (size_t b = 0; b < batch; b++)
                        sum += gpu_load(dout + b * time * channels + i);
                dwpe[i] = sum;
        }
}

int gpu_embedding_forward(void *stream, void *out, const uint32_t *tokens, const void *wte,
                          const void *wpe, size_t batch, size_t time, size_t channels,
                          enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_rows(GPU_KERNEL(forward<T>), GPU_BY_ROW, batch * time, channels,
                                       stream, static_cast<T *>(out), tokens,
                                       static_cast<const T *>(wte), static_cast<const T *>(wpe),
                                       time);
        });
}

int gpu_embedding_backward(void *stream, float *dwte, float *dwpe, const void *dout,
                           const uint32_t *tokens, size_t batch, size_t time, size_t channels,
                           size_t vocabulary, enum gpu_type type) {
        size_t pieces = vocabulary * ((channels + GPU_BLOCK - 1) / GPU_BLOCK);

        if (batch == 0 || time == 0 || vocabulary == 0)
                return cudaSuccess;
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                const T *d = static_cast<const T *>(dout);
                int e = gpu_launch_each(GPU_KERNEL(backward_tokens<T>), pieces * GPU_BLOCK, stream,
                                        dwte, d, tokens, batch * time, channels, vocabulary);
                return e ? e
                         : gpu_launch_each(GPU_KERNEL(backward_positions<T>), time * channels,
                                           stream, dwpe, d, batch, time, channels);
        });
}
