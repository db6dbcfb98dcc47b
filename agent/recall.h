/* SPDX-License-Identifier: Apache-2.0
 *
 * recall.h - what was decided when a generation started, read back from its GEN-n and GEN-n.start:
 * for an agent that was restarted and takes a run up again. Store process; changes nothing.
 */
#ifndef CAIRN_AGENT_RECALL_H
#define CAIRN_AGENT_RECALL_H

#include "agent/store.h"

/* `note` stays empty. NOTFOUND: the generation never started. */
int generation_recall(const struct store_run *run, uint64_t generation, struct start_reply *ret,
                      struct cairn_error *reterr);

#endif
