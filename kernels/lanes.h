/* SPDX-License-Identifier: Apache-2.0
 *
 * lanes.h - reductions in one fixed order: element i goes to lane i % LANES, the lanes are added
 * pairwise at the end. The order depends on the count alone, so that the result is the same bits on
 * every machine, and a compiler may still keep the lanes in vector registers. Private to kernels/.
 */
#ifndef CAIRN_KERNELS_LANES_H
#define CAIRN_KERNELS_LANES_H

#include "kernels/host_device.h"
#include <stddef.h>

enum { LANES = 8 };

HOST_DEVICE static inline float lanes_total_f32(float lane[LANES]) {
        for (size_t width = LANES / 2; width > 0; width /= 2)
                for (size_t l = 0; l < width; l++)
                        lane[l] += lane[l + width];
        return lane[0];
}

HOST_DEVICE static inline float lanes_sum_f32(const float *x, size_t count) {
        float lane[LANES] = {0};
        size_t i = 0;
        for (; i + LANES <= count; i += LANES)
                for (size_t l = 0; l < LANES; l++)
                        lane[l] += x[i + l];
        for (size_t l = 0; i + l < count; l++)
                lane[l] += x[i + l];
        return lanes_total_f32(lane);
}

HOST_DEVICE static inline float lanes_dot_f32(const float *x, const float *y, size_t count) {
        float lane[LANES] = {0};
        size_t i = 0;
        for (; i + LANES <= count; i += LANES)
                for (size_t l = 0; l < LANES; l++)
                        lane[l] += x[i + l] * y[i + l];
        for (size_t l = 0; i + l < count; l++)
                lane[l] += x[i + l] * y[i + l];
        return lanes_total_f32(lane);
}

#endif
