/* SPDX-License-Identifier: Apache-2.0
 *
 * philox.h - the counter-based generator Philox4x32-10: 128 random bits as a pure function of a
 * 128-bit counter and a 64-bit key, so that a random stream has no state to save.
 * Source: Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011); the
 * test holds its published known answers. Pure, any thread, host and device.
 */
#ifndef CAIRN_KERNELS_PHILOX_H
#define CAIRN_KERNELS_PHILOX_H

#include "kernels/host_device.h"
#include <stdint.h>

struct philox_block {
        uint32_t word[4];
};

HOST_DEVICE static inline struct philox_block philox4x32(struct philox_block counter, uint32_t key0,
                                                         uint32_t key1) {
        for (int round = 0; round < 10; round++) {
                uint64_t product0 = (uint64_t) 0xD2511F53u * counter.word[0];
                uint64_t product1 = (uint64_t) 0xCD9E8D57u * counter.word[2];
                const struct philox_block next = {{
                        (uint32_t) (product1 >> 32) ^ counter.word[1] ^ key0,
                        (uint32_t) product1,
                        (uint32_t) (product0 >> 32) ^ counter.word[3] ^ key1,
                        (uint32_t) product0,
                }};
                counter = next;
                key0 += 0x9E3779B9u;
                key1 += 0xBB67AE85u;
        }
        return counter;
}

/* Purposes keep the streams of one seed apart: they enter the key. */
enum philox_purpose { PHILOX_DROPOUT = 1, PHILOX_INITIALISE = 2, PHILOX_SHUFFLE = 3 };

HOST_DEVICE static inline struct philox_block philox_draw(uint64_t seed,
                                                          enum philox_purpose purpose, uint32_t c0,
                                                          uint32_t c1, uint32_t c2, uint32_t c3) {
        uint32_t mixed = (uint32_t) (seed >> 32) ^ (uint32_t) purpose * 0x85EBCA6Bu;
        const struct philox_block counter = {{c0, c1, c2, c3}};
        return philox4x32(counter, (uint32_t) seed, mixed);
}

#endif
