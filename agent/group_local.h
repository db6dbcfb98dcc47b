/* SPDX-License-Identifier: Apache-2.0
 *
 * group_local.h - a group whose nodes have a directory each (node_store.h): what they tell each
 * other so that there is one decision. The leader collects, decides and waits; each node's store
 * process does its part.
 *
 *   start    SURVEY    every node says what its directory holds; survey.c makes one view of it,
 *                      intent.c decides on that
 *            RECORDS   the parent is committed on some nodes only: INDEX and COMMIT of one of them
 *            PARTS, COMPOSE   or on none: from the manifests of all
 *            SETTLE    every node makes the generation, and rolls its part of the parent forward
 *   commit   PARTS, COMPOSE   INDEX and COMMIT from the manifests of all nodes
 *            RECORD    every node writes them beside its own manifests, durable, and says so. From
 *                      then on the checkpoint is complete, whatever dies: all can roll it forward
 *            then the leader gives it its name, tells Committed, and each member does, too
 *
 * One thing at a time: an attempt that is complete while another one is collected waits. A node
 * that is lost, or cannot do its part, ends the start (all join anew) or dooms the attempt.
 *
 * The loop's thread. `local` of a group is set once its store was seen to be node-local.
 */
#ifndef CAIRN_AGENT_GROUP_LOCAL_H
#define CAIRN_AGENT_GROUP_LOCAL_H

#include "agent/group.h"

/* Of a group's first start; NULL: no memory. */
struct group_local *group_local_new(void);
/* The links are gone: nothing of the former generation is waited for. */
void group_local_reset(struct group *g);
struct group_local *group_local_free(struct group_local *l);

/* Leader: the rendezvous has the generation; group_local_decided or an end of the start follows. */
void group_local_start(struct group *g);
void group_local_connected(struct group *g, const struct group_node *node);
/* Member: connected to the leader. */
void group_local_follow(struct group *g);
/* Haul, HaulNext, Recorded, and Finish before the generation stands. */
void group_local_received(struct group *g, struct peer_link *link,
                          const Cairn__Peer__PeerEnvelope *e);

/* Leader: bring INDEX and COMMIT of the attempt to all nodes; attempts_recorded or attempts_failed
 * follows. Nothing happens while another one is under way: ask again. */
void group_local_commit(struct run *run, uint32_t attempt, uint32_t reason, const char *tag);
/* It is given up. */
void group_local_drop(struct run *run, uint32_t attempt);
/* Member: the leader recorded the end of the run; here, too. */
void group_local_finished(struct run *run);

/* group.c: the generation is settled on this node; the start came to nothing; so the leader said;
 * all begin anew. */
void group_settled(struct group *g, const struct start_reply *decided);
void group_give_up(struct group *g, const struct cairn_error *error);
void group_was_refused(struct group *g, const struct cairn_error *error);
void group_join_again(struct group *g, uint64_t generation_min);

#endif
