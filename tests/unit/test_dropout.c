/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/dropout.h"
#include "tests/unit/gradient.h"

enum { SAMPLES = 4, ELEMENTS = 1003, N = SAMPLES * ELEMENTS };
static const struct dropout_site base = {
        .seed = 42, .step = 7, .sample = 100, .layer = 3, .probability = 0.25f};

static void fill(uint8_t *mask, struct dropout_site site, size_t samples) {
        static float in[N], out[N];

        dropout_forward(out, mask, in, samples, ELEMENTS, &site);
}

static void test_values(void **state) {
        static float in[N], out[N], back[N];
        static uint8_t mask[N];
        size_t kept = 0;
        float scale = 1.0f / 0.75f;

        gradient_fill(in, N, 1);
        dropout_forward(out, mask, in, SAMPLES, ELEMENTS, &base);
        for (size_t i = 0; i < N; i++) {
                kept += mask[i];
                assert_true(out[i] == (mask[i] ? in[i] * scale : in[i] * 0.0f));
        }
        assert_true(fabs((double) kept / N - 0.75) < 0.03);
        dropout_backward(back, in, mask, N, 0.25f);
        assert_memory_equal(back, out, sizeof(out));
}

static void test_each_key_matters(void **state) {
        static uint8_t mask[N], other[N];
        struct dropout_site sites[6];

        fill(mask, base, 1);
        for (size_t i = 0; i < 6; i++)
                sites[i] = base;
        sites[0].seed++;
        sites[1].step++;
        sites[2].sample++;
        sites[3].layer++;
        sites[4].step += UINT64_C(1) << 32;
        sites[5].sample += UINT64_C(1) << 32;
        for (size_t i = 0; i < 6; i++) {
                size_t same = 0;
                fill(other, sites[i], 1);
                for (size_t j = 0; j < ELEMENTS; j++)
                        same += mask[j] == other[j];
                /* 0.75^2 + 0.25^2 of two independent masks agree. */
                assert_true(fabs((double) same / ELEMENTS - 0.625) < 0.06);
        }
}

/* A batch of four and four batches of one drop the same elements. */
static void test_independent_of_the_batch(void **state) {
        static uint8_t whole[N], part[N];
        struct dropout_site site = base;

        fill(whole, base, SAMPLES);
        for (size_t s = 0; s < SAMPLES; s++) {
                site.sample = base.sample + s;
                fill(part, site, 1);
                assert_memory_equal(whole + s * ELEMENTS, part, ELEMENTS);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values),
                cmocka_unit_test(test_each_key_matters),
                cmocka_unit_test(test_independent_of_the_batch),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
