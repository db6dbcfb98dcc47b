/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/layer_test.h"
#include "kernels/cast.h"
#include "kernels/digest.h"

enum { SCHEDULES = 3 };

const enum gpu_type array_types[3] = {GPU_F32, GPU_BF16, GPU_F16};
static unsigned schedule;
static uint64_t seen, seen_first; /* digest of everything that was read under a schedule */

static size_t element_bytes(enum gpu_type type) {
        return type == GPU_F32 ? 4 : 2;
}

static uint16_t narrow(float x, enum gpu_type type) {
        return type == GPU_BF16 ? cast_bf16_of_f32(x) : cast_f16_of_f32(x);
}

static float widen(uint16_t x, enum gpu_type type) {
        return type == GPU_BF16 ? cast_f32_of_bf16(x) : cast_f32_of_f16(x);
}

float array_rounded(float x, enum gpu_type type) {
        return type == GPU_F32 ? x : widen(narrow(x, type), type);
}

/* ---- arrays ---- */

struct array array_new(const float *values, size_t count, enum gpu_type type) {
        struct array a = {.count = count, .type = type};

        a.value = calloc(count + 1, sizeof(float));
        assert_non_null(a.value);
        for (size_t i = 0; i < count; i++)
                a.value[i] = values ? values[i] : -77.0f;
        a.device = gpu_test_new(count * element_bytes(type));
        array_put(&a);
        return a;
}

struct array array_random(size_t count, uint32_t stream, float scale, enum gpu_type type) {
        struct array a = array_new(NULL, count, type);

        gradient_fill(a.value, count, stream);
        for (size_t i = 0; i < count; i++)
                a.value[i] *= scale;
        array_put(&a);
        return a;
}

void array_put(struct array *a) {
        uint16_t *half = calloc(a->count + 1, sizeof(*half));

        assert_non_null(half);
        for (size_t i = 0; i < a->count; i++) {
                a->value[i] = array_rounded(a->value[i], a->type);
                if (a->type != GPU_F32)
                        half[i] = narrow(a->value[i], a->type);
        }
        gpu_test_free(a->device);
        a->device = gpu_test_copy(a->type == GPU_F32 ? (void *) a->value : half,
                                  a->count * element_bytes(a->type));
        free(half);
}

void array_read(struct array *a) {
        uint16_t *half = calloc(a->count + 1, sizeof(*half));

        assert_non_null(half);
        void *bits = a->type == GPU_F32 ? (void *) a->value : half;
        size_t bytes = a->count * element_bytes(a->type);
        gpu_test_fetch(bits, a->device, bytes);
        seen = digest_combine(seen, digest_bytes(bits, bytes));
        for (size_t i = 0; i < a->count && a->type != GPU_F32; i++)
                a->value[i] = widen(half[i], a->type);
        free(half);
}

void array_free(struct array *a) {
        gpu_test_free(a->device);
        free(a->value);
}

void array_plant(struct array *a, uint32_t stream) {
        static const float odd[] = {NAN,   INFINITY, -INFINITY, 1e-41f, -3e-42f,
                                    6e-8f, 3e38f,    -6e4f,     0.0f,   -0.0f};
        enum { ODD = sizeof(odd) / sizeof(odd[0]) };

        for (size_t k = 0; k < ODD && a->count > 0; k++) {
                struct philox_block r = {{(uint32_t) k, stream, 0, 0}};
                a->value[philox4x32(r, 3, 5).word[0] % a->count] = odd[k];
        }
        array_put(a);
}

/* ---- comparisons ---- */

void array_close(const struct array *a, const double *wanted, const char *what) {
        double limit = a->type == GPU_F32 ? 1e-5 : 1e-2, error = 0.0, norm = 0.0;

        for (size_t i = 0; i < a->count; i++) {
                double d = (double) a->value[i] - wanted[i];
                error += d * d;
                norm += wanted[i] * wanted[i];
        }
        if (sqrt(error) <= limit * sqrt(norm))
                return;
        fail_msg("%s, type %d: relative error %.3g, limit %.0e", what, (int) a->type,
                 sqrt(error / norm), limit);
}

void array_equals(const struct array *a, const float *reference, const char *what) {
        float *wanted = calloc(a->count + 1, sizeof(*wanted));

        assert_non_null(wanted);
        for (size_t i = 0; i < a->count; i++)
                wanted[i] = array_rounded(reference[i], a->type);
        gpu_test_same_floats(a->value, wanted, a->count, what);
        free(wanted);
}

void array_like(const struct array *a, const float *reference, const char *what) {
        double limit = a->type == GPU_F32 ? 1e-4 : 3e-2; /* the sums are of numbers around 1 */

        for (size_t i = 0; i < a->count; i++) {
                float wanted = array_rounded(reference[i], a->type), got = a->value[i];
                bool same = isnan(wanted)   ? isnan(got)
                            : isinf(wanted) ? got == wanted
                                            : fabs((double) got - (double) wanted) <=
                                                      limit * (0.1 + fabs((double) wanted));
                if (!same)
                        fail_msg("%s[%zu] of %zu, type %d: %.9g, wanted %.9g", what, i, a->count,
                                 (int) a->type, (double) got, (double) wanted);
        }
}

/* ---- schedules ---- */

bool layers_next_schedule(void) {
        char seed[16];

        if (schedule == SCHEDULES)
                return false;
        (void) snprintf(seed, sizeof(seed), "%u", ++schedule);
        (void) setenv("CAIRN_SIM_SEED", seed, 1);
        /* A race is seen under any schedule; looking once is enough, and slow. */
        if (schedule > 1)
                (void) setenv("CAIRN_SIM_ACCESSES", "0", 1);
        seen = 0;
        return true;
}

void layers_same_bits(void **state) {
        if (schedule == 1)
                seen_first = seen;
        assert_true(seen != 0);
        assert_int_equal(seen, seen_first);
}
