/* SPDX-License-Identifier: Apache-2.0
 *
 * gradient.h - for tests of kernels: a scalar reference in double, its gradient by central
 * differences, and repeatable inputs. The kernels' analytic gradients must agree with it.
 */
#ifndef CAIRN_TESTS_GRADIENT_H
#define CAIRN_TESTS_GRADIENT_H

#include "kernels/philox.h"
#include "tests/test.h"
#include <math.h>

/* count values in (-1, 1), another stream for each number. */
static inline void gradient_fill(float *x, size_t count, uint32_t stream) {
        for (size_t i = 0; i < count; i++) {
                struct philox_block r =
                        philox4x32((struct philox_block){{(uint32_t) i, stream, 0, 0}}, 7, 9);
                x[i] = (float) ((double) r.word[0] * 0x1p-31 - 1.0);
        }
}

static inline void gradient_widen(double *target, const float *source, size_t count) {
        for (size_t i = 0; i < count; i++)
                target[i] = (double) source[i];
}

static inline void gradient_close(double got, double wanted, double tolerance, const char *what,
                                  size_t index) {
        if (fabs(got - wanted) <= tolerance * (1.0 + fabs(wanted)))
                return;
        print_error("%s[%zu]: %.9g, wanted %.9g\n", what, index, got, wanted);
        fail();
}

/* objective(x) is differentiable; analytic is what the kernel says. x is restored. */
static inline void gradient_check(double (*objective)(const double *x, void *argument), double *x,
                                  const float *analytic, size_t count, void *argument,
                                  const char *what) {
        const double h = 1e-5;

        for (size_t i = 0; i < count; i++) {
                double at = x[i];
                x[i] = at + h;
                double above = objective(x, argument);
                x[i] = at - h;
                double below = objective(x, argument);
                x[i] = at;
                gradient_close((double) analytic[i], (above - below) / (2 * h), 2e-5, what, i);
        }
}

#endif
