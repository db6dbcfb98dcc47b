/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn notify - rehearse that this machine goes away: the run's agent gets the event that a
 * cloud's notice would be, and does what it would do then.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "tools/agent_call.h"
#include "tools/agent_status.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REBALANCE_NS_DEFAULT (120 * NSEC_PER_SEC)

static int print_notice(const Cairn__Control__Notice *n, const char *run, bool json) {
        char decision[32], kind[80], id[80], bytes[32], flight[32], rate[32], left[32], need[32];
        text_escape(decision, sizeof decision, (const char *) n->decision.data, n->decision.len);
        text_escape(kind, sizeof kind, (const char *) n->kind.data, n->kind.len);
        text_escape(id, sizeof id, (const char *) n->id.data, n->id.len);
        if (json)
                return print_json(json_pack(
                        "{s:s, s:s, s:s, s:s, s:b, s:f, s:f, s:I, s:I, s:I}", "run", run, "kind",
                        kind, "id", id, "decision", decision, "stops", n->stops, "left_s",
                        (double) n->left_ns / 1e9, "need_s", (double) n->need_ns / 1e9,
                        "image_bytes", (json_int_t) n->image_bytes, "in_flight_bytes",
                        (json_int_t) n->flight_bytes, "bytes_per_s", (json_int_t) n->bytes_per_s));
        printf("%s: %s, %s left: %s%s\n", run, kind, human_duration(n->left_ns, left),
               agent_status_decision(decision),
               n->stops ? ", then the run ends" : ", and the run goes on");
        printf("  %s to write, %s of it on the way, at %s/s: %s\n",
               human_bytes(n->image_bytes + n->flight_bytes, bytes),
               human_bytes(n->flight_bytes, flight), human_bytes(n->bytes_per_s, rate),
               human_duration(n->need_ns, need));
        return 0;
}

int command_notify(const struct command *self, int argc, char **argv) {
        const char *run = NULL, *kind = NULL, *id = NULL;
        uint64_t in_ns = REBALANCE_NS_DEFAULT;
        bool in_given = false, json = false;
        char own_id[48];
        size_t count;
        const struct option_row rows[] = {
                {"--kind", "K", OPTION_STRING, &kind,
                 "preempt: the run ends; rebalance: a snapshot, and it goes on", NULL},
                {"--in", "S", OPTION_DURATION, &in_ns,
                 "when the machine goes away, from now: 30s, 10m, up to 24h (of a rebalance: 2m)",
                 &in_given},
                {"--id", "ID", OPTION_STRING, &id, "the event's name (default: one of its own)",
                 NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &run, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (!kind)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "what kind of notice? --kind preempt: the run ends, or "
                                         "rebalance: a snapshot, and it goes on");
        if (!in_given && strcmp(kind, "preempt") == 0)
                return command_fail_text(self, CAIRN_ERR_API,
                                         "when does the machine go away? --in takes a time from "
                                         "now like 30s or 10m, up to 24h");
        (void) snprintf(own_id, sizeof own_id, "rehearsal-%d", (int) getpid());
        _cleanup_(control_done) struct control agent;
        control_init(&agent, &clock_system);
        if (store_view_run_name(run, &run, &e) < 0 ||
            agent_call_open(&agent, run, AGENT_GREET_NS, &e) < 0)
                return command_fail(self, &e);
        Cairn__Control__NoticeRequest request = CAIRN__CONTROL__NOTICE_REQUEST__INIT;
        request.run = agent_call_text(run);
        request.kind = agent_call_text(kind);
        request.in_ns = in_ns;
        request.source = agent_call_text("operator");
        request.id = agent_call_text(id ? id : own_id);
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        CONTROL_SET(&envelope, NOTICE_REQUEST, notice_request, &request);
        if (control_call(&agent, &envelope, NULL, 0, CONTROL_REPLY(NOTICE),
                         clock_now(&clock_system) + AGENT_GREET_NS, &reply, NULL, &e) < 0)
                return command_fail(self, &e);
        return print_notice(reply->notice, run, json);
}
