/* SPDX-License-Identifier: Apache-2.0
 *
 * status.h - what `cairn status` shows, as JSON (keys in docs/PROTOCOL.md). Reads the agent and the
 * sessions' pages, changes nothing.
 */
#ifndef CAIRN_AGENT_STATUS_H
#define CAIRN_AGENT_STATUS_H

#include "agent/agent.h"

#define STATUS_PACKET_BYTES (96 * KiB)

/* `name` empty: all runs. malloc'ed text, caller frees. NOTFOUND: no such run here. */
int status_json(struct agent *a, const char *name, char **ret, struct cairn_error *reterr);
/* As StatusReply packets. */
void status_send(const struct reply_to *to, const char *json);

#endif
