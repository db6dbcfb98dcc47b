/* SPDX-License-Identifier: Apache-2.0
 *
 * locate.h - the path of a file that belongs to this room and is loaded or started at run time. The
 * environment variable comes first and is then the only place; else beside the program, as built,
 * or in ../lib/cairn, as installed. Any thread.
 */
#ifndef CAIRN_COMM_LOCATE_H
#define CAIRN_COMM_LOCATE_H

#include "base/status.h"

/* UNSUPPORTED says where it was looked for. */
int locate(const char *variable, const char *file, char *ret, size_t bytes,
           struct cairn_error *reterr);

#endif
