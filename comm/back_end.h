/* SPDX-License-Identifier: Apache-2.0
 *
 * back_end.h - what comm.c and the back ends share. A back end is a table of verbs; each runs in
 * the thread of the caller, between comm.c's counting and its verdict, and waits like this:
 *
 *     while (!finished()) {
 *             TRY(comm_turn(c, reterr));     // at least every COMM_TURN_NS
 *             wait_a_little();
 *     }
 *
 * comm_turn ends the wait when the deadline has passed, with an error that names the missing ranks,
 * or when the caller's check says so. A back end that knows of each rank whether it has done its
 * part of the operation says so (comm_here); one that does not leaves it to what the ranks write.
 */
#ifndef CAIRN_COMM_BACK_END_H
#define CAIRN_COMM_BACK_END_H

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/presence.h"
#include <stdbool.h>

#define COMM_TURN_NS (100 * NSEC_PER_MSEC)

struct comm_ops {
        const char *name;
        /* Aborting is quick and local: done at once when an operation fails, so that the others
         * notice. */
        bool aborts_at_once;
        /* c->back is the back end's own from here on; undone by close, also after a failure. */
        int (*open)(struct comm *c, struct cairn_error *reterr);
        int (*all_reduce)(struct comm *c, void *data, uint64_t count, enum cairn_dtype dtype,
                          struct cairn_error *reterr);
        int (*reduce_scatter)(struct comm *c, const void *source, void *target, uint64_t count,
                              enum cairn_dtype dtype, struct cairn_error *reterr);
        int (*all_gather)(struct comm *c, const void *source, void *target, uint64_t bytes,
                          struct cairn_error *reterr);
        int (*broadcast)(struct comm *c, void *data, uint64_t bytes, int root,
                         struct cairn_error *reterr);
        /* Adds up one from each rank, in memory of its own. */
        int (*barrier)(struct comm *c, int64_t *ret_count, struct cairn_error *reterr);
        /* Idempotent; c->back may be NULL. FATAL at the deadline if the library has not
         * returned. */
        int (*abort)(struct comm *const *comms, size_t count, uint64_t deadline_ns,
                     struct cairn_error *reterr);
        void (*close)(struct comm *c); /* after abort; frees c->back */
};

extern const struct comm_ops comm_gloo, comm_nccl;

/* Every verb is there. FATAL names the missing one. */
int comm_ops_check(const struct comm_ops *ops, struct cairn_error *reterr);

enum comm_state { COMM_STARTING, COMM_READY, COMM_DOOMED, COMM_ABORTED };

struct comm {
        const struct comm_ops *ops;
        void *back;
        enum comm_state state;
        struct comm_options options; /* its strings are the copies below */
        char name[COMM_NAME_BYTES], interface[64], description[256];
        char object[96]; /* for errors: "gloo communicator world, generation 7, rank 0 of 2" */
        struct presence presence;
        struct cairn_error first; /* that doomed it */
};

/* The same with a table of the caller's, for tests. */
int comm_new_with(const struct comm_ops *ops, const struct comm_options *options, struct comm **ret,
                  struct cairn_error *reterr);

/* In each turn of a wait. */
int comm_turn(struct comm *c, struct cairn_error *reterr);
/* `rank` owes nothing in the operation under way, or again something; at its begin each but the
 * caller does. */
void comm_here(struct comm *c, int rank, bool is_here);
/* `rank` is gone: PEER, with what it said of why, if it did. `how`: "closed the connection". */
int comm_lost(struct comm *c, int rank, const char *how, struct cairn_error *reterr);
/* The operation has failed and it is not known through whom: tells the others, waits a little for
 * what they say, and names those that say nothing. */
int comm_blame(struct comm *c, int status, const char *message, struct cairn_error *reterr);
/* Fills *reterr: the operation under way as operation, this communicator as object. */
int comm_fail(const struct comm *c, int status, struct cairn_error *reterr, const char *message,
              ...) __attribute__((format(printf, 4, 5)));

/* Key of this communicator: "g7.world.0.<what>" or, with a rank >= 0, "...<what>.<rank>". */
void comm_key(const struct comm *c, const char *what, int rank, char ret[COMM_KEY_BYTES]);
/* comm_store's get, with turns; `rank` is who is missing as long as it is not there. */
int comm_get(struct comm *c, const char *what, int rank, void *buf, size_t bytes_max,
             size_t *ret_bytes, struct cairn_error *reterr);
int comm_set(struct comm *c, const char *what, int rank, const void *value, size_t bytes,
             struct cairn_error *reterr);

#endif
