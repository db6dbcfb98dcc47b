/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/shuffle.h"

static void test_each_sample_once(void **state) {
        static const uint64_t counts[] = {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097};
        static unsigned char seen[4097];

        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
                for (uint64_t epoch = 0; epoch < 3; epoch++) {
                        memset(seen, 0, sizeof(seen));
                        for (uint64_t p = 0; p < counts[i]; p++) {
                                uint64_t sample = shuffle_sample(5, epoch, p, counts[i]);
                                assert_true(sample < counts[i] && !seen[sample]);
                                seen[sample] = 1;
                        }
                }
}

static void test_orders_differ(void **state) {
        size_t same_seed = 0, same_epoch = 0, in_place = 0;

        for (uint64_t p = 0; p < 1000; p++) {
                uint64_t sample = shuffle_sample(1, 0, p, 1000);
                same_seed += sample == shuffle_sample(2, 0, p, 1000);
                same_epoch += sample == shuffle_sample(1, 1, p, 1000);
                in_place += sample == p;
        }
        assert_true(same_seed < 10 && same_epoch < 10 && in_place < 10);
}

/* Beyond 2^32 samples positions still spread. */
static void test_large(void **state) {
        uint64_t count = UINT64_C(5000000000), top = 0;

        for (uint64_t p = 0; p < 100; p++) {
                uint64_t sample = shuffle_sample(1, 0, p, count);
                assert_true(sample < count);
                top += sample >= count / 2;
        }
        assert_true(top > 25 && top < 75);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_each_sample_once),
                cmocka_unit_test(test_orders_differ),
                cmocka_unit_test(test_large),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
