/* SPDX-License-Identifier: Apache-2.0
 *
 * stop.h - SIGTERM and SIGINT as a wish that the loop sees at its next step boundary. The handler
 * only records: what is to be saved is saved by the loop, never inside a handler. A second SIGINT
 * half a second or more after the first ends the process at once. Signals have no argument, so the
 * record is this room's one global.
 */
#ifndef CAIRN_TRAINER_STOP_H
#define CAIRN_TRAINER_STOP_H

void stop_init(void);
int stop_signal(void); /* SIGTERM, SIGINT or 0 */

#endif
