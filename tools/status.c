/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn status - what a run is doing and how old its last checkpoint is. Asks the run's agent; for
 * a run that is not running it reads the store. Without RUN: every private agent of this user, and
 * the system's.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "tools/agent_call.h"
#include "tools/agent_status.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include "tools/watch.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_committed(FILE *out, const json_t *run) {
        const json_t *committed = json_object_get(run, "committed"),
                     *snapshot = json_object_get(run, "snapshot");
        char bytes[32], total[32], age[32];
        if (json_is_object(committed)) {
                fprintf(out, "  committed   step %" PRId64,
                        agent_status_integer(committed, "step"));
                if (json_is_number(json_object_get(committed, "age_s")))
                        fprintf(out, ", %s ago",
                                human_duration(agent_status_ns(committed, "age_s"), age));
                if (agent_status_integer(committed, "bytes") > 0)
                        fprintf(out, ", %s",
                                human_bytes((uint64_t) agent_status_integer(committed, "bytes"),
                                            bytes));
                fprintf(out, "  (%s)%s\n", agent_status_text(committed, "checkpoint"),
                        json_is_true(json_object_get(committed, "flagged"))
                                ? "  flagged: not finite, never resumed by itself"
                                : "");
        } else
                fputs("  committed   nothing yet\n", out);
        if (json_is_object(snapshot))
                fprintf(out, "  in flight   step %" PRId64 ", %s: %s of %s\n",
                        agent_status_integer(snapshot, "step"),
                        agent_status_text(snapshot, "stage"),
                        human_bytes((uint64_t) agent_status_integer(snapshot, "bytes_done"), bytes),
                        human_bytes((uint64_t) agent_status_integer(snapshot, "bytes_total"),
                                    total));
}

/* Of a session of the host, whose saver reads its memory, there is nothing to say. */
static void print_device(FILE *out, const json_t *rank) {
        const char *uuid = agent_status_text(rank, "device_uuid");
        bool lost = json_is_false(json_object_get(rank, "post_mortem"));
        if (!*uuid && !lost)
                return;
        fprintf(out, "              %s%s, %s; ", *uuid ? "GPU " : "host memory", uuid,
                strcmp(agent_status_text(rank, "copies"), "trainer") == 0 ? "the trainer copies"
                                                                          : "the saver copies");
        if (lost)
                fprintf(out, "no cut after its death: %" PRId64 " tensors are not of cairn_alloc\n",
                        agent_status_integer(rank, "tensors_elsewhere"));
        else
                fputs("a cut after its death is possible\n", out);
}

static void print_rank(FILE *out, const json_t *rank) {
        char since[32];
        fprintf(out, "  rank %-6" PRId64 " pid %" PRId64 ", %s, step %" PRId64 ", %s for %s%s\n",
                agent_status_integer(rank, "rank"), agent_status_integer(rank, "pid"),
                agent_status_text(rank, "state"), agent_status_integer(rank, "step"),
                agent_status_text(rank, "phase"),
                human_duration(agent_status_ns(rank, "phase_s"), since),
                json_is_true(json_object_get(rank, "alive")) ? "" : ", dead");
        print_device(out, rank);
}

static void print_run(FILE *out, const json_t *run) {
        const json_t *ranks = json_object_get(run, "ranks"), *error = json_object_get(run, "error");
        char stall[32], every[32];
        fprintf(out, "%s: %s, restart %" PRId64 ", generation %" PRId64 "%s\n",
                agent_status_text(run, "run"), agent_status_text(run, "state"),
                agent_status_integer(run, "restart"), agent_status_integer(run, "generation"),
                json_is_true(json_object_get(run, "stopping")) ? ", stopping" : "");
        print_committed(out, run);
        if (agent_status_integer(run, "every_steps") > 0)
                fprintf(out, "  period      %" PRId64 " steps\n",
                        agent_status_integer(run, "every_steps"));
        else if (agent_status_ns(run, "every_s") > 0)
                fprintf(out, "  period      %s\n",
                        human_duration(agent_status_ns(run, "every_s"), every));
        const json_t *notice = json_object_get(run, "notice");
        if (json_is_object(notice))
                fprintf(out, "  notice      %s, this machine goes away within %s: %s\n",
                        agent_status_text(notice, "kind"),
                        human_duration(agent_status_ns(notice, "left_s"), every),
                        agent_status_decision(agent_status_text(notice, "decision")));
        for (size_t i = 0; i < json_array_size(ranks); i++)
                print_rank(out, json_array_get(ranks, i));
        fprintf(out,
                "  held up     %s in all; %" PRId64 " snapshots void, %" PRId64 " skipped, %" PRId64
                " failed, %" PRId64 " committed\n",
                human_duration(agent_status_ns(run, "stall_s"), stall),
                agent_status_integer(run, "voids"), agent_status_integer(run, "cuts_skipped"),
                agent_status_integer(run, "attempts_failed"),
                agent_status_integer(run, "checkpoints"));
        fprintf(out, "  store       %s\n", agent_status_text(run, "store"));
        if (json_is_object(error))
                fprintf(out, "  last error  %s\n", agent_status_text(error, "text"));
        else if (json_is_string(error))
                fprintf(out, "  last error  %s\n", json_string_value(error));
}

static void print_status(const json_t *status) {
        const json_t *runs = json_object_get(status, "runs");
        for (size_t i = 0; i < json_array_size(runs); i++)
                print_run(stdout, json_array_get(runs, i));
}

/* The run has no agent here: what the store says. */
static int show_stored(const struct command *self, const char *run, bool json,
                       const struct cairn_error *unreachable) {
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        const struct scan_checkpoint *newest;
        if (store_view_open_run(&v, store_view_default(NULL), run, NULL) < 0 ||
            store_view_newest(&v, &newest, NULL) < 0)
                return command_fail(self, unreachable);
        if (json)
                return print_json(json_pack("{s:n, s:[{s:s, s:s, s:b, s:I}]}", "agent", "runs",
                                            "run", run, "state", "not running", "finished",
                                            v.scan.finished, "newest_step",
                                            (json_int_t) (newest ? newest->step : -1)));
        char age[32];
        printf("%s: not running on this machine%s\n", run, v.scan.finished ? ", finished" : "");
        if (newest)
                printf("  committed   step %" PRId64 ", %s ago  (%s)\n", newest->step,
                       human_duration(human_age(newest->time_ns), age), newest->name);
        else
                puts("  committed   nothing");
        printf("  store       %s\n", v.path);
        return 0;
}

static int show_run(const struct command *self, const char *run, bool json) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_(control_done) struct control agent;
        json_t *status = NULL;
        control_init(&agent, &clock_system);
        int r = agent_call_open(&agent, run, AGENT_LOOK_NS, &e);
        if (r == 0)
                r = agent_status_ask(&agent, run, AGENT_LOOK_NS, &status, &e);
        if (r == CAIRN_ERR_UNREACHABLE || r == CAIRN_ERR_NOTFOUND)
                return show_stored(self, run, json, &e);
        if (r < 0)
                return command_fail(self, &e);
        if (json)
                return print_json(status);
        print_status(status);
        json_decref(status);
        return 0;
}

static int show_all(const struct command *self, bool json) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        json_t *runs = NULL;
        int code =
                agent_status_everywhere(AGENT_LOOK_NS, &runs, &e) < 0 ? command_fail(self, &e) : 0;
        if (!runs)
                return code;
        json_t *status = json_pack("{s:o}", "runs", runs);
        if (json) {
                int r = print_json(status);
                return code ? code : r;
        }
        if (json_array_size(runs) == 0 && code == 0)
                puts("no run is running on this machine; `cairn list` shows what is stored");
        print_status(status);
        json_decref(status);
        return code;
}

int command_status(const struct command *self, int argc, char **argv) {
        const char *run = NULL;
        bool json = false, watch = false;
        size_t count;
        const struct option_row rows[] = {
                {"--watch", NULL, OPTION_FLAG, &watch,
                 "show it every second until the run ends (needs a run)", NULL},
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &run, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (!run && !getenv("CAIRN_RUN") && !watch)
                return show_all(self, json);
        if (store_view_run_name(run, &run, &e) < 0)
                return command_fail(self, &e);
        r = watch ? watch_run(run, json, print_run, &e) : 0;
        if (r < 0)
                return command_fail(self, &e);
        if (r > 0 && json) /* one object a line: nothing of another form follows */
                return 0;
        return show_run(self, run, json);
}
