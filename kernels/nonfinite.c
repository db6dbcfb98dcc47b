/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/nonfinite.h"
#include <string.h>

enum { SLICE = 1 << 20 }; /* 32-bit counts vectorise; a slice cannot overflow them */

uint64_t nonfinite_count_f32(const float *x, size_t count) {
        uint64_t total = 0;

        for (size_t begin = 0; begin < count; begin += SLICE) {
                size_t end = count - begin < SLICE ? count : begin + SLICE;
                uint32_t found = 0;
                for (size_t i = begin; i < end; i++) {
                        uint32_t bits;
                        memcpy(&bits, &x[i], sizeof(bits));
                        found += (bits & 0x7f800000u) == 0x7f800000u;
                }
                total += found;
        }
        return total;
}

uint64_t nonfinite_count_bf16(const uint16_t *x, size_t count) {
        uint64_t total = 0;

        for (size_t i = 0; i < count; i++)
                total += (x[i] & 0x7f80u) == 0x7f80u;
        return total;
}
