/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn stop - one snapshot, commit, an orderly end.
 */
#include "base/cleanup.h"
#include "tools/agent_call.h"
#include "tools/command.h"
#include "tools/store_view.h"
#include <inttypes.h>
#include <stdio.h>

#define STOP_DEADLINE_NS_DEFAULT (120 * NSEC_PER_SEC)
#define STOP_ANSWER_MARGIN_NS (30 * NSEC_PER_SEC)

int command_stop(const struct command *self, int argc, char **argv) {
        const char *run = NULL;
        uint64_t deadline_ns = STOP_DEADLINE_NS_DEFAULT;
        size_t count;
        const struct option_row rows[] = {
                {"--deadline", "S", OPTION_DURATION, &deadline_ns,
                 "end the trainer by force after this time (default 120s)", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &run, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        _cleanup_(control_done) struct control agent;
        control_init(&agent, &clock_system);
        if (store_view_run_name(run, &run, &e) < 0 ||
            agent_call_open(&agent, run, AGENT_GREET_NS, &e) < 0)
                return command_fail(self, &e);
        Cairn__Control__StopRequest request = CAIRN__CONTROL__STOP_REQUEST__INIT;
        request.run = agent_call_text(run);
        request.deadline_ns = deadline_ns;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        CONTROL_SET(&envelope, STOP_REQUEST, stop_request, &request);
        if (control_call(&agent, &envelope, NULL, 0, CONTROL_REPLY(STOP_REPLY),
                         clock_now(&clock_system) + deadline_ns + STOP_ANSWER_MARGIN_NS, &reply,
                         NULL, &e) < 0)
                return command_fail(self, &e);
        r = agent_call_lost(self, run, reply->stop_reply);
        if (r != 0)
                return r;
        if (reply->stop_reply->step < 0)
                printf("stopped; nothing was committed\n");
        else
                printf("stopped; step %" PRId64
                       " is committed, `cairn run --mode resume` continues there\n",
                       reply->stop_reply->step);
        return 0;
}
