/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.h - `cairnd --probe`: what the saver's I/O thread finds on this machine, as one JSON object
 * on standard output, for `cairn doctor`:
 *
 *     {"backend": "io_uring", "registered_bytes": 67108864, "warning": null}
 *
 * A real ring is set up and a real memfd registered; both are gone afterwards. The result is an
 * exit status.
 */
#ifndef CAIRN_AGENT_PROBE_H
#define CAIRN_AGENT_PROBE_H

int probe_main(void);

#endif
