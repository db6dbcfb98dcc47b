/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/model.h"
#include <math.h>

static void test_layout(void **state) {
        struct layer_weights layers[2];
        struct weights w;
        struct model m;
        size_t end = 0;

        assert_int_equal(model_init(&m, 2, 2, 10, 7, 33, NULL), 0);
        assert_true(m.tensor_count == OUTER_TENSORS + 2 * LAYER_TENSORS);
        for (size_t i = 0; i < m.tensor_count; i++) {
                assert_true(m.tensor[i].offset % 64 == 0 && m.tensor[i].offset >= end);
                end = m.tensor[i].offset + m.tensor[i].count;
                for (size_t j = 0; j < i; j++)
                        assert_string_not_equal(m.tensor[i].name, m.tensor[j].name);
        }
        assert_true(end <= m.block_count);
        assert_string_equal(m.tensor[OUTER_TENSORS + LAYER_TENSORS + 2].name,
                            "h.1.attn.c_attn.weight");
        assert_true(m.tensor[OUTER_TENSORS + LAYER_TENSORS + 2].shape[0] == 30);

        float *block = calloc(m.block_count, sizeof(float));
        model_view(&m, &w, layers, block, sizeof(float));
        assert_ptr_equal(w.outer.wpe, block + m.tensor[1].offset);
        assert_ptr_equal(w.layer[1].qkv_weight, block + m.tensor[OUTER_TENSORS + 14].offset);
        assert_ptr_equal(w.layer[1].down_bias, block + m.tensor[m.tensor_count - 1].offset);
        model_view(&m, &w, layers, block, sizeof(uint16_t));
        assert_ptr_equal(w.outer.wpe, (uint16_t *) (void *) block + m.tensor[1].offset);
        assert_ptr_equal(w.layer[1].down_bias,
                         (uint16_t *) (void *) block + m.tensor[m.tensor_count - 1].offset);
        free(block);
        model_done(&m);
        model_done(NULL);
}

static void initialise(const struct model *m, float *block, uint64_t seed) {
        for (size_t i = 0; i < m->tensor_count; i++)
                model_initialise(m, i, block + m->tensor[i].offset, seed);
}

static void test_first_values(void **state) {
        struct model m;
        double sum = 0, squares = 0;

        assert_int_equal(model_init(&m, 1, 2, 32, 64, 256, NULL), 0);
        float *a = calloc(m.block_count, sizeof(float)), *b = calloc(m.block_count, sizeof(float));
        initialise(&m, a, 1);
        initialise(&m, b, 1);
        assert_memory_equal(a, b, m.block_count * sizeof(float));
        for (size_t i = 0; i < m.tensor[0].count; i++) {
                sum += (double) a[i];
                squares += (double) a[i] * (double) a[i];
        }
        double n = (double) m.tensor[0].count;
        assert_true(fabs(sum / n) < 0.001 && fabs(sqrt(squares / n) - 0.02) < 0.001);
        assert_true(a[m.tensor[2].offset] == 1.0f && a[m.tensor[3].offset] == 0.0f);
        initialise(&m, b, 2);
        assert_memory_not_equal(a, b, m.block_count * sizeof(float));
        free(a);
        free(b);
        model_done(&m);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_layout),
                cmocka_unit_test(test_first_values),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
