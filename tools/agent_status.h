/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_status.h - what an agent says about its runs, as JSON (docs/PROTOCOL.md lists the members).
 */
#ifndef CAIRN_TOOLS_AGENT_STATUS_H
#define CAIRN_TOOLS_AGENT_STATUS_H

#include "client/control.h"
#include <jansson.h>

#define AGENT_STATUS_ANSWER_NS (10 * NSEC_PER_SEC)

/* The caller owns *ret. `run` empty: all runs of the agent. */
int agent_status_ask(struct control *agent, const char *run, json_t **ret,
                     struct cairn_error *reterr);
/* The runs of every agent that this user can reach: the system's, else each private one. Agents
 * that do not answer are passed over. */
int agent_status_everywhere(json_t **ret_runs, struct cairn_error *reterr);
/* Members; "" or 0 where there is none. */
const char *agent_status_text(const json_t *object, const char *key);
int64_t agent_status_integer(const json_t *object, const char *key);
uint64_t agent_status_ns(const json_t *object, const char *key); /* of seconds */

#endif
