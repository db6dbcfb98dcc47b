/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn snapshot - a checkpoint now, at the last finished step, without stopping the trainer.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "tools/agent_call.h"
#include "tools/agent_status.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SNAPSHOT_TIMEOUT_NS_DEFAULT (60 * NSEC_PER_SEC)
#define SNAPSHOT_ANSWER_MARGIN_NS \
        (1 * NSEC_PER_SEC) /* the agent times the request; this only ends a dead one */
#define TAG_BYTES_MAX 128
#define PROGRESS_AFTER_NS (1 * NSEC_PER_SEC)
#define PROGRESS_NS (200 * NSEC_PER_MSEC)

static int print_reply(const Cairn__Control__SnapshotReply *reply, bool waited, uint64_t took_ns,
                       bool json) {
        char name[128], bytes[32], took[32];
        text_escape(name, sizeof name, (const char *) reply->checkpoint.data,
                    reply->checkpoint.len);
        if (json)
                return print_json(
                        json_pack("{s:s, s:I, s:I, s:b, s:b, s:b, s:I}", "checkpoint", name, "step",
                                  (json_int_t) reply->step, "bytes", (json_int_t) reply->bytes,
                                  "committed", waited || reply->existed, "existed", reply->existed,
                                  "flagged", reply->flagged, "took_ns", (json_int_t) took_ns));
        if ((waited || reply->existed) && reply->flagged)
                printf("step %" PRId64 " committed as %s, but flagged: the trainer died of a fault "
                       "or in an unknown way, or holds numbers that are not finite; it is never "
                       "resumed by itself\n",
                       reply->step, name);
        else if (reply->existed)
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

/* How far it is, on a line that is drawn over. Asked on a connection of its own: the answer that is
 * waited for may come at any time. */
static void draw_progress(struct control *watcher, const char *run) {
        char text[256], done[32], total[32];
        json_t *status = NULL;
        if ((watcher->socket < 0 && agent_call_open(watcher, run, AGENT_LOOK_NS, NULL) < 0) ||
            agent_status_ask(watcher, run, AGENT_LOOK_NS, &status, NULL) < 0) {
                control_done(watcher);
                return;
        }
        const json_t *s =
                json_object_get(json_array_get(json_object_get(status, "runs"), 0), "snapshot");
        if (json_is_object(s))
                (void) snprintf(
                        text, sizeof text, "step %" PRId64 ", %s: %s of %s",
                        agent_status_integer(s, "step"), agent_status_text(s, "stage"),
                        human_bytes((uint64_t) agent_status_integer(s, "bytes_done"), done),
                        human_bytes((uint64_t) agent_status_integer(s, "bytes_total"), total));
        else
                (void) snprintf(text, sizeof text, "waiting for the trainer to finish its step");
        fprintf(stderr, "\r\033[K%s", text);
        json_decref(status);
}

static int ask(struct control *agent, const char *run, Cairn__Control__Envelope *envelope,
               uint64_t deadline_ns, bool progress, Cairn__Control__Envelope **ret,
               struct cairn_error *reterr) {
        _cleanup_(control_done) struct control watcher;
        uint64_t id, draw_at_ns = clock_now(&clock_system) + PROGRESS_AFTER_NS;
        bool drawn = false;
        int r;
        control_init(&watcher, &clock_system);
        TRY(control_send(agent, envelope, NULL, 0, deadline_ns, &id, reterr));
        for (;;) {
                struct pollfd fd = {.fd = agent->socket, .events = POLLIN};
                uint64_t until_ns = progress && draw_at_ns < deadline_ns ? draw_at_ns : deadline_ns;
                if (poll(&fd, 1, clock_poll_timeout(&clock_system, until_ns)) != 0 ||
                    clock_now(&clock_system) >= deadline_ns)
                        break;
                draw_progress(&watcher, run);
                drawn = true;
                draw_at_ns = clock_now(&clock_system) + PROGRESS_NS;
        }
        r = control_receive(agent, id, deadline_ns, ret, NULL, reterr);
        if (drawn)
                fputs("\r\033[K", stderr);
        if (r == 0 && (*ret)->body_case != CONTROL_REPLY(SNAPSHOT_REPLY))
                r = error_set(reterr, CAIRN_ERR_CORRUPT, "take snapshot", run,
                              "an unexpected answer: agent and `cairn` are of different versions");
        return r;
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
        uint64_t start_ns = clock_now(&clock_system);
        if (store_view_run_name(run, &run, &e) < 0 ||
            agent_call_open(&agent, run, timeout_ns, &e) < 0)
                return command_fail(self, &e);
        Cairn__Control__SnapshotRequest request = CAIRN__CONTROL__SNAPSHOT_REQUEST__INIT;
        request.run = agent_call_text(run);
        request.tag = agent_call_text(tag);
        request.wait = wait;
        request.timeout_ns = timeout_ns;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        CONTROL_SET(&envelope, SNAPSHOT_REQUEST, snapshot_request, &request);
        r = ask(&agent, run, &envelope, start_ns + timeout_ns + SNAPSHOT_ANSWER_MARGIN_NS,
                !json && isatty(STDERR_FILENO), &reply, &e);
        if (r < 0)
                return command_fail(self, &e);
        return print_reply(reply->snapshot_reply, wait, clock_now(&clock_system) - start_ns, json);
}
