/* SPDX-License-Identifier: Apache-2.0
 *
 * service.h - the service manager learns how the agent is: one datagram to $NOTIFY_SOCKET, as
 * sd_notify(3) describes it. The protocol is stable and this small, so that cairnd needs no library
 * of systemd and runs where there is none. Nothing happens where the variable is not set; failures
 * are of no consequence.
 */
#ifndef CAIRN_AGENT_SERVICE_H
#define CAIRN_AGENT_SERVICE_H

/* "READY=1\nSTATUS=serving". */
void service_notify(const char *state);

#endif
