/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/digest.h"
#include <endian.h>
#include <string.h>

uint64_t digest_bytes(const void *data, size_t bytes) {
        const unsigned char *p = data;
        size_t words = bytes / 8;
        uint64_t word, digest = digest_mix(bytes);

        for (size_t i = 0; i < words; i++) {
                memcpy(&word, p + 8 * i, sizeof(word));
                digest += digest_mix(le64toh(word) ^ digest_mix(i + 1));
        }
        if (bytes % 8) {
                word = 0;
                memcpy(&word, p + 8 * words, bytes % 8);
                digest += digest_mix(le64toh(word) ^ digest_mix(words + 1));
        }
        return digest;
}
