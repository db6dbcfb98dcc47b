/* SPDX-License-Identifier: Apache-2.0
 *
 * agent_watch.h - notices that an agent does not answer, which its open connection does not tell:
 * it was stopped, or waits for something it should not wait for. Training goes on without it, so
 * this only says so, once, and that it is over.
 *
 *     struct agent_watch w = {0};
 *     agent_watch_ask(&w, &control, run);   // again and again, at least every AGENT_WATCH_EVERY_NS
 *     agent_watch_heard(&w, run);           // whenever something came from it
 *
 * The answer is dropped by whoever reads the connection next. One thread.
 */
#ifndef CAIRN_TOOLS_AGENT_WATCH_H
#define CAIRN_TOOLS_AGENT_WATCH_H

#include "client/control.h"

#define AGENT_WATCH_EVERY_NS NSEC_PER_SEC
#define AGENT_SILENT_NS (3 * NSEC_PER_SEC)

struct agent_watch {
        uint64_t asked_ns; /* unanswered since; 0: nothing is asked */
        uint64_t next_ns;
        bool said;
};

void agent_watch_ask(struct agent_watch *w, struct control *c, const char *run);
void agent_watch_heard(struct agent_watch *w, const char *run);

#endif
