/* SPDX-License-Identifier: Apache-2.0
 *
 * comm.h - collective operations of the ranks of one generation, each with a deadline. The back end
 * is named, "gloo" (host memory, TCP) or "nccl" (memory of the device); one that cannot be used is
 * an error, never replaced by another.
 *
 *     struct comm_options o = COMM_OPTIONS_INIT;
 *     o.back_end = "gloo"; o.rank = 0; o.world = 2; o.generation = 7; o.interface = "127.0.0.1";
 *     o.store = store;                                   // where the ranks find each other
 *     TRY(comm_new(&o, &c, &e));                         // all ranks, within o.bootstrap_ns
 *     TRY(comm_all_reduce(c, gradient, count, CAIRN_F32, &e));        // within o.collective_ns
 *     comm_keepalive(c);                                 // now and then during long work
 *     r = comm_abort(&c, 1, &e);                         // after an error
 *     c = comm_free(c);
 *
 * Every rank makes the same calls with the same sizes in the same order; they are counted, and the
 * number is in each error: "all_reduce 42 ...: missing: rank 1 (silent for 9 s); waited 10.0 s".
 *
 * Deadlines. A verb returns by its limit plus COMM_MARGIN_NS, whatever the other ranks, the store
 * and the library underneath do. While a rank works long between two verbs (reads a data set) it
 * calls comm_keepalive; the others wait for it as long as its last call is no older than
 * silence_ns, even beyond collective_ns. `check` is called in every wait, several times a second;
 * what it returns ends the wait at once.
 *
 * Errors. TIMEOUT: missing ranks are named. PEER: a rank is gone or gave up, and why if it said so.
 * STALE: another generation is the newest. MISMATCH: the ranks are in different operations.
 * UNSUPPORTED: back end, library or type cannot be used. API: a wrong argument; it changes nothing.
 * FATAL: see comm_abort. Any error but API dooms the communicator: every later verb returns that
 * first error at once. What the buffers hold after an error is undefined, and nothing writes to
 * them any more.
 *
 * Sums are taken in a fixed order, so that equal inputs on equally many ranks give equal bits, and
 * all ranks the same ones. gloo: ((x0 + x1) + x2) + ... for each element, whatever verb, size and
 * timing; the result of comm_reduce_scatter is a part of that of comm_all_reduce. nccl: what its
 * algorithm gives; NCCL_ALGO and NCCL_PROTO pin it.
 *
 * Owner: options and strings are copied; the store's and the check's contexts have to live as long
 * as the communicator. One thread at a time. Times are nanoseconds. A communicator does not survive
 * a fork.
 */
#ifndef CAIRN_COMM_H
#define CAIRN_COMM_H

#include "base/limits.h"
#include "base/status.h"

/* Exit status of a process whose communicator could not be aborted: only its end frees what the
 * library holds. `cairn run` starts it again. */
#define COMM_EXIT_HUNG 76
#define COMM_MARGIN_NS (3 * NSEC_PER_SEC)

#define COMM_NAME_BYTES 17 /* with the end */
#define COMM_KEY_BYTES 64  /* with the end; [A-Za-z0-9._-] */
#define COMM_VALUE_BYTES_MAX (64 * KiB)
#define COMM_WORLD_MAX 4096

typedef void (*comm_store_visit_fn)(const char *key, const void *value, size_t bytes,
                                    void *argument);

/* A small key-value store of one run. Calls return by their deadline (one in the past: look once),
 * UNREACHABLE where it does not answer. Only the thread that is in a verb calls. */
struct comm_store {
        /* Replaces what is there. */
        int (*set)(void *context, const char *key, const void *value, size_t bytes,
                   uint64_t deadline_ns, struct cairn_error *reterr);
        /* Waits until it is there; TIMEOUT otherwise. A larger value is CORRUPT. */
        int (*get)(void *context, const char *key, void *buf, size_t bytes_max, size_t *ret_bytes,
                   uint64_t deadline_ns, struct cairn_error *reterr);
        /* Each key that begins with the prefix. */
        int (*list)(void *context, const char *prefix, comm_store_visit_fn visit, void *argument,
                    uint64_t deadline_ns, struct cairn_error *reterr);
        /* The newest generation of the run. */
        int (*generation)(void *context, uint64_t *ret, uint64_t deadline_ns,
                          struct cairn_error *reterr);
        void *context;
};

struct device;
struct comm;

struct comm_options {
        size_t size;          /* sizeof, for later members */
        const char *back_end; /* "gloo", "nccl" */
        const char *name;     /* apart from others of the generation; [A-Za-z0-9_], "world" */
        int rank, world;
        uint64_t generation;
        /* Counts the tries within a generation; the same on all ranks. */
        uint32_t attempt;
        struct comm_store store;
        const char *interface; /* gloo: a network interface or address of this host */
        struct device *device; /* nccl: opened by the caller, who keeps it */
        void *queue;           /* nccl: the device's queue on which operations run; see device.h */
        /* nccl: called first in the thread that calls the library, to make the device current. */
        void (*thread_begin)(void *context);
        void *thread_context;
        /* Called in waits. Negative (with *reterr filled): the wait ends with that. */
        int (*check)(void *context, struct cairn_error *reterr);
        void *check_context;
        uint64_t bootstrap_ns;  /* comm_new, all of it */
        uint64_t collective_ns; /* each verb */
        uint64_t silence_ns;    /* between two comm_keepalive of a rank that works long */
        uint64_t abort_ns;      /* comm_abort and comm_free */
};
#define COMM_OPTIONS_INIT                                                              \
        {                                                                              \
                .size = sizeof(struct comm_options), .name = "world",                  \
                .bootstrap_ns = 60 * NSEC_PER_SEC, .collective_ns = 60 * NSEC_PER_SEC, \
                .silence_ns = 60 * NSEC_PER_SEC, .abort_ns = 10 * NSEC_PER_SEC,        \
        }

/* Meets the other ranks, checks the generation before and after, and makes a test all-reduce. */
int comm_new(const struct comm_options *options, struct comm **ret, struct cairn_error *reterr);
/* NULL allowed; aborts what is not yet, and keeps it where that hangs (comm_abort tells). Returns
 * NULL. Others that are still in an operation with this rank fail: a barrier comes before an
 * orderly end. */
struct comm *comm_free(struct comm *c);

/* In place; complete when it returns. F32, F64, I64; nccl: F16 and BF16, too. */
int comm_all_reduce(struct comm *c, void *data, uint64_t count, enum cairn_dtype dtype,
                    struct cairn_error *reterr);
/* source: world * count elements; target: the count elements of this rank's part of the sum, apart
 * from source or exactly its part. */
int comm_reduce_scatter(struct comm *c, const void *source, void *target, uint64_t count,
                        enum cairn_dtype dtype, struct cairn_error *reterr);
/* source: bytes of this rank; target: world * bytes, by rank; source may be its place in it. */
int comm_all_gather(struct comm *c, const void *source, void *target, uint64_t bytes,
                    struct cairn_error *reterr);
int comm_broadcast(struct comm *c, void *data, uint64_t bytes, int root,
                   struct cairn_error *reterr);
int comm_barrier(struct comm *c, struct cairn_error *reterr);

/* This rank works between two verbs and is well. Cheap: it writes to the store once a second at
 * most, and ignores a store that does not answer within half a second. */
void comm_keepalive(struct comm *c);

/* Ends what is under way in all of them together (they may block each other) and lets go of the
 * library's resources. FATAL: the library has not come back within abort_ns; the caller ends the
 * process with _exit(COMM_EXIT_HUNG). Doomed and healthy ones alike, all of one back end. */
int comm_abort(struct comm *const *comms, size_t count, struct cairn_error *reterr);

/* For the log: back end, library and version, interface. Holds until comm_free. */
const char *comm_describe(const struct comm *c);
uint64_t comm_sequence(const struct comm *c); /* of the last operation that was begun */

#endif
