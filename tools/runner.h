/* SPDX-License-Identifier: Apache-2.0
 *
 * runner.h - what `cairn run` does: an agent, a generation, the ranks, restarts until the run is
 * complete.
 *
 * State: one struct runner, one thread, everything driven by one poll loop over a signalfd and the
 * agent's socket. The private agent is our child: when it dies it is started again and told to go
 * on in the same generation, while the ranks keep training. A system agent is never replaced.
 */
#ifndef CAIRN_TOOLS_RUNNER_H
#define CAIRN_TOOLS_RUNNER_H

#include "client/control.h"
#include "tools/command.h"
#include "tools/ranks.h"
#include <limits.h>

struct runner_options {
        const char *run;
        char store[PATH_MAX]; /* absolute */
        uint32_t mode;        /* as on the wire: 1 fresh, 2 resume, 3 auto */
        const char *init_from;
        bool has_from_step;
        int64_t from_step;
        bool hold; /* after a notice: wait for SIGTERM */
        uint64_t every_steps, every_ns, max_restarts, ranks, keep_last;
        const char *rendezvous;           /* NULL: this node alone */
        char meeting_place[2 * PATH_MAX]; /* the same for people: of a folder its path */
        uint32_t nodes_min, nodes_max;
        const char *node, *address;
        uint16_t master_port;                      /* 0: a free one of rank 0's node */
        struct option_list overrides, conversions; /* KEY=VALUE, GLOB=DTYPE */
        char **command;
};

/* Runs to the end; returns the exit status of docs/OPERATIONS.md or the child's. Prints what an
 * operator needs to know on standard error. */
int runner_main(const struct command *self, const struct runner_options *options);

#endif
