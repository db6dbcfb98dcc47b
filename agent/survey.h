/* SPDX-License-Identifier: Apache-2.0
 *
 * survey.h - a run in node-local stores: what each node's directory holds, seen as one. Each node
 * has the data of its own ranks alone, so that a checkpoint is one only where all nodes have their
 * parts of it.
 *
 *     survey_merge(nodes, count, &merged, &e)      // then intent.c judges `merged` like any scan
 *     survey_holder(nodes, count, choice)          // has COMMIT; -1: it has to be made anew
 *
 * In `merged` a checkpoint is
 *   VALID (FLAGGED)     every node has committed its part, with one and the same COMMIT
 *   ROLLABLE (FLAGGED)  an attempt, named as the checkpoint would be: every node has its part
 *                       whole, some have not committed it; INDEX and COMMIT are to be brought there
 *   DAMAGED             some node lacks its part, and the error says which
 * and the lineage is that of the newest generation which was started on any node: a start that
 * reached some nodes only counts, as nobody can tell what followed from it.
 *
 * The set of nodes of a run does not change: the data of a node that is not there cannot be read by
 * any other. Once there is anything to resume, nodes of other names or with other numbers of ranks
 * are refused.
 *
 * Pure: no storage, no clock.
 */
#ifndef CAIRN_AGENT_SURVEY_H
#define CAIRN_AGENT_SURVEY_H

#include "format/scan.h"

struct survey_node {
        struct scan_node place; /* its name, and its ranks in the generation to come */
        uint8_t store_id[16];
        struct run_scan scan; /* of its directory */
};

/* MISMATCH: other nodes than the run's own, or two that write into one directory. The result is
 * freed by run_scan_done. */
int survey_merge(const struct survey_node *nodes, size_t count, const char *run,
                 struct run_scan *ret, struct cairn_error *reterr);
/* The first node that has committed this checkpoint of a merged scan; -1: none has. */
int survey_holder(const struct survey_node *nodes, size_t count, const struct scan_checkpoint *c);

/* A node's survey as it travels, peer.proto's Holds (survey_wire.c). What is read is checked as if
 * anybody had sent it; place is the caller's to fill. survey_node_done frees. */
int survey_write(const struct run_scan *scan, const uint8_t store_id[16], int *ret_memfd,
                 struct cairn_error *reterr);
int survey_read(const void *bytes, size_t count, struct survey_node *ret,
                struct cairn_error *reterr);
void survey_node_done(struct survey_node *node);

#endif
