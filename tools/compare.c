/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/compare.h"

#include "base/cleanup.h"
#include "format/dtype.h"
#include <errno.h>
#include <math.h>
#include <string.h>

static bool is_complex(uint32_t dtype) {
        return dtype == CAIRN_C64 || dtype == CAIRN_C128;
}

bool compare_possible(uint32_t a_dtype, uint32_t b_dtype) {
        return is_complex(a_dtype) == is_complex(b_dtype);
}

/* How far apart; 0 where the values are equal, whatever their bits. */
static double distance(double a, double b) {
        if (a == b || (isnan(a) && isnan(b)))
                return 0;
        double d = fabs(a - b);
        return isnan(d) ? INFINITY : d;
}

int compare_elements(const void *a, uint32_t a_dtype, const void *b, uint32_t b_dtype,
                     uint64_t count, struct comparison *sum, struct cairn_error *reterr) {
        uint32_t parts = is_complex(a_dtype) ? 2 : 1, wide = parts == 2 ? CAIRN_C128 : CAIRN_F64;
        uint64_t bytes = dtype_info(a_dtype)->bytes;
        struct conversion_result ignored;
        sum->elements += count;
        if (a_dtype == b_dtype && memcmp(a, b, count * bytes) == 0)
                return 0;
        _cleanup_free_ double *va = malloc(2 * count * parts * sizeof *va);
        double *vb = va + count * parts;
        if (!va)
                return error_set_errno(reterr, ENOMEM, "compare tensors", "");
        TRY(dtype_convert(va, wide, a, a_dtype, count, &ignored, reterr));
        TRY(dtype_convert(vb, wide, b, b_dtype, count, &ignored, reterr));
        for (uint64_t i = 0; i < count; i++) {
                double d = 0;
                for (uint32_t p = 0; p < parts; p++)
                        d = fmax(d, distance(va[i * parts + p], vb[i * parts + p]));
                bool same = a_dtype == b_dtype ? memcmp((const char *) a + i * bytes,
                                                        (const char *) b + i * bytes, bytes) == 0
                                               : d == 0;
                sum->different += !same;
                sum->largest = fmax(sum->largest, d);
        }
        return 0;
}
