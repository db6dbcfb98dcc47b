/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.h - a 64-bit digest of bytes for comparing copies (not against an adversary).
 *
 *     digest = mix(bytes) + sum over i of mix(word[i] ^ mix(i + 1))  (mod 2^64)
 *
 * word[i] is the i-th little-endian 8-byte word, the last one zero padded; mix is the finaliser of
 * SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) after adding its constant. Each word is mixed with
 * its place, so exchanged words are noticed; the sum is exact integer addition, so threads and
 * devices may add in any order. Any thread.
 */
#ifndef CAIRN_KERNELS_DIGEST_H
#define CAIRN_KERNELS_DIGEST_H

#include "kernels/host_device.h"
#include <stddef.h>
#include <stdint.h>

HOST_DEVICE static inline uint64_t digest_mix(uint64_t x) {
        x += 0x9E3779B97F4A7C15u;
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        return x ^ (x >> 31);
}

uint64_t digest_bytes(const void *data, size_t bytes);
/* The digest of a sequence of digests or numbers: order matters. */
HOST_DEVICE static inline uint64_t digest_combine(uint64_t so_far, uint64_t next) {
        return digest_mix(so_far ^ digest_mix(next));
}

#endif
