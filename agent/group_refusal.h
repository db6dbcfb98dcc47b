/* SPDX-License-Identifier: Apache-2.0
 *
 * group_refusal.h - the last word of a node whose start came to nothing for good (exits.h), or
 * found the run finished: the others wait for it, and would until their `cairn run` gives up.
 *
 * The node leaves, and comes back as a member that is no node: `refused-NONCE`, whose detail says
 *
 *     refused all|node STATUS NODE TEXT        status: enum cairn_status, 0: the run is finished
 *
 * "all": any node would be told the same, for it was the run that was judged. "node": the others
 * do without this one, if they are enough. It stays until nobody waits any more, for
 * RENDEZVOUS_LOSS_NS at most; for so long in any case where a generation had been made. A start
 * that sees it ends with the same status and sentence. A run that goes on ends only for a node that
 * belonged to its group.
 *
 * The loop's thread.
 */
#ifndef CAIRN_AGENT_GROUP_REFUSAL_H
#define CAIRN_AGENT_GROUP_REFUSAL_H

#include "agent/group.h"

/* Leaves, too. `run_started` or `run_start_failed` is the caller's. */
void group_refuse(struct group *g, bool all, const struct cairn_error *error);
void group_refuse_finished(struct group *g, const char *reason);
/* While forming. True: some node was refused, and this start has ended with it. */
bool group_heed_refusal(struct group *g, const struct rendezvous_view *v);
/* *ret: the same without members that are no nodes. Where there are any its members lie in *memory,
 * which the caller frees, else that is NULL. */
int group_without_refusals(const struct rendezvous_view *v, struct rendezvous_view *ret,
                           struct rendezvous_member **memory, struct cairn_error *reterr);
/* In GROUP_TELLING: its timer. */
void group_refusal_pump(struct group *g);

/* group.c */
void group_set_state(struct group *g, enum group_state to, uint64_t deadline_ns);
void group_drop_links(struct group *g);

#endif
