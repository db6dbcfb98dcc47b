/* SPDX-License-Identifier: Apache-2.0
 *
 * demand.h - cuts that somebody asked for: `cairn snapshot`, `cairn stop`, a period in time.
 * Requests that arrive while one is under way merge with it, and each gets its own answer. Internal
 * to the run; the loop's thread.
 */
#ifndef CAIRN_AGENT_DEMAND_H
#define CAIRN_AGENT_DEMAND_H

#include "agent/run.h"
#include "format/peer.pb-c.h"

void demand_pump(struct run *run);
bool demand_pending(const struct run *run);
/* A cut that nobody waits for. */
void demand_internal(struct run *run, uint64_t deadline_ns);
void demand_periodic(struct run *run);
/* The cut of a notice; false: all is committed as it stands. */
bool demand_notice(struct run *run, uint64_t deadline_ns);
bool demand_notice_pending(const struct run *run);
/* The attempt is durable as `committed` / was given up. */
void demand_committed(struct run *run, const struct run_attempt *a,
                      const struct commit_result *committed);
void demand_failed(struct run *run, const struct run_attempt *a, const struct cairn_error *error);
/* The attempt cannot be made: all hear why who waited when it was begun. Whoever came later may
 * have come after what made it fail was over: another one is begun at once. */
void demand_not_opened(struct run *run, const struct run_attempt *a,
                       const struct cairn_error *error);
/* Of a group. Leader: another node's agent (by its nonce) wants a cut. Member: its answer. */
void demand_from(struct run *run, uint64_t nonce, const Cairn__Peer__Demand *m);
void demand_heard(struct run *run, const Cairn__Peer__Demanded *m);
/* Tag and reason for the COMMIT of this attempt: 0 scheduled, 1 demanded, 2 on notice. */
const char *demand_tag(const struct run *run, const struct run_attempt *a, uint32_t *ret_reason);

#endif
