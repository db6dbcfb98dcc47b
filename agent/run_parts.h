/* SPDX-License-Identifier: Apache-2.0
 *
 * run_parts.h - what the files of a run share among themselves; others use run.h.
 *
 *   run.c        its states, its requests to the store, the pump
 *   run_start.c  Start: judged, claimed, answered
 *   run_ranks.c  trainers come, wait for their predecessor, and are reaped
 *   run_end.c    stop, finish, end
 *   attempt.c, demand.c, postmortem.c  have headers of their own
 *
 * The loop's thread.
 */
#ifndef CAIRN_AGENT_RUN_PARTS_H
#define CAIRN_AGENT_RUN_PARTS_H

#include "agent/run.h"

void run_set_state(struct run *run, enum run_state to);
/* NULL: no memory, or no slot. It is STARTING and on the agent's list. */
struct run *run_new(struct agent *a, const char *name);
/* To each trainer that lives. */
void run_signal_all(struct run *run, int signal_number);
/* The trainers find the wish to stop in their pages. */
void run_wish_stop(struct run *run);

/* The pump's steps: idempotent, nothing happens where nothing is due. */
void run_begin_start(struct run *run);
void run_stop_check(struct run *run);
void run_finish_check(struct run *run);
void run_end_check(struct run *run);

/* This run's Start is decided, or is not: answers its runner. */
void run_ask_store(struct run *run);
void run_started(struct run *run, const struct start_reply *decided);
void run_start_failed(struct run *run, const struct cairn_error *error);
/* The group's leader recorded that the run is complete, or could not. */
void run_heard_finished(struct run *run, const struct cairn_error *error);

/* Tell a successor how long its predecessor may still take. */
void run_send_wait(struct run *run, const struct held_hello *h);

#endif
