/* SPDX-License-Identifier: Apache-2.0
 *
 * park.h - a rank of a group has failed: the others are kept from finishing a step that it did not
 * finish, so that the memory of all of them holds one and the same step, which is then taken
 * (postmortem.h).
 *
 * Those that stand at its step are parked: cairnd claims their state like a copier, so they wait at
 * the gate, and copies nothing. Those that are behind go on until they get there, which they can:
 * its gradients were exchanged before the failed one finished it. When all are parked they are
 * ended, for the group cannot go on; `cairn run` would do the same, but later than a gate's
 * deadline. Where one has come further, or the failed one died inside its update, there is no such
 * step: all are let go, and end at their next exchange or by `cairn run`.
 *
 *     park_pump(run)      part of run_pump, before postmortem_pump; idempotent
 *
 * A rank that ended with 0 or 75 has not failed. Internal to the run; the loop's thread.
 */
#ifndef CAIRN_AGENT_PARK_H
#define CAIRN_AGENT_PARK_H

#include "agent/run.h"

enum park_verdict {
        PARK_NOBODY_FAILED,
        PARK_IMPOSSIBLE, /* not all can be brought to one step */
        PARK_WAIT,       /* park who stands at *ret_step, wait for the others */
        PARK_LEVEL       /* all that live are parked */
};
struct park_rank {
        bool is_there, is_dead, has_failed, is_parked;
        enum cut_phase phase;
        int64_t step; /* the last finished one */
};

/* Pure. */
enum park_verdict park_judge(const struct park_rank *ranks, uint32_t count, int64_t *ret_step);
void park_pump(struct run *run);

#endif
