/* SPDX-License-Identifier: Apache-2.0
 *
 * service.h - what the service manager and the agent tell each other: one datagram to
 * $NOTIFY_SOCKET, as sd_notify(3) describes it, and a socket that it listens at for us, as
 * sd_listen_fds(3) does. Both protocols are stable and this small, so that cairnd needs no library
 * of systemd and runs where there is none. Nothing happens where the variables are not set.
 */
#ifndef CAIRN_AGENT_SERVICE_H
#define CAIRN_AGENT_SERVICE_H

#include "base/status.h"

/* "READY=1\nSTATUS=serving". */
void service_notify(const char *state);
/* The listening socket that was handed over for this process, close-on-exec; 0: none. Its path goes
 * to `path`. API: it is not one at which we can listen, or there are several. The variables are
 * taken out of the environment: they are not for our children. */
int service_socket(char *path, size_t bytes, struct cairn_error *reterr);

#endif
