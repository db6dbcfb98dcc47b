/* SPDX-License-Identifier: Apache-2.0
 *
 * rendezvous.h - where the agents of one run find each other: who is alive, which generation is the
 * newest, and small values of that generation. The event loop's side; it never blocks. What blocks
 * (files of a shared folder, calls to etcd) happens in a child process, as for the store.
 *
 *     rendezvous_place_parse("etcd://a:2379,b:2379/jobs", store, run, &place, &e);
 *     rendezvous_new(&place, on_change, context, &r, &e);
 *     loop_watch(loop, &source, rendezvous_fd(r), EPOLLIN, ...);  // calls rendezvous_dispatch
 *     rendezvous_join(r, &self, deadline, on_joined, c, &e);      // the lease is renewed from then
 *     v = rendezvous_view(r);                                     // in on_change: who is there
 *     rendezvous_create(r, &generation, deadline, on_created, c, &e); // one of all succeeds
 *     rendezvous_put(r, n, "comm-0", bytes, count, deadline, on_put, c, &e);
 *     rendezvous_get(r, n, "comm-0", deadline, on_value, c, &e);  // waits until it is there
 *     rendezvous_leave(r, deadline, on_left, c, &e);              // the others know at once
 *     rendezvous_free(r);                                         // without: the lease runs out
 *
 * Liveness. A member's lease is renewed because its event loop runs: a process that is killed,
 * stopped or cut off is gone from the others' views within RENDEZVOUS_LOSS_NS, and so is one whose
 * child alone hangs for that long. A member that was given up stays so: its lease is gone, it
 * learns this at its next renewal (standing RENDEZVOUS_LOST, and STALE for all that it asks), and
 * it comes back only by joining again with another nonce. Clocks of other machines are never
 * compared: etcd's leases are timed by etcd, those of a folder by each observer's own clock since
 * the last change. An observer that could not look for a while counts only the time that it could.
 * A storage that does not answer makes nobody lost: the view keeps what it was, `error` says why
 * and `confirmed_ns` since when.
 *
 * Generations. Numbers grow; their creation is exclusive. The creator is the leader. A number that
 * is not above the newest one is STALE; somebody else was faster: EXISTS, and the view has the
 * winner's. What belongs to an older generation is deleted with the next one's creation. Only a
 * member may create, put or get; a request for a generation that is not the newest is STALE and
 * says which one is.
 *
 * Requests are answered exactly once, by their callback, inside rendezvous_dispatch and never
 * inside the call, at their deadline at the latest (plus one scheduling delay). They are repeated
 * until then while the storage does not answer; each finds out what an unanswered predecessor has
 * done, so that the answer is what is there. An answer UNREACHABLE or TIMEOUT means that the
 * outcome is unknown: ask again, or look at the view. Callbacks may make new requests, not free the
 * object.
 *
 * One thread: the event loop's. All strings are copied. Deadlines are absolute (clock.h).
 */
#ifndef CAIRN_AGENT_RENDEZVOUS_H
#define CAIRN_AGENT_RENDEZVOUS_H

#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "format/names.h"
#include <stdbool.h>
#include <stddef.h>

#define RENDEZVOUS_NODE_BYTES 65 /* with the end: 1..64 of [A-Za-z0-9._-], not '.' or '-' first */
#define RENDEZVOUS_KEY_BYTES 65  /* the like */
#define RENDEZVOUS_ADDRESS_BYTES 128
#define RENDEZVOUS_DETAIL_BYTES 512
#define RENDEZVOUS_VALUE_BYTES_MAX (64 * KiB)
#define RENDEZVOUS_MEMBERS_MAX NODE_COUNT_MAX
#define RENDEZVOUS_SECRET_BYTES 32
#define RENDEZVOUS_WAITING_MAX 64 /* requests at a time */

#define RENDEZVOUS_RENEW_NS (1500 * NSEC_PER_MSEC)
#define RENDEZVOUS_TTL_NS (5 * NSEC_PER_SEC)     /* etcd: of a lease that is not renewed */
#define RENDEZVOUS_SILENCE_NS (7 * NSEC_PER_SEC) /* folder: of a lease that does not change */
#define RENDEZVOUS_LOSS_NS (10 * NSEC_PER_SEC)   /* a loss is known to the others by then */

/* ---- where ---- */

enum rendezvous_kind { RENDEZVOUS_DIR = 1, RENDEZVOUS_ETCD = 2 };

struct rendezvous_place {
        enum rendezvous_kind kind;
        char url[1024]; /* as given; no secret is in it */
        char run[RUN_NAME_BYTES_MAX + 1];
        char path[4096]; /* dir: of the store (in_store), or of another folder */
        bool in_store;   /* plain `dir`: <store>/<run>/rendezvous; else <path>/<run>/rendezvous */
        /* dir in a store: make a missing or empty folder a store, as a fresh start does. The parser
         * leaves it false. */
        bool create_store;
        char hosts[512];  /* etcd: host:port[,host:port...] */
        char prefix[128]; /* etcd: "/cairn" unless given; keys are <prefix>/<run>/... */
};

/* `url`: dir | dir:///path | etcd://host[:port][,host[:port]...][/prefix]. Everything else is
 * refused with a sentence that says what is wrong and what would be right (API). */
int rendezvous_place_parse(const char *url, const char *store, const char *run,
                           struct rendezvous_place *ret, struct cairn_error *reterr);

/* ---- what is there ---- */

struct rendezvous_member {
        char node[RENDEZVOUS_NODE_BYTES];       /* one living member of a run has it */
        char address[RENDEZVOUS_ADDRESS_BYTES]; /* host:port where its agent listens for others */
        uint64_t nonce;                         /* of this start of the agent; random, not 0 */
        uint32_t ranks;                         /* that it runs, or would run */
        uint32_t first_rank;                    /* in a generation only: ranks first_rank .. */
        /* Of a member only, not in a generation: what the leader wants to compare before it forms a
         * group (intent, versions, store id). UTF-8 text. */
        char detail[RENDEZVOUS_DETAIL_BYTES];
};

struct rendezvous_generation {
        uint64_t number; /* 0: there is none yet */
        char leader[RENDEZVOUS_NODE_BYTES];
        uint64_t leader_nonce;
        uint32_t world;
        uint16_t master_port;    /* MASTER_PORT of its ranks, on the leader's node */
        char parent[NAME_BYTES]; /* checkpoint to start from; "": none */
        /* For the HMAC between agents. All zero in rendezvous_create: a random one is made. */
        uint8_t secret[RENDEZVOUS_SECRET_BYTES];
        /* In ascending first_rank, without gaps: together 0 .. world-1. */
        const struct rendezvous_member *members;
        size_t member_count;
};

enum rendezvous_standing {
        RENDEZVOUS_OUTSIDE, /* not asked to join, or left */
        RENDEZVOUS_MEMBER,
        RENDEZVOUS_LOST, /* given up by the others; only a join with another nonce helps */
};

struct rendezvous_view {
        enum rendezvous_standing standing;
        /* Who is known to be alive, by node, this one included. A member of a folder appears when
         * its lease was seen to change, so that what a dead job left is never counted. */
        const struct rendezvous_member *members;
        size_t member_count;
        struct rendezvous_generation generation; /* the newest */
        uint64_t confirmed_ns;                   /* when the storage answered last; 0: never */
        /* status < 0: it does not answer at present, why, and what to do; after RENDEZVOUS_LOST:
         * the sentence for it. */
        struct cairn_error error;
};

/* ---- the object ---- */

struct rendezvous;

/* Members, generation, standing or reachability (the sign of error.status) are not what they
 * were. Called inside rendezvous_dispatch; the view and what it points to hold until the next
 * dispatch. */
typedef void (*rendezvous_changed_fn)(void *context);

struct rendezvous_answer {
        int status;               /* 0 or negative */
        struct cairn_error error; /* of a negative one */
        const void *value;        /* get; only during the callback */
        size_t value_bytes;
};
typedef void (*rendezvous_done_fn)(void *context, const struct rendezvous_answer *answer);

/* Watches from now on (members, generation), before and without joining, too. */
int rendezvous_new(const struct rendezvous_place *place, rendezvous_changed_fn changed,
                   void *context, struct rendezvous **ret, struct cairn_error *reterr);
/* Ends the child; requests that wait are dropped without an answer. NULL is allowed. */
struct rendezvous *rendezvous_free(struct rendezvous *r);
int rendezvous_fd(const struct rendezvous *r); /* readable: call rendezvous_dispatch */
void rendezvous_dispatch(struct rendezvous *r);
const struct rendezvous_view *rendezvous_view(const struct rendezvous *r);

/* ---- requests: 0, or API (wrong argument) or BUSY (RENDEZVOUS_WAITING_MAX wait) at once ---- */

/* EXISTS at the deadline: a living member of another nonce has that node's name. The lease of one
 * that died has to run out: RENDEZVOUS_LOSS_NS suffice. With the nonce of a member that is there
 * (an agent that was restarted) it takes up the lease. STALE: that membership has ended. */
int rendezvous_join(struct rendezvous *r, const struct rendezvous_member *self,
                    uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                    struct cairn_error *reterr);
int rendezvous_leave(struct rendezvous *r, uint64_t deadline_ns, rendezvous_done_fn done,
                     void *context, struct cairn_error *reterr);
/* number, world, master_port, parent, secret, members (and their first_rank) are taken; the leader
 * is this member. Success: this agent leads. STALE, EXISTS: see above. */
int rendezvous_create(struct rendezvous *r, const struct rendezvous_generation *generation,
                      uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                      struct cairn_error *reterr);
/* Replaces what is there under the key. */
int rendezvous_put(struct rendezvous *r, uint64_t generation, const char *key, const void *value,
                   size_t bytes, uint64_t deadline_ns, rendezvous_done_fn done, void *context,
                   struct cairn_error *reterr);
/* Until it is there. TIMEOUT names the key: nobody has put it. */
int rendezvous_get(struct rendezvous *r, uint64_t generation, const char *key, uint64_t deadline_ns,
                   rendezvous_done_fn done, void *context, struct cairn_error *reterr);

#endif
