/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/philox.h"
#include "tests/test.h"

/* The known answers published with Random123 (kat_vectors, philox4x32 with 10 rounds). */
static void test_known_answers(void **state) {
        static const struct {
                uint32_t counter[4], key[2], answer[4];
        } known[] = {
                {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                 {0xffffffff, 0xffffffff},
                 {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                 {0xa4093822, 0x299f31d0},
                 {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
        };
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
                struct philox_block counter;
                memcpy(counter.word, known[i].counter, sizeof(counter.word));
                struct philox_block r = philox4x32(counter, known[i].key[0], known[i].key[1]);
                assert_memory_equal(r.word, known[i].answer, sizeof(r.word));
        }
}

static void test_purposes_are_apart(void **state) {
        struct philox_block a = philox_draw(1, PHILOX_DROPOUT, 1, 2, 3, 4);
        struct philox_block b = philox_draw(1, PHILOX_SHUFFLE, 1, 2, 3, 4);
        struct philox_block c = philox_draw(1, PHILOX_DROPOUT, 1, 2, 3, 4);

        assert_memory_not_equal(a.word, b.word, sizeof(a.word));
        assert_memory_equal(a.word, c.word, sizeof(a.word));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_known_answers),
                cmocka_unit_test(test_purposes_are_apart),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
