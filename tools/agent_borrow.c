/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/agent_borrow.h"

#include "tools/agent_call.h"
#include "tools/agent_process.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_NS (20 * NSEC_PER_SEC)
#define RETRY_NS (5 * NSEC_PER_MSEC)
#define END_NS (10 * NSEC_PER_SEC)

/* Beside the runs' sockets; no run's name has an @, so that nobody takes it for one. */
static int private_socket(struct borrowed *b, struct cairn_error *reterr) {
        char *slash = strrchr(b->socket, '/');
        size_t room = slash ? sizeof b->socket - (size_t) (slash + 1 - b->socket) : 0;
        if (!slash || (size_t) snprintf(slash + 1, room, "@%d.sock", (int) getpid()) >= room)
                return error_set(reterr, CAIRN_ERR_API, "start agent", b->socket,
                                 "the path of its socket is too long");
        return 0;
}

static int greet(struct borrowed *b, uint64_t deadline_ns, struct cairn_error *reterr) {
        for (;;) {
                int wait_status;
                if (control_connect(&b->control, b->socket, NULL) == 0)
                        return control_greet(&b->control, CAIRN__CONTROL__PEER_KIND__PEER_TOOL,
                                             NULL, deadline_ns, reterr);
                if (waitpid(b->pid, &wait_status, WNOHANG) == b->pid) {
                        b->pid = 0;
                        return error_set(reterr, CAIRN_ERR_UNREACHABLE, "start agent", b->socket,
                                         "cairnd ended at once; what it said is above");
                }
                if (clock_now(&clock_system) > deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "start agent", b->socket,
                                         "it does not listen");
                clock_system.sleep_ns(clock_system.context, RETRY_NS);
        }
}

int agent_borrow(struct borrowed *b, const char *store, const char *run,
                 struct cairn_error *reterr) {
        bool system_agent;
        *b = (struct borrowed){0};
        control_init(&b->control, &clock_system);
        TRY(agent_process_socket(run, b->socket, sizeof b->socket, &system_agent, reterr));
        if (system_agent)
                return agent_call_open(&b->control, run, AGENT_GREET_NS, reterr);
        if (control_connect(&b->control, b->socket, NULL) == 0)
                return control_greet(&b->control, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, run,
                                     clock_now(&clock_system) + AGENT_GREET_NS, reterr);
        TRY(private_socket(b, reterr));
        TRY(agent_process_start(store, b->socket, -1, &b->pid, reterr));
        return greet(b, clock_now(&clock_system) + START_NS, reterr);
}

void agent_return(struct borrowed *b) {
        uint64_t deadline_ns = clock_now(&clock_system) + END_NS;
        control_done(&b->control);
        if (b->pid <= 0)
                return;
        (void) kill(b->pid, SIGTERM);
        while (waitpid(b->pid, NULL, WNOHANG) == 0) {
                if (clock_now(&clock_system) > deadline_ns) {
                        (void) kill(b->pid, SIGKILL);
                        (void) waitpid(b->pid, NULL, 0);
                        (void) unlink(b->socket);
                        break;
                }
                clock_system.sleep_ns(clock_system.context, RETRY_NS);
        }
        b->pid = 0;
}
