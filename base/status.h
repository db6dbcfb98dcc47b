/* SPDX-License-Identifier: Apache-2.0
 *
 * status.h - errors with context.
 *
 * A function that can fail returns 0 or a negative enum cairn_status and takes `struct cairn_error
 * *reterr` last (NULL allowed). The error is filled once, where the failure happened, and travels
 * up unchanged:
 *
 *     fd = io->openat(...);
 *     if (fd < 0)
 *             return error_set_errno(reterr, errno, "open manifest", path);
 *     TRY(manifest_check(&m, reterr));
 *
 * `struct cairn_error` is plain memory without owners: it may be copied, sent, kept. Thread-safe in
 * the sense of any plain struct.
 */
#ifndef CAIRN_STATUS_H
#define CAIRN_STATUS_H

#include "base/types.h"
#include <stddef.h>

struct cairn_error {
        int status;         /* enum cairn_status; 0 while unset */
        int system_code;    /* errno or CUresult, 0 if neither */
        uint64_t offset;    /* byte offset in the object, UINT64_MAX if it does not apply */
        char operation[48]; /* "write data", "check tensor range" */
        char object[256];   /* path, tensor, run: what it happened to */
        char message[512];  /* sentence: reason and remedy; empty if operation and errno say all */
};

#define CAIRN_ERROR_INIT \
        { .offset = UINT64_MAX }

/* Fill *reterr (if any) and return status. The message is a printf format; it says why and what to
 * do. */
int error_set(struct cairn_error *reterr, int status, const char *operation, const char *object,
              const char *message, ...) __attribute__((format(printf, 5, 6)));

/* The same from errno: picks the status (error_status_of_errno) and leaves a remedy for the known
 * ones. */
int error_set_errno(struct cairn_error *reterr, int error_number, const char *operation,
                    const char *object);
int error_set_errno_at(struct cairn_error *reterr, int error_number, const char *operation,
                       const char *object, uint64_t offset);

int error_status_of_errno(int error_number);
const char *status_name(int status); /* "BUSY"; never NULL */
/* Exit status of a tool for an outcome (docs/OPERATIONS.md): 0 64 65 66 69 73 74 75 77 78 124,
 * else 70. */
int status_exit_code(int status);

/* One line "operation object: reason (errno text): remedy", control characters escaped, always
 * terminated. Returns buf. */
const char *error_format(const struct cairn_error *e, char *buf, size_t bytes);

/* Return on failure / jump on failure (int `r` in scope) / during cleanup: keep the first error in
 * `r`. */
#define TRY(expr)                      \
        do {                           \
                int try_r_ = (expr);   \
                if (try_r_ < 0)        \
                        return try_r_; \
        } while (0)
#define TRY_GOTO(expr, label)       \
        do {                        \
                r = (expr);         \
                if (r < 0)          \
                        goto label; \
        } while (0)
#define TRY_KEEP(expr)                    \
        do {                              \
                int try_r_ = (expr);      \
                if (try_r_ < 0 && r >= 0) \
                        r = try_r_;       \
        } while (0)

#endif
