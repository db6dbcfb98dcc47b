/* SPDX-License-Identifier: Apache-2.0
 *
 * cleanup.h - scope-bound owners: `_cleanup_close_ int fd = -1;` closes at the end of the scope
 * unless TAKE_FD(fd) moved it on. TAKE_PTR likewise.
 */
#ifndef CAIRN_CLEANUP_H
#define CAIRN_CLEANUP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_close(const int *fd) {
        if (*fd >= 0)
                (void) close(*fd);
}
static inline void cleanup_free(void *p) {
        free(*(void **) p);
}
static inline void cleanup_fclose(FILE **f) {
        if (*f)
                (void) fclose(*f);
}

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _cleanup_close_ _cleanup_(cleanup_close)
#define _cleanup_free_ _cleanup_(cleanup_free)
#define _cleanup_fclose_ _cleanup_(cleanup_fclose)

#define TAKE_PTR(p)                          \
        ({                                   \
                __typeof__(p) take_p_ = (p); \
                (p) = NULL;                  \
                take_p_;                     \
        })
#define TAKE_FD(fd)                  \
        ({                           \
                int take_fd_ = (fd); \
                (fd) = -1;           \
                take_fd_;            \
        })

#endif
