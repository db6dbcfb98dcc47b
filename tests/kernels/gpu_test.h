/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_test.h - what tests of kernels share. They are C programs against kernels/gpu.h and the
 * runtime's header, so that the same sources run on the simulator and on a GPU.
 *
 *     float *x = gpu_test_copy(host, bytes);         // device memory with these bytes
 *     gpu_test_ok(gpu_ema(gpu_test_stream(), ...));
 *     gpu_test_fetch(host, x, bytes);                // waits for the stream
 *     gpu_test_free(x);
 *
 * Errors end the test. Device memory ends exactly at its last byte, so that accesses behind it are
 * noticed (by the simulator; on a GPU by compute-sanitizer).
 */
#ifndef CAIRN_TESTS_KERNELS_GPU_TEST_H
#define CAIRN_TESTS_KERNELS_GPU_TEST_H

#include "kernels/gpu.h"
#include "tests/test.h"
#include <stdint.h>

/* Device 0's, of the process; opened by the first call. */
void *gpu_test_stream(void);
void gpu_test_ok(int error);
/* What the stream still has to do is done, without an error. */
void gpu_test_wait(void);

void *gpu_test_new(size_t bytes); /* holds garbage; NULL for 0 bytes */
void *gpu_test_copy(const void *host, size_t bytes);
void gpu_test_fetch(void *host, const void *device, size_t bytes);
void gpu_test_free(void *device);

/* 0, 1, 31, 32, 33, 255, 256, 257, ... up to max. Ends with SIZE_MAX. */
const size_t *gpu_test_counts(void);

/* Floats of every kind: normal ones of all sizes, and, where `special`, zeros, denormals,
 * infinities, NaN of both signs and payloads, the largest and the smallest. Always the same. */
void gpu_test_fill(float *x, size_t count, uint32_t seed, bool special);
/* The same bits, any NaN for any NaN. */
void gpu_test_same_floats(const float *got, const float *wanted, size_t count, const char *what);
void gpu_test_same_bytes(const void *got, const void *wanted, size_t bytes, const char *what);

#endif
