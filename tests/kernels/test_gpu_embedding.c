/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embedding.h"
#include "tests/kernels/layer_test.h"

struct shape {
        size_t batch, time, channels, vocabulary;
};
/* More tokens than a block looks at in one go; channels that are not whole blocks. */
static const struct shape shapes[] = {
        {2, 3, 5, 4}, {3, 171, 3, 7}, {1, 19, 300, 2}, {5, 1, 1, 30}, {0, 3, 5, 4}, {2, 3, 0, 4},
};

/* Token 0 is frequent, the last one does not occur. */
static uint32_t *draw_tokens(size_t count, size_t vocabulary) {
        uint32_t *tokens = calloc(count + 1, sizeof(*tokens));

        assert_non_null(tokens);
        for (size_t i = 0; i < count; i++) {
                struct philox_block r = {{(uint32_t) i, 0, 0, 0}};
                uint32_t word = philox4x32(r, 1, 2).word[0];
                tokens[i] = word % 2 ? 0 : (uint32_t) (word / 2 % (vocabulary - 1));
        }
        return tokens;
}

/* Sums in the order of the tokens are the C reference's bits. */
static void check(struct shape s, enum gpu_type type, bool planted) {
        size_t rows = s.batch * s.time;
        uint32_t *tokens = draw_tokens(rows, s.vocabulary);
        void *device_tokens = gpu_test_copy(tokens, rows * sizeof(*tokens));
        struct array wte = array_random(s.vocabulary * s.channels, 1, 1.0f, type);
        struct array wpe = array_random(s.time * s.channels, 2, 1.0f, type);
        struct array out = array_new(NULL, rows * s.channels, type);
        struct array dout = array_random(rows * s.channels, 3, 1.0f, type);
        struct array dwte = array_random(wte.count, 4, 1.0f, GPU_F32);
        struct array dwpe = array_random(wpe.count, 5, 1.0f, GPU_F32);
        float *wanted = calloc(out.count + 1, sizeof(float));
        float *dwte_wanted = calloc(wte.count + 1, sizeof(float));
        float *dwpe_wanted = calloc(wpe.count + 1, sizeof(float));

        if (planted) {
                array_plant(&wte, 6);
                array_plant(&dout, 7);
        }
        gpu_test_ok(gpu_embedding_forward(gpu_test_stream(), out.device, device_tokens, wte.device,
                                          wpe.device, s.batch, s.time, s.channels, type));
        array_read(&out);
        embedding_forward(wanted, tokens, wte.value, wpe.value, s.batch, s.time, s.channels);
        array_equals(&out, wanted, "embedding");

        memcpy(dwte_wanted, dwte.value, wte.count * sizeof(float));
        memcpy(dwpe_wanted, dwpe.value, wpe.count * sizeof(float));
        gpu_test_ok(gpu_embedding_backward(gpu_test_stream(), dwte.device, dwpe.device, dout.device,
                                           device_tokens, s.batch, s.time, s.channels, s.vocabulary,
                                           type));
        array_read(&dwte);
        array_read(&dwpe);
        embedding_backward(dwte_wanted, dwpe_wanted, dout.value, tokens, s.batch, s.time,
                           s.channels);
        array_equals(&dwte, dwte_wanted, "dwte");
        array_equals(&dwpe, dwpe_wanted, "dwpe");
        array_free(&wte);
        array_free(&wpe);
        array_free(&out);
        array_free(&dout);
        array_free(&dwte);
        array_free(&dwpe);
        gpu_test_free(device_tokens);
        free(tokens);
        free(wanted);
        free(dwte_wanted);
        free(dwpe_wanted);
}

static void test_embedding(void **state) {
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
                for (size_t t = 0; t < 3; t++) {
                        check(shapes[s], array_types[t], false);
                        check(shapes[s], array_types[t], true);
                }
}

/* More rows of dwte than a launch has blocks. */
static void test_large_vocabulary(void **state) {
        check((struct shape){.batch = 1, .time = 5, .channels = 1, .vocabulary = 4099}, GPU_F32,
              false);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_embedding),
                cmocka_unit_test(test_large_vocabulary),
                cmocka_unit_test(layers_same_bits),
        };
        int failed = 0;

        while (layers_next_schedule())
                failed += cmocka_run_group_tests(tests, NULL, NULL);
        return failed;
}
