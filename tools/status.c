/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn status - what a run is doing and how old its last checkpoint is. Asks the run's agent; for
 * a run that is not running it reads the store. Without RUN: every private agent of this user, and
 * the system's.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "tools/agent_call.h"
#include "tools/agent_process.h"
#include "tools/command.h"
#include "tools/print_json.h"
#include "tools/store_view.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS_ANSWER_NS (10 * NSEC_PER_SEC)
#define STATUS_BYTES_MAX (64 * MiB)

/* The agent's answer, which may come in several packets. */
static int receive_json(struct control *agent, uint64_t id, uint64_t deadline_ns, json_t **ret,
                        struct cairn_error *reterr) {
        _cleanup_free_ char *text = NULL;
        size_t bytes = 0;
        for (bool more = true; more;) {
                Cairn__Control__Envelope *reply;
                TRY(control_receive(agent, id, deadline_ns, &reply, NULL, reterr));
                if (reply->body_case != CONTROL_REPLY(STATUS_REPLY) || bytes > STATUS_BYTES_MAX)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "read status", "",
                                         "an unexpected answer: agent and `cairn` are of different "
                                         "versions");
                const Cairn__Control__StatusReply *part = reply->status_reply;
                char *longer = realloc(text, bytes + part->json.len + 1);
                if (!longer)
                        return error_set_errno(reterr, ENOMEM, "read status", "");
                text = longer;
                memcpy(text + bytes, part->json.data, part->json.len);
                bytes += part->json.len;
                more = part->more;
        }
        *ret = json_loadb(text, bytes, 0, NULL);
        return *ret ? 0
                    : error_set(reterr, CAIRN_ERR_CORRUPT, "read status", "",
                                "the answer is no JSON");
}

/* `run` empty: all runs of the agent. */
static int ask(struct control *agent, const char *run, json_t **ret, struct cairn_error *reterr) {
        Cairn__Control__StatusRequest request = CAIRN__CONTROL__STATUS_REQUEST__INIT;
        request.run = agent_call_text(run);
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT;
        CONTROL_SET(&envelope, STATUS_REQUEST, status_request, &request);
        uint64_t id, deadline_ns = clock_now(&clock_system) + STATUS_ANSWER_NS;
        TRY(control_send(agent, &envelope, NULL, 0, deadline_ns, &id, reterr));
        return receive_json(agent, id, deadline_ns, ret, reterr);
}

static const char *text_of(const json_t *object, const char *key) {
        const char *text = json_string_value(json_object_get(object, key));
        return text ? text : "";
}

static int64_t integer_of(const json_t *object, const char *key) {
        return json_integer_value(json_object_get(object, key));
}

static uint64_t ns_of(const json_t *object, const char *key) {
        double seconds = json_number_value(json_object_get(object, key));
        return seconds > 0 ? (uint64_t) (seconds * 1e9) : 0;
}

static void print_committed(const json_t *run) {
        const json_t *committed = json_object_get(run, "committed"),
                     *snapshot = json_object_get(run, "snapshot");
        char bytes[32], total[32], age[32];
        if (json_is_object(committed)) {
                printf("  committed   step %" PRId64, integer_of(committed, "step"));
                if (json_is_number(json_object_get(committed, "age_s")))
                        printf(", %s ago", human_duration(ns_of(committed, "age_s"), age));
                if (integer_of(committed, "bytes") > 0)
                        printf(", %s",
                               human_bytes((uint64_t) integer_of(committed, "bytes"), bytes));
                printf("  (%s)\n", text_of(committed, "checkpoint"));
        } else
                puts("  committed   nothing yet");
        if (json_is_object(snapshot))
                printf("  in flight   step %" PRId64 ", %s: %s of %s\n",
                       integer_of(snapshot, "step"), text_of(snapshot, "stage"),
                       human_bytes((uint64_t) integer_of(snapshot, "bytes_done"), bytes),
                       human_bytes((uint64_t) integer_of(snapshot, "bytes_total"), total));
}

static void print_rank(const json_t *rank) {
        char since[32];
        printf("  rank %-6" PRId64 " pid %" PRId64 ", %s, step %" PRId64 ", %s for %s%s\n",
               integer_of(rank, "rank"), integer_of(rank, "pid"), text_of(rank, "state"),
               integer_of(rank, "step"), text_of(rank, "phase"),
               human_duration(ns_of(rank, "phase_s"), since),
               json_is_true(json_object_get(rank, "alive")) ? "" : ", dead");
}

static void print_run(const json_t *run) {
        const json_t *ranks = json_object_get(run, "ranks"), *error = json_object_get(run, "error");
        char stall[32], every[32];
        printf("%s: %s, restart %" PRId64 ", generation %" PRId64 "%s\n", text_of(run, "run"),
               text_of(run, "state"), integer_of(run, "restart"), integer_of(run, "generation"),
               json_is_true(json_object_get(run, "stopping")) ? ", stopping" : "");
        print_committed(run);
        if (integer_of(run, "every_steps") > 0)
                printf("  period      %" PRId64 " steps\n", integer_of(run, "every_steps"));
        else if (ns_of(run, "every_s") > 0)
                printf("  period      %s\n", human_duration(ns_of(run, "every_s"), every));
        for (size_t i = 0; i < json_array_size(ranks); i++)
                print_rank(json_array_get(ranks, i));
        printf("  held up     %s in all; %" PRId64 " snapshots void, %" PRId64 " failed, %" PRId64
               " committed\n",
               human_duration(ns_of(run, "stall_s"), stall), integer_of(run, "voids"),
               integer_of(run, "attempts_failed"), integer_of(run, "checkpoints"));
        printf("  store       %s\n", text_of(run, "store"));
        if (json_is_object(error))
                printf("  last error  %s\n", text_of(error, "text"));
        else if (json_is_string(error))
                printf("  last error  %s\n", json_string_value(error));
}

static void print_status(const json_t *status) {
        const json_t *runs = json_object_get(status, "runs");
        for (size_t i = 0; i < json_array_size(runs); i++)
                print_run(json_array_get(runs, i));
}

/* The run has no agent here: what the store says. */
static int show_stored(const struct command *self, const char *run, bool json,
                       const struct cairn_error *unreachable) {
        _cleanup_(store_view_done) struct store_view v = STORE_VIEW_INIT;
        if (store_view_open_run(&v, store_view_default(NULL), run, NULL) < 0)
                return command_fail(self, unreachable);
        const struct scan_checkpoint *newest = scan_newest(&v.scan, 0);
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
        json_t *status;
        control_init(&agent, &clock_system);
        int r = agent_call_open(&agent, run, &e);
        if (r == 0)
                r = ask(&agent, run, &status, &e);
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

/* Add the runs of the agent at `path` to the list; one that does not answer is passed over. */
static void add_agent(const char *path, json_t *runs) {
        _cleanup_(control_done) struct control agent;
        json_t *status;
        control_init(&agent, &clock_system);
        if (control_connect(&agent, path, NULL) < 0 ||
            control_greet(&agent, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, NULL,
                          clock_now(&clock_system) + STATUS_ANSWER_NS, NULL) < 0 ||
            ask(&agent, "", &status, NULL) < 0)
                return;
        json_array_extend(runs, json_object_get(status, "runs"));
        json_decref(status);
}

static int show_all(const struct command *self, bool json) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char path[PATH_MAX];
        bool system_agent;
        if (agent_process_socket("any", path, sizeof path, &system_agent, &e) < 0)
                return command_fail(self, &e);
        json_t *runs = json_array();
        char *slash = strrchr(path, '/');
        if (system_agent || !slash)
                add_agent(path, runs);
        else {
                *slash = '\0';
                DIR *folder = opendir(path);
                for (struct dirent *d; folder && (d = readdir(folder));) {
                        const char *dot = strrchr(d->d_name, '.');
                        char socket[PATH_MAX + sizeof d->d_name + 1];
                        (void) snprintf(socket, sizeof socket, "%s/%s", path, d->d_name);
                        if (dot && strcmp(dot, ".sock") == 0)
                                add_agent(socket, runs);
                }
                if (folder)
                        (void) closedir(folder);
        }
        json_t *status = json_pack("{s:o}", "runs", runs);
        if (json)
                return print_json(status);
        if (json_array_size(runs) == 0)
                puts("no run is running on this machine; `cairn list` shows what is stored");
        print_status(status);
        json_decref(status);
        return 0;
}

int command_status(const struct command *self, int argc, char **argv) {
        const char *run = NULL;
        bool json = false;
        size_t count;
        const struct option_row rows[] = {
                {"--json", NULL, OPTION_FLAG, &json, "one JSON object", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, &run, 1, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (!run && !getenv("CAIRN_RUN"))
                return show_all(self, json);
        if (store_view_run_name(run, &run, &e) < 0)
                return command_fail(self, &e);
        return show_run(self, run, json);
}
