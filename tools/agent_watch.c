/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/agent_watch.h"
#include "tools/agent_call.h"
#include <stdio.h>

void agent_watch_ask(struct agent_watch *w, struct control *c, const char *run) {
        uint64_t now_ns = clock_now(c->clock);
        if (w->asked_ns && now_ns >= w->asked_ns + AGENT_SILENT_NS && !w->said) {
                w->said = true;
                fprintf(stderr,
                        "cairn run: %s: the agent does not answer: it is stopped, or the machine "
                        "is "
                        "overloaded; training goes on, nothing is committed until it answers\n",
                        run);
        }
        if (w->asked_ns || now_ns < w->next_ns || c->socket < 0)
                return;
        Cairn__Control__StatusRequest request = CAIRN__CONTROL__STATUS_REQUEST__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        request.run = agent_call_text(run);
        CONTROL_SET(&e, STATUS_REQUEST, status_request, &request);
        w->next_ns = now_ns + AGENT_WATCH_EVERY_NS;
        if (control_send(c, &e, NULL, 0, now_ns, NULL, NULL) == 0)
                w->asked_ns = now_ns;
}

void agent_watch_heard(struct agent_watch *w, const char *run) {
        if (w->said)
                fprintf(stderr, "cairn run: %s: the agent answers again\n", run);
        w->said = false;
        w->asked_ns = 0;
}
