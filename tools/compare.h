/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.h - do two arrays of elements hold the same? Of one dtype the bits decide (so -0 and 0
 * differ, by 0); of two dtypes the values do, and every NaN equals every other.
 */
#ifndef CAIRN_TOOLS_COMPARE_H
#define CAIRN_TOOLS_COMPARE_H

#include "base/status.h"
#include <stdbool.h>

struct comparison { /* sums up over calls */
        uint64_t elements, different;
        double largest; /* |a - b|; INFINITY where one of them is NaN or only one is infinite */
};

/* The most elements of one call. */
#define COMPARE_ELEMENTS_MAX 65536

/* Can elements of these dtypes be compared: the same, or both real numbers, or both complex? */
bool compare_possible(uint32_t a_dtype, uint32_t b_dtype);
int compare_elements(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype,
                     uint64_t count, struct comparison *sum, struct cairn_error *reterr);

#endif
