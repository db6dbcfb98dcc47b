/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_status.h - what an agent says about its runs, as JSON (docs/PROTOCOL.md lists the members).
 */
#ifndef CAIRN_TOOLS_AGENT_STATUS_H
#define CAIRN_TOOLS_AGENT_STATUS_H

#include "client/control.h"
#include <jansson.h>

/* The caller owns *ret. `run` empty: all runs of the agent. */
int agent_status_ask(struct control *agent, const char *run, uint64_t limit_ns, json_t **ret,
                     struct cairn_error *reterr);
/* The runs of every agent that this user can reach: the system's, else each private one. A socket
 * that an agent left behind is passed over. TIMEOUT: an agent is there but does not answer, and
 * *ret_runs holds what the others told; the caller owns it in any case, and it may be NULL. */
int agent_status_everywhere(uint64_t limit_ns, json_t **ret_runs, struct cairn_error *reterr);
/* Members; "" or 0 where there is none. */
const char *agent_status_text(const json_t *object, const char *key);
int64_t agent_status_integer(const json_t *object, const char *key);
uint64_t agent_status_ns(const json_t *object, const char *key); /* of seconds */
/* What the agent decided on a notice, in words. */
const char *agent_status_decision(const char *decision);

#endif
