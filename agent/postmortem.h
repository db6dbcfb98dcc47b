/* SPDX-License-Identifier: Apache-2.0
 *
 * postmortem.h - the last state of trainers that died: whether it is worth a cut, how they ended,
 * and what is lost where there is none.
 *
 *     postmortem_pump(run);               // decides and orders; part of run_pump, idempotent
 *     postmortem_pending(s)               // the session may not be settled yet
 *     postmortem_settled(run, s);         // counts the steps that are lost
 *
 * A trainer outside its update left a whole state in memfds that do not need it. The cut is taken
 * by the session's saver like any other, told by SAVER_TAKE how the trainer ended, once what was in
 * flight before has been committed or given up. The ranks of a group must all be dead and stand at
 * one step. Internal to the run; the loop's thread.
 */
#ifndef CAIRN_AGENT_POSTMORTEM_H
#define CAIRN_AGENT_POSTMORTEM_H

#include "agent/run.h"

void postmortem_pump(struct run *run);
bool postmortem_pending(const struct session *s);
/* Its runner reaped it, or the process it had started: pid 0 is unknown. */
void postmortem_reaped(struct session *s, int wait_status, pid_t pid);
void postmortem_settled(struct run *run, const struct session *s);

#endif
