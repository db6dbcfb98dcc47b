/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/device.cuh"
#include "kernels/dropout.h"

/* A thread has the four elements of one draw. */
template <class T>
static __global__ void forward(T *out, uint8_t *mask, const T *in, size_t samples, size_t elements,
                               struct dropout_site site) {
        size_t quads = (elements + 3) / 4;
        float scale = 1.0f / (1.0f - site.probability);
        uint32_t threshold = dropout_threshold(site.probability);

        for (size_t n = gpu_index(); n < samples * quads; n += gpu_stride()) {
                size_t sample = n / quads, first = n % quads * 4;
                struct philox_block r = dropout_words(site, site.sample + sample, first / 4);
                for (size_t j = 0; j < 4 && first + j < elements; j++) {
                        size_t i = sample * elements + first + j;
                        bool stays = r.word[j] >= threshold;
                        mask[i] = stays;
                        gpu_store(out + i, gpu_load(in + i) * (stays ? scale : 0.0f));
                }
        }
}

template <class T>
static __global__ void backward(T *din, const T *dout, const uint8_t *mask, size_t count,
                                float probability) {
        float scale = 1.0f / (1.0f - probability);

        for (size_t i = gpu_index(); i < count; i += gpu_stride())
                gpu_store(din + i, gpu_load(dout + i) * (mask[i] ? scale : 0.0f));
}

int gpu_dropout_forward(void *stream, void *out, uint8_t *mask, const void *in, size_t samples,
                        size_t elements, struct dropout_site site, enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_each(GPU_KERNEL(forward<T>), samples * ((elements + 3) / 4),
                                       stream, static_cast<T *>(out), mask,
                                       static_cast<const T *>(in), samples, elements, site);
        });
}

int gpu_dropout_backward(void *stream, void *din, const void *dout, const uint8_t *mask,
                         size_t count, float probability, enum gpu_type type) {
        return gpu_with_type(type, [&](auto zero) {
                typedef decltype(zero) T;
                return gpu_launch_each(GPU_KERNEL(backward<T>), count, stream,
                                       static_cast<T *>(din), static_cast<const T *>(dout), mask,
                                       count, probability);
        });
}
