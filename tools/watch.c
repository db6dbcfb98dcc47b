/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/watch.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "tools/agent_call.h"
#include "tools/agent_status.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_NS (1 * NSEC_PER_SEC)
#define RETRY_NS (100 * NSEC_PER_MSEC)
/* An agent that died is started again by its `cairn run`, one that ended is not. */
#define AWAY_NS (3 * NSEC_PER_SEC)

static int64_t newest_step(const json_t *run) {
        const json_t *ranks = json_object_get(run, "ranks"), *rank;
        int64_t newest = -1;
        size_t i;
        json_array_foreach(ranks, i, rank) if (agent_status_integer(rank, "step") > newest) newest =
                agent_status_integer(rank, "step");
        return newest;
}

void watch_line(const json_t *run, char *text, size_t bytes) {
        const json_t *snapshot = json_object_get(run, "snapshot"),
                     *error = json_object_get(run, "error");
        int64_t committed = agent_status_integer(run, "committed_step"), step = newest_step(run);
        size_t used = (size_t) snprintf(text, bytes, "%s, restart %" PRId64,
                                        agent_status_text(run, "state"),
                                        agent_status_integer(run, "restart"));
        if (step >= 0 && used < bytes)
                used += (size_t) snprintf(text + used, bytes - used, ", step %" PRId64, step);
        if (committed >= 0 && used < bytes)
                used += (size_t) snprintf(text + used, bytes - used, ", committed %" PRId64,
                                          committed);
        if (json_is_object(snapshot) && used < bytes)
                used += (size_t) snprintf(text + used, bytes - used, ", %s step %" PRId64,
                                          agent_status_text(snapshot, "stage"),
                                          agent_status_integer(snapshot, "step"));
        if (json_is_object(error) && used < bytes)
                (void) snprintf(text + used, bytes - used, ", last error: %s",
                                agent_status_text(error, "text"));
}

struct watch {
        const char *run;
        bool json, terminal;
        void (*print)(FILE *out, const json_t *run);
        size_t drawn_lines;
        char line[1024];
};

/* Over what was drawn before: up by its lines, then clear to the end of the screen. */
static void redraw(struct watch *w, const json_t *run) {
        _cleanup_free_ char *text = NULL;
        size_t bytes = 0;
        FILE *memory = open_memstream(&text, &bytes);
        if (!memory)
                return;
        w->print(memory, run);
        if (fclose(memory) != 0)
                return;
        if (w->drawn_lines > 0)
                printf("\033[%zuF\033[J", w->drawn_lines);
        w->drawn_lines = 0;
        for (size_t i = 0; i < bytes; i++)
                w->drawn_lines += text[i] == '\n';
        (void) fwrite(text, 1, bytes, stdout);
}

static void show(struct watch *w, const json_t *status) {
        const json_t *run = json_array_get(json_object_get(status, "runs"), 0);
        char line[sizeof w->line];
        if (w->json) {
                (void) json_dumpf(run, stdout, JSON_COMPACT);
                putchar('\n');
        } else if (w->terminal)
                redraw(w, run);
        else {
                watch_line(run, line, sizeof line);
                if (strcmp(line, w->line) != 0)
                        printf("%s: %s\n", w->run, line);
                memcpy(w->line, line, sizeof line);
        }
        (void) fflush(stdout);
}

/* One look; connects where there is no connection. */
static int look(struct watch *w, struct control *agent, struct cairn_error *reterr) {
        json_t *status = NULL;
        if (agent->socket < 0)
                TRY(agent_call_open(agent, w->run, AGENT_LOOK_NS, reterr));
        TRY(agent_status_ask(agent, w->run, AGENT_LOOK_NS, &status, reterr));
        show(w, status);
        json_decref(status);
        return 0;
}

int watch_run(const char *run, bool json, void (*print)(FILE *out, const json_t *run),
              struct cairn_error *reterr) {
        struct watch w = {
                .run = run, .json = json, .print = print, .terminal = isatty(STDOUT_FILENO) != 0};
        _cleanup_(control_done) struct control agent;
        uint64_t seen_ns = 0; /* never */
        bool silent = false;
        control_init(&agent, &clock_system);
        for (;;) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                int r = look(&w, &agent, &e);
                uint64_t now_ns = clock_now(&clock_system);
                if (r == 0)
                        seen_ns = now_ns;
                else if (r == CAIRN_ERR_NOTFOUND)
                        return seen_ns > 0;        /* its agent knows it no longer */
                else if (r == CAIRN_ERR_TIMEOUT) { /* it lives: once a silence */
                        if (!silent)
                                fprintf(stderr, "%s: the agent does not answer\n", run);
                        seen_ns = now_ns;
                } else if (r != CAIRN_ERR_UNREACHABLE && r != CAIRN_ERR_PEER) {
                        if (reterr)
                                *reterr = e;
                        return r;
                } else if (now_ns - seen_ns > AWAY_NS)
                        return seen_ns > 0;
                if (r < 0)
                        control_done(&agent);
                silent = r == CAIRN_ERR_TIMEOUT;
                clock_system.sleep_ns(clock_system.context, r == 0 ? PERIOD_NS : RETRY_NS);
        }
}
