/* SPDX-License-Identifier: Apache-2.0
 *
 * exp.h - e^x in single precision, the same bits on every host and device: basic operations only,
 * no branch, so that loops over it vectorise. Error below 2 ulp; the argument is clamped to
 * [-87.33, 88.37], NaN stays NaN. Method: Cody-Waite reduction and the minimax polynomial of
 * Moshier's Cephes library. Private to kernels/.
 */
#ifndef CAIRN_KERNELS_EXP_H
#define CAIRN_KERNELS_EXP_H

#include "kernels/host_device.h"
#include <stdint.h>
#include <string.h>

HOST_DEVICE static inline float exp_f32(float x) {
        const float round_magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
        uint32_t bits, magic_bits;
        float scale;

        x = x < -87.33f ? -87.33f : x;
        x = x > 88.37f ? 88.37f : x;
        float shifted = x * 1.44269504088896341f + round_magic;
        float n = shifted - round_magic;
        float r = x - n * 0.693359375f;
        r = r - n * -2.12194440e-4f;
        float p = 1.9875691500e-4f;
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        p = p * (r * r) + r + 1.0f;
        /* 2^n from the low bits of the shifted value: a conversion to int would be undefined for
         * NaN. */
        memcpy(&bits, &shifted, sizeof(bits));
        memcpy(&magic_bits, &round_magic, sizeof(magic_bits));
        bits = (bits - magic_bits + 127u) << 23;
        memcpy(&scale, &bits, sizeof(scale));
        return p * scale;
}

#endif
