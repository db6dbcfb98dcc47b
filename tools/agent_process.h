/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_process.h - finding and starting the programs beside `cairn`, and the private agent of
 * `cairn run`.
 */
#ifndef CAIRN_TOOLS_AGENT_PROCESS_H
#define CAIRN_TOOLS_AGENT_PROCESS_H

#include "base/status.h"
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

/* Path of a program of ours: beside this executable, else in $PATH. */
int agent_process_find(const char *name, char *path, size_t bytes, struct cairn_error *reterr);
/* Start `cairnd --embedded PID --store STORE --socket SOCKET`, which ends when this process is
 * gone; its standard error goes to log_fd (-1: ours). */
int agent_process_start(const char *store, const char *socket, int log_fd, pid_t *ret_pid,
                        struct cairn_error *reterr);
/* Socket of the system agent, or the one that $CAIRN_SOCKET names; NULL: there is none. */
const char *agent_process_system(void);
/* Is a system agent (or one named by $CAIRN_SOCKET) in charge of this run? Fills `path` with the
 * socket in any case. */
int agent_process_socket(const char *run, char *path, size_t bytes, bool *ret_system,
                         struct cairn_error *reterr);

#endif
