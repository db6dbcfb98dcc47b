/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "trainer/shard.h"

/* Each element of each tensor belongs to exactly one rank, in ascending order. */
static void test_cover(void **state) {
        static const size_t blocks[] = {64, 256, 257, 5000, 70000};

        for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); i++)
                for (uint32_t world = 1; world < 20; world++) {
                        size_t covered = 0, offset = 64, count = blocks[i] - 64;
                        for (uint32_t rank = 0; rank < world; rank++) {
                                struct shard s = shard_of(blocks[i], rank, world);
                                struct shard_part p = shard_part(&s, offset, count);
                                assert_true(s.count % SHARD_CHUNK == 0 && s.whole >= blocks[i]);
                                assert_true(s.whole == world * s.count &&
                                            s.first == rank * s.count);
                                if (p.count == 0)
                                        continue;
                                assert_true(p.in_tensor == covered);
                                assert_true(p.in_shard + s.first == p.in_tensor + offset);
                                assert_true(p.in_shard + p.count <= s.count);
                                covered += p.count;
                        }
                        assert_true(covered == count);
                }
        struct shard s = shard_of(5000, 1, 4);
        assert_true(shard_part(&s, 0, 10).count == 0 && shard_part(&s, 2000, 0).count == 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_cover)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
