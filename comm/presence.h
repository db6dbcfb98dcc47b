/* SPDX-License-Identifier: Apache-2.0
 *
 * presence.h - who takes part in an operation and who is missing. Each rank that waits for more
 * than half a second writes once a second to the store that it waits, and in which operation, and
 * reads what the others wrote; comm_keepalive writes that a rank works.
 *
 *     presence_init(&p, rank, world, &store, "g7.world.0", clock, silence_ns, &e);
 *     presence_begin(&p, "all_reduce", bytes, limit_ns);      // sequence + 1
 *       presence_here(&p, 1, true);            // known by other means than the store
 *       r = presence_turn(&p, text, bytes);    // 0, or a verdict: text says who and why
 *     presence_work(&p);                                 // between two operations
 *     presence_gave_up(&p, sentence);                    // for the others to read
 *
 * A rank is missing if it has not done its part (presence_here) and does not say that it waits in
 * this operation or has come further. It is waited for beyond the limit only if it said, after the
 * operation before this one, that it works, and says so again at least every silence_ns. What it
 * wrote is dated by this rank's own clock, when it was seen to change.
 *
 * The store is asked with deadlines of half a second; one that does not answer makes nobody missing
 * or present. A record is text: "<counter> <state> <sequence> <bytes> <operation> <sentence>".
 * Owned and used by one thread.
 */
#ifndef CAIRN_COMM_PRESENCE_H
#define CAIRN_COMM_PRESENCE_H

#include "base/clock.h"
#include "comm/comm.h"
#include <stdbool.h>

#define PRESENCE_FIRST_NS (500 * NSEC_PER_MSEC) /* of a wait, before the store is used */
#define PRESENCE_PERIOD_NS (1 * NSEC_PER_SEC)
#define PRESENCE_STORE_NS (500 * NSEC_PER_MSEC) /* deadline of a call */
#define PRESENCE_BLAME_NS (1500 * NSEC_PER_MSEC)
#define PRESENCE_STALE_NS (4 * NSEC_PER_SEC) /* a waiting rank writes more often */

enum presence_state {
        PRESENCE_NONE = 0, /* never written */
        PRESENCE_WAITS = 'w',
        PRESENCE_WORKS = 'k',
        PRESENCE_GAVE_UP = 'f',
};

struct presence_rank {
        bool here;
        enum presence_state state;
        uint64_t counter, changed_ns;
        uint64_t sequence, bytes; /* works: of the last operation that it finished */
        char verb[16];
        char sentence[256]; /* gave up: why */
};

struct presence {
        int rank, world;
        const struct comm_store *store;
        char prefix[COMM_KEY_BYTES]; /* of the records' keys, without the rank */
        const struct clock_ops *clock;
        uint64_t silence_ns;
        struct presence_rank *ranks; /* by rank */
        uint64_t counter;            /* of the last record written */
        /* the operation under way, or the last one */
        uint64_t sequence, bytes;
        const char *verb;
        uint64_t begin_ns, limit_ns, look_ns;
        uint64_t written_ns;            /* by presence_work */
        struct cairn_error store_error; /* of the last call; status 0: it answered */
};

int presence_init(struct presence *p, int rank, int world, const struct comm_store *store,
                  const char *prefix, const struct clock_ops *clock, uint64_t silence_ns,
                  struct cairn_error *reterr);
void presence_done(struct presence *p);
/* `verb` is a string literal. The first operation has number 1 and is announced at once. */
void presence_begin(struct presence *p, const char *verb, uint64_t bytes, uint64_t limit_ns);
void presence_here(struct presence *p, int rank, bool is_here);
/* Writes and reads where it is time. 0: wait on; TIMEOUT, MISMATCH or PEER with a sentence. */
int presence_turn(struct presence *p, char *ret_text, size_t bytes);
void presence_work(struct presence *p);
void presence_gave_up(struct presence *p, const char *sentence);
/* Says that this rank gives up, and waits for at most PRESENCE_BLAME_NS until each of the others
 * has said that it does or that it is in this operation; *ret_text names those that have not, or is
 * "". */
void presence_blame(struct presence *p, const char *sentence, char *ret_text, size_t bytes);
/* Reads now what `rank` wrote last; its sentence if it gave up in this operation, else NULL. */
const char *presence_why(struct presence *p, int rank);

#endif
