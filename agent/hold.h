/* SPDX-License-Identifier: Apache-2.0
 *
 * hold.h - a demanded cut of several ranks: all of them at one step, wherever each of them is.
 *
 *   IDLE -> HOLDING -> GOING -> IDLE
 *
 * Every saver is told to claim its rank's state and to hold it. A rank that is in an evaluation or
 * a slow batch is held at once. All level: GO, and each copies. Otherwise those behind the highest
 * step are let go and held again when they have reached it, which they can: its gradients were
 * exchanged before the first of them got there. A few tries, within HOLD_NS together, which is less
 * than a gate's deadline, so that nobody pays for ranks that do not get level; then all are let go
 * and it begins anew, as long as somebody waits.
 *
 *     hold_pump(run)            part of demand_pump, idempotent: begins, levels, goes, gives up
 *     hold_active(run)          scheduled cuts and their followers stay out of it meanwhile
 *     hold_held / _void         what savers report
 *
 * A run of one rank needs none of it. Internal to the run; the loop's thread.
 */
#ifndef CAIRN_AGENT_HOLD_H
#define CAIRN_AGENT_HOLD_H

#include "agent/run.h"

#define HOLD_NS (1500 * NSEC_PER_MSEC)
#define HOLD_PAUSE_NS (100 * NSEC_PER_MSEC) /* after it was given up */
#define HOLD_TRIES_MAX 5

/* Somebody waits for a cut that nothing covers (demand.c). */
void hold_pump(struct run *run, bool wanted);
bool hold_active(const struct run *run);
void hold_held(struct run *run, uint32_t rank, uint32_t attempt, int64_t step);
void hold_void(struct run *run, uint32_t rank);
/* The ranks are over, and the world may be another one. */
void hold_done(struct run *run);

#endif
