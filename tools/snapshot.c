/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn snapshot - a checkpoint now, at the last finished step, without stopping the trainer.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "tools/agent_call.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SNAPSHOT_TIMEOUT_NS_DEFAULT (60 * NSEC_PER_SEC)
#define SNAPSHOT_ANSWER_MARGIN_NS \
        (5 * NSEC_PER_SEC) /* the agent times the request; this only ends a dead one */
#define TAG_BYTES_MAX 128

static int print_reply(const Cairn__Control__SnapshotReply *reply, bool waited, uint64_t took_ns,
                       bool json) {
        char name[128], bytes[32], took[32];
        text_escape(name, sizeof name, (const char *) reply->checkpoint.data,
                    reply->checkpoint.len);
        if (json)
                return print_json(json_pack("{s:s, s:I, s:I, s:b, s:b, s:I}", "checkpoint", name,
                                            "step", (json_int_t) reply->step, "bytes",
                                            (json_int_t) reply->bytes, "committed",
                                            waited || reply->existed, "existed", reply->existed,
                                            "took_ns", (json_int_t) took_ns));
        if (reply->existed)
                printf("step %" PRId64 " was committed before: %s\n", reply->step, name);
        else if (waited)
                printf("step %" PRId64 " committed as %s (%s) in %s\n", reply->step, name,
                       human_bytes(reply->bytes, bytes), human_duration(took_ns, took));
        else
                printf("step %" PRId64
                       " taken; it is being written (add --wait to wait for the commit)\n",
                       reply->step);
        return 0;
}

int command_snapshot(const struct command *self, int argc, char **argv) {
        const char *run = NULL, *tag = NULL;
        bool wait = false, json = false;
        uint64_t timeout_ns = SNAPSHOT_TIMEOUT_NS_DEFAULT;
        size_t count;
        const struct option_row rows[] = {
                {"--wait", NULL, OPTION_FLAG, &wait,
                 "return when it is committed, not when it is taken", NULL},
                {"--timeout", "S", OPTION_DURATION, &timeout_ns,
                 "give up after this time (default 60s; exit 124)", NULL},
                {"--tag", "T", OPTION_STRING, &tag, "a note stored with the checkpoint", NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &run, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (tag && strlen(tag) > TAG_BYTES_MAX)
                return command_fail_text(self, CAIRN_ERR_API, "--tag takes at most %d bytes",
                                         TAG_BYTES_MAX);
        _cleanup_(control_done) struct control agent;
        control_init(&agent, &clock_system);
        if (store_view_run_name(run, &run, &e) < 0 || agent_call_open(&agent, run, &e) < 0)
                return command_fail(self, &e);
        Cairn__Control__SnapshotRequest request = CAIRN__CONTROL__SNAPSHOT_REQUEST__INIT;
        request.run = agent_call_text(run);
        request.tag = agent_call_text(tag);
        request.wait = wait;
        request.timeout_ns = timeout_ns;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        CONTROL_SET(&envelope, SNAPSHOT_REQUEST, snapshot_request, &request);
        uint64_t start_ns = clock_now(&clock_system);
        if (control_call(&agent, &envelope, NULL, 0, CONTROL_REPLY(SNAPSHOT_REPLY),
                         start_ns + timeout_ns + SNAPSHOT_ANSWER_MARGIN_NS, &reply, NULL, &e) < 0)
                return command_fail(self, &e);
        return print_reply(reply->snapshot_reply, wait, clock_now(&clock_system) - start_ns, json);
}
