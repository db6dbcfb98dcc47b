/* SPDX-License-Identifier: Apache-2.0
 *
 * fault.h - fault points: places where a test makes the n-th passage fail, crash, stop or wait.
 *
 *     fault_point(FAULT_COMMIT_RENAME)   -> 0, or the errno to fail with
 *
 * Switched on by $CAIRN_FAULT="point:n:action[:argument]" (comma separated), action = error
 * (argument: errno number, default EIO) | crash (SIGKILL to self) | stop (SIGSTOP to self) | delay
 * (argument: milliseconds). n counts from 1 per process; 0 means every passage. Off: one load and a
 * branch. Each process parses the variable once, in fault_init_environment (a trainer in
 * cairn_open); unknown names are an error message and exit status 64 of main.
 *
 * With $CAIRN_FAULT_ONCE=FILE one passage of one process fires, whichever is first: it creates FILE
 * and writes its name into it before it acts, and while FILE exists nothing fires. Processes that
 * are started anew inherit the specification, so that without it a crash would happen in each.
 *
 * Tests sweep n = 1, 2, ... until nothing fires: fault_fired() stays false, or FILE is not there.
 */
#ifndef CAIRN_FAULT_H
#define CAIRN_FAULT_H

#include "base/status.h"
#include <stdbool.h>

/* One row a point; the comment says which process passes it. */
/* clang-format off */
#define FAULT_POINTS(X)                                                                           \
        X(COPY_CHUNK, "copy-chunk")                 /* saver: before each chunk of a copy */      \
        X(COPY_RELEASE, "copy-release")             /* saver: before COPYING -> STABLE */         \
        X(DATA_WRITE, "data-write")                 /* saver: before each write request */        \
        X(DATA_SYNC, "data-sync")                   /* saver: before fdatasync of the data */     \
        X(MANIFEST_WRITE, "manifest-write")         /* saver: before the manifest's bytes */      \
        X(MANIFEST_RENAME, "manifest-rename")       /* store: before its final name */            \
        X(ATTEMPT_OPEN, "attempt-open")             /* store: before the pending directory */     \
        X(COMMIT_INDEX, "commit-index")             /* store: before INDEX */                     \
        X(COMMIT_RECORD, "commit-record")           /* store: before COMMIT */                    \
        X(COMMIT_RENAME, "commit-rename")           /* store: before its final name */            \
        X(COMMIT_PARENT_SYNC, "commit-parent-sync") /* store: before the last fsync */            \
        X(GENERATION_CLAIM, "generation-claim")     /* store: before GEN-n */                     \
        X(GENERATION_FENCE, "generation-fence")     /* store: before each .pending -> .stale */   \
        X(GENERATION_START, "generation-start")     /* store: before GEN-n.start */               \
        X(PRUNE_RENAME, "prune-rename")             /* store: before it becomes .trash */         \
        X(RESTORE_OPEN, "restore-open")             /* store: before data files are opened */     \
        X(RESTORE_READ, "restore-read")             /* saver: before each read request */         \
        X(CLIENT_APPLY, "client-apply")             /* client: before each tensor is restored */

enum fault {
#define FAULT_ENUM(name, text) FAULT_##name,
        FAULT_POINTS(FAULT_ENUM)
#undef FAULT_ENUM
        FAULT_COUNT
};

/* clang-format on */

extern bool fault_enabled; /* any fault armed in this process */
int fault_init(const char *specification, struct cairn_error *reterr); /* NULL or "": off */
/* What the two variables say, the first time; before the process's threads pass a point. */
int fault_init_environment(struct cairn_error *reterr);
int fault_hit(enum fault point);
bool fault_fired(void);
const char *fault_name(enum fault point);

static inline int fault_point(enum fault point) {
        return __builtin_expect(fault_enabled, 0) ? fault_hit(point) : 0;
}

#endif
