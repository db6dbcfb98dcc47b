/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/embedding.h"
#include "tests/unit/gradient.h"

enum { B = 2, T = 3, C = 5, V = 4 };

static void test_values_and_gradients(void **state) {
        static const uint32_t tokens[B * T] = {0, 3, 3, 1, 0, 3};
        float wte[V * C], wpe[T * C], out[B * T * C], dout[B * T * C];
        float dwte[V * C] = {0}, dwpe[T * C] = {0};

        gradient_fill(wte, V * C, 1);
        gradient_fill(wpe, T * C, 2);
        gradient_fill(dout, B * T * C, 3);
        embedding_forward(out, tokens, wte, wpe, B, T, C);
        embedding_backward(dwte, dwpe, dout, tokens, B, T, C);
        for (size_t c = 0; c < C; c++) {
                for (size_t row = 0; row < B * T; row++)
                        assert_true(out[row * C + c] ==
                                    wte[tokens[row] * C + c] + wpe[row % T * C + c]);
                /* The sums of the rows where they occur, in the order of the rows. */
                float token3 = 0.0f + dout[1 * C + c] + dout[2 * C + c] + dout[5 * C + c];
                float position1 = 0.0f + dout[1 * C + c] + dout[4 * C + c];
                assert_true(dwte[3 * C + c] == token3);
                assert_true(dwte[2 * C + c] == 0.0f);
                assert_true(dwpe[1 * C + c] == position1);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_values_and_gradients),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
