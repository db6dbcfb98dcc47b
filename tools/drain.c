/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn drain - stop every run on this machine: a snapshot, a commit, an orderly end of each, all
 * at the same time. For the moment before a node goes away (a preStop hook, a maintenance): each
 * `cairn run` ends with 75, so that what supervises it starts it again.
 */
#include "base/cleanup.h"
#include "tools/agent_call.h"
#include "tools/agent_status.h"
#include "tools/command.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define DRAIN_DEADLINE_NS_DEFAULT (120 * NSEC_PER_SEC)
#define DRAIN_ANSWER_MARGIN_NS (30 * NSEC_PER_SEC)

struct stop {
        struct control agent;
        const char *run;
        uint64_t id;
        struct cairn_error error; /* status 0: asked */
};

static void ask(struct stop *s, uint64_t deadline_ns) {
        Cairn__Control__StopRequest request = CAIRN__CONTROL__STOP_REQUEST__INIT;
        Cairn__Control__Envelope envelope = CAIRN__CONTROL__ENVELOPE__INIT;
        request.run = agent_call_text(s->run);
        request.deadline_ns = deadline_ns;
        request.preempted = true;
        CONTROL_SET(&envelope, STOP_REQUEST, stop_request, &request);
        if (agent_call_open(&s->agent, s->run, AGENT_GREET_NS, &s->error) == 0)
                (void) control_send(&s->agent, &envelope, NULL, 0,
                                    clock_now(&clock_system) + AGENT_GREET_NS, &s->id, &s->error);
}

/* An exit status. */
static int await(const struct command *self, struct stop *s, uint64_t until_ns) {
        Cairn__Control__Envelope *reply;
        if (s->error.status < 0 ||
            control_receive(&s->agent, s->id, until_ns, &reply, NULL, &s->error) < 0)
                return command_fail(self, &s->error);
        if (reply->body_case != CONTROL_REPLY(STOP_REPLY))
                return command_fail_text(self, CAIRN_ERR_CORRUPT,
                                         "run '%s': an unexpected answer: agent and `cairn` are of "
                                         "different versions",
                                         s->run);
        int code = agent_call_lost(self, s->run, reply->stop_reply);
        if (code != 0)
                return code;
        if (reply->stop_reply->step < 0)
                printf("%s: stopped; nothing was committed\n", s->run);
        else
                printf("%s: stopped; step %" PRId64 " is committed\n", s->run,
                       reply->stop_reply->step);
        return 0;
}

int command_drain(const struct command *self, int argc, char **argv) {
        uint64_t deadline_ns = DRAIN_DEADLINE_NS_DEFAULT;
        size_t count;
        const struct option_row rows[] = {
                {"--deadline", "S", OPTION_DURATION, &deadline_ns,
                 "end the trainers by force after this time (default 120s)", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        json_t *runs = NULL;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, NULL, 0, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        /* The runs of an agent that does not answer go on; the others are stopped all the same. */
        int status =
                agent_status_everywhere(AGENT_GREET_NS, &runs, &e) < 0 ? command_fail(self, &e) : 0;
        count = json_array_size(runs);
        struct stop *stops = calloc(count + 1, sizeof *stops);
        uint64_t until_ns = clock_now(&clock_system) + deadline_ns + DRAIN_ANSWER_MARGIN_NS;
        if (!stops)
                status = status_exit_code(CAIRN_ERR_NOMEM);
        for (size_t i = 0; stops && i < count; i++) {
                stops[i] = (struct stop){.run = agent_status_text(json_array_get(runs, i), "run"),
                                         .error = CAIRN_ERROR_INIT};
                control_init(&stops[i].agent, &clock_system);
                ask(&stops[i], deadline_ns);
        }
        for (size_t i = 0; stops && i < count; i++) {
                r = await(self, &stops[i], until_ns);
                status = status ? status : r; /* the first failure's */
                control_done(&stops[i].agent);
        }
        if (count == 0 && status == 0)
                puts("no run is running on this machine");
        free(stops);
        json_decref(runs);
        return status;
}
