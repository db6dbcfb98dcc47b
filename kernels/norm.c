/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm.h"
#include "kernels/lanes.h"

static double total(double lane[LANES]) {
        for (size_t width = LANES / 2; width > 0; width /= 2)
                for (size_t l = 0; l < width; l++)
                        lane[l] += lane[l + width];
        return lane[0];
}

double norm_squared_f32(const float *x, size_t count) {
        double lane[LANES] = {0};
        size_t i = 0;

        for (; i + LANES <= count; i += LANES)
                for (size_t l = 0; l < LANES; l++)
                        lane[l] += (double) x[i + l] * (double) x[i + l];
        for (size_t l = 0; i + l < count; l++)
                lane[l] += (double) x[i + l] * (double) x[i + l];
        return total(lane);
}

double sum_f32(const float *x, size_t count) {
        double lane[LANES] = {0};

        for (size_t i = 0; i < count; i++)
                lane[i % LANES] += (double) x[i];
        return total(lane);
}
