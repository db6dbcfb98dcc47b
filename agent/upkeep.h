/* SPDX-License-Identifier: Apache-2.0
 *
 * upkeep.h - what an operator changes in a stored run, whether it is running or not: prune, pin,
 * unpin. The store process does it; these requests wait for it without holding anything else up.
 *
 * A run that this agent serves is found by its name, its own store counts; any other is named by
 * run and store, and is locked for the one request (the store process refuses while another agent
 * serves it).
 */
#ifndef CAIRN_AGENT_UPKEEP_H
#define CAIRN_AGENT_UPKEEP_H

#include "agent/agent.h"

int upkeep_prune(struct agent *a, const struct reply_to *to, const Cairn__Control__PruneRequest *m,
                 struct cairn_error *reterr);
int upkeep_pin(struct agent *a, const struct reply_to *to, const Cairn__Control__PinRequest *m,
               struct cairn_error *reterr);
/* Forget what was not answered; the store process is gone. */
void upkeep_done(struct agent *a);

#endif
