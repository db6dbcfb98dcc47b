/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/agent_status.h"

#include "base/cleanup.h"
#include "tools/agent_call.h"
#include "tools/agent_process.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STATUS_BYTES_MAX (64 * MiB)

/* The agent's answer, which may come in several packets: appended to *text. */
static int receive_text(struct control *agent, uint64_t id, uint64_t deadline_ns, char **text,
                        size_t *bytes, struct cairn_error *reterr) {
        for (bool more = true; more;) {
                Cairn__Control__Envelope *reply;
                TRY(control_receive(agent, id, deadline_ns, &reply, NULL, reterr));
                if (reply->body_case != CONTROL_REPLY(STATUS_REPLY) || *bytes > STATUS_BYTES_MAX)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "read status", "",
                                         "an unexpected answer: agent and `cairn` are of different "
                                         "versions");
                const Cairn__Control__StatusReply *part = reply->status_reply;
                char *longer = realloc(*text, *bytes + part->json.len + 1);
                if (!longer)
                        return error_set_errno(reterr, ENOMEM, "read status", "");
                *text = longer;
                if (part->json.len)
                        memcpy(*text + *bytes, part->json.data, part->json.len);
                *bytes += part->json.len;
                more = part->more;
        }
        return 0;
}

static int receive_json(struct control *agent, uint64_t id, uint64_t deadline_ns, json_t **ret,
                        struct cairn_error *reterr) {
        char *text = NULL;
        size_t bytes = 0;
        int r = receive_text(agent, id, deadline_ns, &text, &bytes, reterr);
        *ret = r == 0 ? json_loadb(text, bytes, 0, NULL) : NULL;
        free(text);
        if (r == 0 && !*ret)
                r = error_set(reterr, CAIRN_ERR_CORRUPT, "read status", "",
                              "the answer is no JSON");
        return r;
}

int agent_status_ask(struct control *agent, const char *run, uint64_t limit_ns, json_t **ret,
                     struct cairn_error *reterr) {
        Cairn__Control__StatusRequest request = CAIRN__CONTROL__STATUS_REQUEST__INIT;
        request.run = agent_call_text(run);
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT;
        CONTROL_SET(&envelope, STATUS_REQUEST, status_request, &request);
        uint64_t id, deadline_ns = clock_now(&clock_system) + limit_ns;
        TRY(control_send(agent, &envelope, NULL, 0, deadline_ns, &id, reterr));
        return receive_json(agent, id, deadline_ns, ret, reterr);
}

const char *agent_status_text(const json_t *object, const char *key) {
        const char *text = json_string_value(json_object_get(object, key));
        return text ? text : "";
}

int64_t agent_status_integer(const json_t *object, const char *key) {
        return json_integer_value(json_object_get(object, key));
}

uint64_t agent_status_ns(const json_t *object, const char *key) {
        double seconds = json_number_value(json_object_get(object, key));
        return seconds > 0 ? (uint64_t) (seconds * 1e9) : 0;
}

/* Add the runs of the agent at `path` to the list. TIMEOUT where it does not answer. */
static int add_agent(const char *path, uint64_t limit_ns, json_t *runs,
                     struct cairn_error *reterr) {
        _cleanup_(control_done) struct control agent;
        struct cairn_error e = CAIRN_ERROR_INIT;
        json_t *status = NULL;
        control_init(&agent, &clock_system);
        if (control_connect(&agent, path, NULL) < 0 ||
            control_greet(&agent, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, NULL,
                          clock_now(&clock_system) + limit_ns, &e) < 0 ||
            agent_status_ask(&agent, "", limit_ns, &status, &e) < 0)
                return e.status == CAIRN_ERR_TIMEOUT
                               ? error_set(reterr, e.status, "ask the agent", path, "%s", e.message)
                               : 0;
        json_array_extend(runs, json_object_get(status, "runs"));
        json_decref(status);
        return 0;
}

int agent_status_everywhere(uint64_t limit_ns, json_t **ret, struct cairn_error *reterr) {
        char path[PATH_MAX];
        bool system_agent;
        int r = 0;
        *ret = NULL;
        TRY(agent_process_socket("any", path, sizeof path, &system_agent, reterr));
        *ret = json_array();
        char *slash = strrchr(path, '/');
        if (system_agent || !slash)
                return add_agent(path, limit_ns, *ret, reterr);
        *slash = '\0';
        DIR *folder = opendir(path);
        for (struct dirent *d; folder && (d = readdir(folder));) {
                const char *dot = strrchr(d->d_name, '.');
                char socket[PATH_MAX + sizeof d->d_name + 1];
                (void) snprintf(socket, sizeof socket, "%s/%s", path, d->d_name);
                if (dot && strcmp(dot, ".sock") == 0)
                        TRY_KEEP(add_agent(socket, limit_ns, *ret, r == 0 ? reterr : NULL));
        }
        if (folder)
                (void) closedir(folder);
        return r;
}

const char *agent_status_decision(const char *decision) {
        static const struct {
                const char *decision, *text;
        } rows[] = {
                {"cut", "a snapshot is taken now"},
                {"commit", "the snapshot that is being written is committed; there is no time for "
                           "another"},
                {"finish", "what is being written goes on as far as it gets; there is no time for "
                           "more"},
                {"none", "there is nothing that is not committed"},
        };
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                if (strcmp(decision, rows[i].decision) == 0)
                        return rows[i].text;
        return decision; /* of another version */
}
