/* SPDX-License-Identifier: Apache-2.0
 *
 * group.h - a run of several nodes, as the agent of one of them takes part in it.
 *
 *   OUTSIDE -> LOOKING -> JOINING -> FORMING -> CLAIMING -> CREATING -> LEADING -> LOST -> ...
 *                                       \-> CONNECTING -> REOPENING -> FOLLOWING -/
 *   a start that is refused: -> TELLING -> OUTSIDE (group_refusal.h)
 *   in node-local stores                  -> CREATING -> SURVEYING -> SETTLING -> LEADING
 *                                       \-> CONNECTING -> SURVEYING -> SETTLING -> FOLLOWING
 *
 * A start looks at its store, whose id and kind the others compare with theirs, and joins the
 * rendezvous with a fresh nonce; so whoever is there and not in the newest
 * generation is ready for the next one. It forms when nobody of the newest generation is left
 * alive (or all of them have come back with fresh nonces), and the nodes that are ready have not
 * changed for GROUP_SETTLE_NS and are nodes_min at least; at once when they are nodes_max. The one
 * whose name sorts first leads: it makes the generation in the store (GEN-n, which fences every
 * older one), then in the rendezvous; the others find themselves in its list, connect to it and
 * open the same generation. Another one takes over when it fails or hangs, for its lease ends.
 *
 * The leader decides about attempts (attempt.c): a member opens, arms, cuts and publishes for its
 * own ranks when told, and reports; group_tell_* are no-ops in a run of one node. What one rank
 * puts into the exchange is told to all nodes.
 *
 * When a rank or a node is lost, everybody is told, this node's `cairn run` with GroupLost; it ends
 * its ranks and starts again. After a final exit status of a rank it does not: the run ends with
 * that status on all nodes. A connection that is silent for 5 s and a lease that ran out are a
 * lost node.
 *
 * The loop's thread. One group a run; it keeps its place in the rendezvous between starts.
 */
#ifndef CAIRN_AGENT_GROUP_H
#define CAIRN_AGENT_GROUP_H

#include "agent/peer.h"
#include "agent/rendezvous.h"
#include "agent/run.h"

#define GROUP_SETTLE_NS (1 * NSEC_PER_SEC)
#define GROUP_REQUEST_NS (10 * NSEC_PER_SEC)
#define GROUP_CONNECT_NS (15 * NSEC_PER_SEC) /* from the generation to all members' connections */

enum group_state {
        GROUP_OUTSIDE,
        GROUP_LOOKING, /* the store process looks at the store */
        GROUP_JOINING,
        GROUP_FORMING,
        GROUP_CLAIMING, /* leader: the store makes the generation */
        GROUP_CREATING, /* leader: the rendezvous is told */
        GROUP_LEADING,
        GROUP_CONNECTING, /* member: to the leader */
        GROUP_REOPENING,  /* member: the store process opens the generation */
        GROUP_SURVEYING,  /* group_local.h: all say what they hold, the leader decides */
        GROUP_SETTLING,   /* the store process does what was decided */
        GROUP_FOLLOWING,
        GROUP_LOST,
        GROUP_TELLING, /* refused: it says so to those who wait */
        GROUP_STATE_COUNT
};

struct group_node {
        struct rendezvous_member member;
        struct peer_link *link; /* leader: to it, once connected */
        bool ready, finished;   /* leader: it has opened the generation; its ranks are complete */
        bool left;              /* leader: its link ended, and none has come since */
};
struct group_local;
struct group {
        struct run *run;
        enum group_state state;
        struct rendezvous *rendezvous;
        struct loop_source rendezvous_source;
        struct peer_listener listener;
        struct peer_link *leader; /* member */
        struct loop_timer timer;
        struct rendezvous_member self;
        char host[64];                         /* where the others reach this agent */
        char master[RENDEZVOUS_ADDRESS_BYTES]; /* where the leader is, and with it rank 0 */
        uint32_t nodes_min, nodes_max;
        bool elastic;              /* nodes may change */
        bool at_etcd, in_store;    /* where the rendezvous is; neither: in another folder */
        uint64_t generation_min;   /* the next one has this number at least */
        struct group_local *local; /* NULL: its store is shared */
        uint64_t generation;       /* that is being made, led or followed */
        int end_code;              /* some node ended with this final status: told once */
        uint8_t secret[RENDEZVOUS_SECRET_BYTES];
        struct group_node *nodes;              /* of that generation, by first_rank */
        uint32_t node_count, world, node_rank; /* node_rank: this one's place among them */
        uint32_t finished_count; /* leader: nodes whose ranks are complete, without its own */
        uint64_t ready_hash, ready_since_ns; /* who was ready, and since when */
        uint64_t stranger_ns; /* since when a node with another store was seen; 0: none */
        struct cairn_error stranger;
        struct start_reply decided;
        uint64_t demand_last;
        struct rendezvous_member word; /* TELLING: instead of `self` */
        uint64_t told_ns;
        uint64_t few_ns; /* FORMING, a node was refused: since when the others are too few; 0: no */
};

/* Checks the options of Start (rendezvous, nodes, node, address). No-op without a rendezvous. */
int group_new(struct run *run, const char *store, const Cairn__Control__Start *m,
              struct cairn_error *reterr);
void group_free(struct group *g); /* NULL allowed; leaves */
/* Instead of asking the store: join and form; run_started or run_start_failed follows. */
void group_begin(struct group *g);
/* The leader's store has decided: tell the rendezvous, then all. */
void group_claimed(struct group *g, const struct start_reply *decided);
void group_claim_failed(struct group *g, const struct cairn_error *error);
/* Its `cairn run` is over: does the start still wait for others? Then it is given up. */
bool group_cancel(struct group *g);
/* This node's `cairn run` is over, or its ranks did not end well. */
void group_leave(struct group *g);
/* `code`: its exit status where that is final (exits.h); then the run ends on all nodes. */
void group_rank_failed(struct run *run, const char *what, int code);

/* Leader: whose link that is, and whose rank; NULL: nobody's. */
struct group_node *group_node_of(const struct group *g, const struct peer_link *link);
struct group_node *group_node_at(const struct group *g, uint32_t rank);
/* Is this a rank of another node, and the group whole? */
bool group_has(const struct run *run, uint32_t rank);
/* This node, as the group knows it; "" without one. */
const char *group_node_name(const struct run *run);
/* Does this agent decide about attempts? True for a run of one node. */
bool group_leads(const struct run *run);

/* Member in a node-local store: the leader is there, so its word was what ended an attempt. */
bool group_discards(const struct run *run);
/* Has each node its own directory? */
bool group_node_local(const struct run *run);
/* Is how the run ended to be written by this node? By each into its own store; of a shared one by
 * the leader, and by whoever gets there once it has ended on all nodes. */
bool group_records_end(const struct run *run);

/* Told by attempt.c, hold.c, run_end.c, exchange.c; nothing happens without a group. `to`: one
 * member that came, NULL: all of them. */
void group_tell_open(struct run *run, uint32_t attempt, struct peer_link *to);
void group_tell_doom(struct run *run, uint32_t attempt, const struct cairn_error *error);
void group_tell_committed(struct run *run, uint32_t attempt, const struct commit_result *c);
/* To the nodes that have these ranks. */
void group_tell_hold(struct run *run, uint32_t attempt, uint32_t first_rank, uint32_t count,
                     int64_t step);
void group_tell_go(struct run *run, uint32_t attempt);
void group_tell_release(struct run *run);
void group_tell_release_rank(struct run *run, uint32_t rank); /* to its node alone */
void group_tell_follow(struct run *run, uint32_t attempt, int64_t step, struct peer_link *to);
void group_tell_stop(struct run *run, uint64_t duration_ns);
void group_tell_finished(struct run *run, const struct cairn_error *error); /* leader */
void group_tell_exchange(struct run *run, uint32_t rank, const ProtobufCBinaryData *key,
                         const ProtobufCBinaryData *value);
/* Member -> leader. */
void group_tell_ready(struct run *run);
void group_tell_rank(struct run *run, uint32_t attempt, uint32_t rank, int event, int64_t step,
                     uint64_t bytes);
void group_tell_finish(struct run *run);
/* The leader takes the cut; its answer goes to the waiter that has this number. */
int group_tell_demand(struct run *run, const struct run_waiter *w, uint64_t timeout_ns);
/* Leader: the answer to a member's demand. */
void group_tell_demanded(struct run *run, const struct run_waiter *w, const char *name,
                         int64_t step, uint64_t bytes, bool existed, bool flagged,
                         const struct cairn_error *error);
/* Leader: have all other nodes' ranks finished? */
bool group_finished(const struct run *run);
/* group_talk.c */
void group_received(void *context, struct peer_link *link, const Cairn__Peer__PeerEnvelope *e);
void group_lost(struct group *g, const char *reason);
void group_ended(struct group *g, const char *reason, int code);

#endif
