/* SPDX-License-Identifier: Apache-2.0
 *
 * worker.h - a thread that makes calls which may never return, for one that must.
 *
 *     worker_new(&w, begin, context, &e);           // begin(context) runs first, in the thread
 *     worker_start(w, f, argument);                 // it is idle
 *     while (!worker_wait(w, soon)) ...             // 0: still in it
 *     if (!worker_free(w)) ...                      // false: it is, and stays; so has its argument
 *
 * All signals are blocked in the thread. One thread uses a worker.
 */
#ifndef CAIRN_COMM_WORKER_H
#define CAIRN_COMM_WORKER_H

#include "base/status.h"
#include <stdbool.h>

struct worker;

int worker_new(struct worker **ret, void (*begin)(void *context), void *context,
               struct cairn_error *reterr);
void worker_start(struct worker *w, void (*f)(void *argument), void *argument);
bool worker_wait(struct worker *w, uint64_t deadline_ns); /* whether it is idle */
/* NULL allowed. A thread that is in a call is left behind, with what it uses. */
bool worker_free(struct worker *w);

#endif
