/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/agent_call.h"

#include "format/wire.h"
#include "tools/agent_process.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int agent_call_open(struct control *c, const char *run, uint64_t limit_ns,
                    struct cairn_error *reterr) {
        char path[PATH_MAX];
        bool system_agent;
        control_init(c, &clock_system);
        TRY(agent_process_socket(run, path, sizeof path, &system_agent, reterr));
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = control_connect(c, path, &e);
        if (r < 0 && !system_agent)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "reach the agent of run", run,
                                 "nothing answers at %s: the run is not running on this machine; "
                                 "`cairn list` shows "
                                 "its checkpoints",
                                 path);
        if (r < 0) {
                if (reterr)
                        *reterr = e;
                return r;
        }
        return control_greet(c, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, run,
                             clock_now(&clock_system) + limit_ns, reterr);
}

ProtobufCBinaryData agent_call_text(const char *text) {
        return (ProtobufCBinaryData){.len = text ? strlen(text) : 0,
                                     .data = (uint8_t *) (uintptr_t) text};
}

int agent_call_lost(const struct command *self, const char *run,
                    const Cairn__Control__StopReply *reply) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char why[700], committed[48] = "nothing";
        if (!reply->failure)
                return 0;
        wire_failure_read(reply->failure, &e);
        if (reply->step >= 0)
                (void) snprintf(committed, sizeof committed, "only step %" PRId64, reply->step);
        return command_fail_text(
                self, e.status, "run '%s' was stopped at step %" PRId64 ", but %s is committed: %s",
                run, reply->reached, committed, error_format(&e, why, sizeof why));
}
