/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cross_entropy.h"
#include "kernels/clones.h"
#include "kernels/exp.h"
#include "kernels/lanes.h"
#include <math.h>

CLONES void cross_entropy_forward(float *restrict losses, float *restrict logits,
                                  const uint32_t *restrict targets, size_t rows, size_t classes) {
        for (size_t row = 0; row < rows; row++) {
                float *x = logits + row * classes;
                float max = x[0];
                for (size_t c = 1; c < classes; c++)
                        max = x[c] > max ? x[c] : max;
                float target = x[targets[row]] - max;
                for (size_t c = 0; c < classes; c++)
                        x[c] = exp_f32(x[c] - max);
                float sum = lanes_sum_f32(x, classes);
                float inverse = 1.0f / sum;
                for (size_t c = 0; c < classes; c++)
                        x[c] *= inverse;
                /* From the logits, not log(p): p may have underflowed. */
                losses[row] = logf(sum) - target;
        }
}

void cross_entropy_backward(float *restrict probabilities, const uint32_t *restrict targets,
                            size_t rows, size_t classes, float scale) {
        for (size_t row = 0; row < rows; row++) {
                float *p = probabilities + row * classes;
                p[targets[row]] -= 1.0f;
                for (size_t c = 0; c < classes; c++)
                        p[c] *= scale;
        }
}
