/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/layer_test.h"

static const struct dropout_site sites[] = {
        {.seed = 42, .step = 7, .sample = 100, .layer = 3, .probability = 0.25f},
        {.seed = 1ull << 40 | 5,
         .step = 1ull << 33,
         .sample = (1ull << 32) - 2,
         .layer = 9,
         .probability = 0.9f},
        {.seed = 0, .step = 0, .sample = 0, .layer = 0, .probability = 0.0f},
};

static void check(struct dropout_site site, size_t samples, size_t elements, enum gpu_type type) {
        size_t count = samples * elements;
        struct array in = array_random(count, 1, 2.0f, type), out = array_new(NULL, count, type);
        uint8_t *mask = malloc(count + 1), *wanted_mask = malloc(count + 1);
        uint8_t *device_mask = gpu_test_new(count);
        float *wanted = calloc(count + 1, sizeof(float));

        assert_true(mask && wanted_mask && wanted);
        array_plant(&in, 2);
        gpu_test_ok(gpu_dropout_forward(gpu_test_stream(), out.device, device_mask, in.device,
                                        samples, elements, site, type));
        array_read(&out);
        gpu_test_fetch(mask, device_mask, count);
        dropout_forward(wanted, wanted_mask, in.value, samples, elements, &site);
        assert_memory_equal(mask, wanted_mask, count);
        array_equals(&out, wanted, "dropout");

        /* din may be dout */
        gpu_test_ok(gpu_dropout_backward(gpu_test_stream(), in.device, in.device, device_mask,
                                         count, site.probability, type));
        array_read(&in);
        array_equals(&in, wanted, "dropout backward");
        array_free(&in);
        array_free(&out);
        gpu_test_free(device_mask);
        free(mask);
        free(wanted_mask);
        free(wanted);
}

static void test_dropout(void **state) {
        for (size_t s = 0; s < sizeof(sites) / sizeof(sites[0]); s++)
                for (size_t t = 0; t < 3; t++) {
                        check(sites[s], 3, 341, array_types[t]);
                        check(sites[s], 5, 3, array_types[t]);
                        check(sites[s], 1, 1024, array_types[t]);
                        check(sites[s], 0, 7, array_types[t]);
                        check(sites[s], 7, 0, array_types[t]);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_dropout),
                cmocka_unit_test(layers_same_bits),
        };
        int failed = 0;

        while (layers_next_schedule())
                failed += cmocka_run_group_tests(tests, NULL, NULL);
        return failed;
}
