/* SPDX-License-Identifier: Apache-2.0 */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void assert_failed(const char *expression, const char *file, int line, const char *function) {
        /* Unbuffered: the process may be out of memory or hold the lock of stderr. */
        (void) dprintf(STDERR_FILENO, "%s:%d: %s: assertion failed: %s\n", file, line, function,
                       expression);
        abort();
}
