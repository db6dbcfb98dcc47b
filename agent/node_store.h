/* SPDX-License-Identifier: Apache-2.0
 *
 * node_store.h - what the store process of one node does in a node-local store, where the group's
 * leader decides for all (group_local.h). Each verb is told what it needs, looks at what is there
 * and may be asked again; what travels between nodes comes and goes as a memfd with one message of
 * peer.proto.
 *
 *   start    look -> survey -> (records | parts -> compose) -> settle
 *   commit   parts -> compose -> record, on every node -> commit_rename (commit.h), on every node
 *
 * Child of the store process only; blocking.
 */
#ifndef CAIRN_AGENT_NODE_STORE_H
#define CAIRN_AGENT_NODE_STORE_H

#include "agent/commit.h"

/* Its kind, 0: there is no store yet, and the run's highest claim. */
struct node_look {
        struct store_marker marker;
        uint64_t generation_max;
};
int node_look(struct store *store, const char *run, struct node_look *ret,
              struct cairn_error *reterr);
/* Holds: what is here of the run; committed checkpoints are checked, without their data. */
int node_survey(struct store *store, const char *run, int *ret_memfd, struct cairn_error *reterr);
/* Parts: the manifests of this node's ranks in an attempt, under way, set aside or committed, after
 * a look at their data files. */
int node_parts(struct store *store, const char *run, uint64_t generation, uint32_t attempt,
               int *ret_memfd, struct cairn_error *reterr);
/* Records, made from the Parts of all nodes, one after the other in `parts_fd`. Writes nothing. */
int node_compose(struct store *store, const char *run, const struct commit_source *source,
                 int parts_fd, int *ret_memfd, struct cairn_error *reterr);
/* Records of a checkpoint that is committed here. */
int node_records(struct store *store, const char *run, uint64_t generation, uint32_t attempt,
                 int *ret_memfd, struct cairn_error *reterr);
/* Records into this node's own directory of the attempt, durable: it can be rolled forward. */
int node_record(struct store_run *run, struct attempt *a, int records_fd,
                struct cairn_error *reterr);
/* Settle: GEN-n, what is older set aside, the parent rolled forward if it is an attempt, then
 * GEN-n.start. `node`: whose directory this is, or becomes. */
int node_settle(struct store *store, const char *run, const char *node, uint64_t generation,
                int settle_fd, struct store_run *ret_run, struct start_reply *ret,
                struct cairn_error *reterr);

#endif
