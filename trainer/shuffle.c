/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/shuffle.h"
#include "kernels/philox.h"

enum { ROUNDS = 6 };

static uint64_t permute(uint64_t seed, uint64_t epoch, uint64_t x, unsigned half_bits) {
        uint64_t mask = (UINT64_C(1) << half_bits) - 1;
        uint64_t left = x >> half_bits, right = x & mask;

        for (uint32_t round = 0; round < ROUNDS; round++) {
                struct philox_block r = philox_draw(seed, PHILOX_SHUFFLE, (uint32_t) right, round,
                                                    (uint32_t) epoch, (uint32_t) (epoch >> 32));
                uint64_t next = left ^ (r.word[0] & mask);
                left = right;
                right = next;
        }
        return left << half_bits | right;
}

uint64_t shuffle_sample(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t count) {
        unsigned half_bits = 1;

        while (half_bits < 31 && (UINT64_C(1) << (2 * half_bits)) < count)
                half_bits++;
        do
                position = permute(seed, epoch, position, half_bits);
        while (position >= count);
        return position;
}
