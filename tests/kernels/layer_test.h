/* SPDX-License-Identifier: Apache-2.0
 *
 * layer_test.h - for tests of the layers' kernels: arrays on the device with their widened values
 * beside them, comparison with a reference in double and with the C reference. Every array that is
 * read also enters a digest: the same test under other schedules has to give the same bits.
 * Failures end the test. Beside gpu_test.h, for whose launches and copies its rules hold.
 */
#ifndef CAIRN_TESTS_KERNELS_LAYER_TEST_H
#define CAIRN_TESTS_KERNELS_LAYER_TEST_H

#include "tests/kernels/gpu_test.h"
#include "tests/unit/gradient.h"

struct array {
        void *device; /* what a launcher is given */
        float *value; /* what it holds, exactly: rounded to the type */
        size_t count;
        enum gpu_type type;
};

extern const enum gpu_type array_types[3];

/* `count` values rounded to `type`; values NULL: a pattern that is no result. */
struct array array_new(const float *values, size_t count, enum gpu_type type);
struct array array_random(size_t count, uint32_t stream, float scale, enum gpu_type type);
void array_put(struct array *a);  /* value, rounded, to the device */
void array_read(struct array *a); /* waits for the stream; the device's content to value */
void array_free(struct array *a);

/* Relative L2 error at most 1e-5 (FP32) or 1e-2; the array was read. */
void array_close(const struct array *a, const double *wanted, const char *what);
/* The bits of the C reference's result, rounded to the array's type. NaN equals NaN. */
void array_equals(const struct array *a, const float *reference, const char *what);
/* NaN and infinities exactly where the C reference has them; the rest close, each by itself. */
void array_like(const struct array *a, const float *reference, const char *what);

/* The value as an element of the type holds it. */
float array_rounded(float x, enum gpu_type type);
/* NaN, infinities, subnormal and huge values among the others; places depend on the stream. */
void array_plant(struct array *a, uint32_t stream);

/* The tests once under each schedule of the simulator:
 *     while (layers_next_schedule()) failed += cmocka_run_group_tests(tests, NULL, NULL);
 * and layers_same_bits as the last of the tests: what was read has to be the first schedule's. */
bool layers_next_schedule(void);
void layers_same_bits(void **state);

#endif
