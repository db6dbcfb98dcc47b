/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/gpu_test.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

static cudaStream_t stream;

void gpu_test_ok(int error) {
        if (error != cudaSuccess)
                fail_msg("%s: %s", cudaGetErrorName((cudaError_t) error),
                         cudaGetErrorString((cudaError_t) error));
}

void *gpu_test_stream(void) {
        if (!stream) {
                gpu_test_ok(cudaSetDevice(0));
                gpu_test_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        }
        return stream;
}

void gpu_test_wait(void) {
        gpu_test_ok(cudaStreamSynchronize(gpu_test_stream()));
}

void *gpu_test_new(size_t bytes) {
        void *address = NULL;
        (void) gpu_test_stream();
        if (bytes > 0)
                gpu_test_ok(cudaMalloc(&address, bytes));
        return address;
}

void *gpu_test_copy(const void *host, size_t bytes) {
        void *address = gpu_test_new(bytes);
        if (bytes > 0)
                gpu_test_ok(cudaMemcpyAsync(address, host, bytes, cudaMemcpyHostToDevice, stream));
        gpu_test_wait();
        return address;
}

void gpu_test_fetch(void *host, const void *device, size_t bytes) {
        if (bytes > 0)
                gpu_test_ok(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
        gpu_test_wait();
}

void gpu_test_free(void *device) {
        gpu_test_ok(cudaFree(device));
}

const size_t *gpu_test_counts(void) {
        static const size_t counts[] = {0,  1,  2,   3,   7,   8,    9,    31,   32,
                                        33, 63, 255, 256, 257, 1000, 4097, 9999, SIZE_MAX};
        return counts;
}

static uint32_t mixed(uint32_t x) {
        x = (x ^ x >> 16) * 0x7feb352du;
        x = (x ^ x >> 15) * 0x846ca68bu;
        return x ^ x >> 16;
}

void gpu_test_fill(float *x, size_t count, uint32_t seed, bool special) {
        static const uint32_t specials[] = {
                0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00400000, 0x00800000, 0x80800001,
                0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001,
                0xffbfffff, 0x477fefff, 0x477ff000, 0x47800000, 0x387fc000, 0x33000000, 0x33000001,
                0x3f800000, 0x3f808000, 0x3f818000, 0x7f7f8000};
        for (size_t i = 0; i < count; i++) {
                uint32_t r = mixed((uint32_t) i * 2654435769u + seed);
                uint32_t bits = (r & 0x807fffffu) | (120u + r % 13 % 8) << 23;
                if (special && r % 5 == 0)
                        bits = specials[r / 5 % (sizeof specials / sizeof *specials)];
                else if (special && r % 5 == 1)
                        bits = mixed(r); /* of any size */
                memcpy(&x[i], &bits, sizeof bits);
        }
}

void gpu_test_same_floats(const float *got, const float *wanted, size_t count, const char *what) {
        for (size_t i = 0; i < count; i++) {
                uint32_t g, w;
                memcpy(&g, &got[i], sizeof g);
                memcpy(&w, &wanted[i], sizeof w);
                if (g != w && !(isnan(got[i]) && isnan(wanted[i])))
                        fail_msg("%s[%zu] of %zu: %08x (%g), %08x (%g) is right", what, i, count, g,
                                 (double) got[i], w, (double) wanted[i]);
        }
}

void gpu_test_same_bytes(const void *got, const void *wanted, size_t bytes, const char *what) {
        const unsigned char *g = got, *w = wanted;
        for (size_t i = 0; i < bytes; i++)
                if (g[i] != w[i])
                        fail_msg("%s: byte %zu of %zu is %02x, %02x is right", what, i, bytes, g[i],
                                 w[i]);
}
