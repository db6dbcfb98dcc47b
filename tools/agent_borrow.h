/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_borrow.h - an agent for one request about a stored run: the one that serves the run, else
 * the system's, else a private one that is started for it and ended again.
 *
 *     struct borrowed b;
 *     TRY(agent_borrow(&b, store, run, reterr));      store: absolute path
 *     control_call(&b.control, ...);
 *     agent_return(&b);                                always, also after a failure
 */
#ifndef CAIRN_TOOLS_AGENT_BORROW_H
#define CAIRN_TOOLS_AGENT_BORROW_H

#include "client/control.h"
#include <limits.h>
#include <sys/types.h>

struct borrowed {
        struct control control;
        pid_t pid; /* private agent; 0: none */
        char socket[PATH_MAX];
};

int agent_borrow(struct borrowed *b, const char *store, const char *run,
                 struct cairn_error *reterr);
void agent_return(struct borrowed *b);

#endif
