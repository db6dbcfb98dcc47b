/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/digest.h"
#include "tests/test.h"

static void test_every_bit_and_length_counts(void **state) {
        unsigned char bytes[41] = {0};
        uint64_t seen[42 + 41 * 8];
        size_t count = 0;

        for (size_t length = 0; length <= sizeof(bytes); length++)
                seen[count++] = digest_bytes(bytes, length);
        for (size_t bit = 0; bit < 8 * sizeof(bytes); bit++) {
                bytes[bit / 8] ^= (unsigned char) (1 << bit % 8);
                seen[count++] = digest_bytes(bytes, sizeof(bytes));
                bytes[bit / 8] ^= (unsigned char) (1 << bit % 8);
        }
        for (size_t i = 0; i < count; i++)
                for (size_t j = 0; j < i; j++)
                        assert_true(seen[i] != seen[j]);
}

static void test_exchanged_words_differ(void **state) {
        uint64_t ab[2] = {1, 2}, ba[2] = {2, 1};

        assert_true(digest_bytes(ab, 16) != digest_bytes(ba, 16));
        assert_true(digest_combine(digest_combine(0, 1), 2) !=
                    digest_combine(digest_combine(0, 2), 1));
}

/* Digests are compared between versions and devices: these values are fixed. SplitMix64 seeded with
 * 0 gives e220a8397b1dcdaf first. */
static void test_fixed_values(void **state) {
        assert_true(digest_mix(0) == UINT64_C(0xe220a8397b1dcdaf));
        assert_true(digest_bytes("", 0) == UINT64_C(0xe220a8397b1dcdaf));
        uint64_t word = 0x0807060504030201;
        assert_true(digest_bytes("\1\2\3\4\5\6\7\10", 8) ==
                    digest_mix(8) + digest_mix(word ^ digest_mix(1)));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_every_bit_and_length_counts),
                cmocka_unit_test(test_exchanged_words_differ),
                cmocka_unit_test(test_fixed_values),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
