/* SPDX-License-Identifier: Apache-2.0
 *
 * exits.h - exit statuses of a trainer or of `cairn run` after which another start cannot do
 * better (docs/OPERATIONS.md): no restart, and no other node of a group waits for one.
 */
#ifndef CAIRN_EXITS_H
#define CAIRN_EXITS_H

/* Why, in a few words; NULL: it may be started again. */
const char *exit_final_reason(int code);

#endif
