/* SPDX-License-Identifier: Apache-2.0
 *
 * attempt.h - a run's attempts at checkpoints: opened ahead of need, handed to the savers,
 * published, committed or discarded (run.h tells the order). Internal to the run; the loop's
 * thread.
 */
#ifndef CAIRN_AGENT_ATTEMPT_H
#define CAIRN_AGENT_ATTEMPT_H

#include "agent/run.h"
#include "format/peer.pb-c.h"

void attempts_init(struct run *run);
void attempts_done(struct run *run);
void attempts_pump(struct run *run);
/* Every attempt that is not being committed is given up; `error` NULL: nobody's fault. */
void attempts_doom_all(struct run *run, const struct cairn_error *error);
size_t attempts_open_count(const struct run *run);
/* Ranks that have come as far or further. */
uint32_t attempt_count(const struct run_attempt *a, enum rank_state least);
/* Is a cut of this rank at or after `seq` between copy and commit? */
bool attempts_cover(const struct run *run, uint32_t rank, uint64_t seq);
/* The same, whatever the seq. */
bool attempts_in_flight(const struct run *run, uint32_t rank);
/* Is this attempt open, and every rank armed with it and not cut yet? */
bool attempts_untouched(const struct run *run, uint32_t number);
/* Ranks of this attempt that are cut; all of them if it is over. */
uint32_t attempts_cut_count(const struct run *run, uint32_t number);
/* Some ranks of an attempt are cut and others are not. */
bool attempts_uneven(const struct run *run);

/* Node-local stores: the attempt's INDEX and COMMIT are durable on all nodes; or it came to
 * nothing, here and so everywhere. */
void attempts_recorded(struct run *run, uint32_t number);
void attempts_failed(struct run *run, uint32_t number, const struct cairn_error *error);

/* Of a group. Leader: tell a member that came which attempts are open, and hear its reports. */
struct peer_link;
void attempts_tell_newcomer(struct run *run, struct peer_link *link);
void attempts_heard_rank(struct run *run, const Cairn__Peer__Rank *m);
/* Both: it is given up there. Member: what the leader says. */
void attempts_heard_doom(struct run *run, uint32_t number, const struct cairn_error *error);
void attempts_heard_open(struct run *run, uint32_t number);
void attempts_heard_committed(struct run *run, uint32_t number, const struct commit_result *c);
void attempts_heard_follow(struct run *run, uint32_t number, int64_t step);

#endif
