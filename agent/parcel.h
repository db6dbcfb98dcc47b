/* SPDX-License-Identifier: Apache-2.0
 *
 * parcel.h - files of a store on their way from the store process to a saver: one descriptor that
 * holds them all, a socket with them in its only packet.
 *
 *     parcel_pack(fds, count, &parcel, reterr);      the store process; the files stay the caller's
 *     ...the parcel travels like any descriptor; cairnd may close it...
 *     parcel_unpack(parcel, fds, count, reterr);     the saver; exactly so many, or none
 *
 * cairnd never holds such a file itself: some file systems ask their server whenever a descriptor
 * is closed, and a server that does not answer would stop its loop. A parcel that is closed
 * unopened lets go of its files without asking anybody. Neither verb waits.
 */
#ifndef CAIRN_AGENT_PARCEL_H
#define CAIRN_AGENT_PARCEL_H

#include "base/limits.h"
#include "base/status.h"

int parcel_pack(const int *fds, size_t count, int *ret_parcel, struct cairn_error *reterr);
int parcel_unpack(int parcel, int *ret_fds, size_t count, struct cairn_error *reterr);

#endif
