/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_call.h - one question to the agent of a run: connect, greet, ask, be answered.
 */
#ifndef CAIRN_TOOLS_AGENT_CALL_H
#define CAIRN_TOOLS_AGENT_CALL_H

#include "client/control.h"
#include "tools/command.h"

/* What an agent takes to answer is nothing, unless it is stopped or the machine is overloaded: who
 * only looks says so soon, who wants something of it waits longer. */
#define AGENT_LOOK_NS (2 * NSEC_PER_SEC)
#define AGENT_GREET_NS (10 * NSEC_PER_SEC)

/* Connect to the agent in charge of `run` and greet as a tool. UNREACHABLE says that the run is not
 * running here, TIMEOUT that its agent does not answer. */
int agent_call_open(struct control *c, const char *run, uint64_t limit_ns,
                    struct cairn_error *reterr);
/* Bytes field of a message from text (borrowed); NULL is empty. */
ProtobufCBinaryData agent_call_text(const char *text);
/* 0, or the exit status after saying what the last snapshot of a stopped run could not save. */
int agent_call_lost(const struct command *self, const char *run,
                    const Cairn__Control__StopReply *reply);

#endif
