/* SPDX-License-Identifier: Apache-2.0
 *
 * ranks.h - the trainer processes of one `cairn run`: spawned with the launchers' variables,
 * reaped, ended.
 *
 *     ranks_spawn(&ranks, ...);                    one process group a rank
 *     ranks_reap(&ranks, pid, wait_status)         for each child that waitpid returned
 *     ranks_signal(&ranks, SIGTERM) / ranks_clear  all that still run / what they left behind
 *
 * One thread. A rank's process group is led by the rank, so that Ctrl-C reaches `cairn run` alone.
 */
#ifndef CAIRN_TOOLS_RANKS_H
#define CAIRN_TOOLS_RANKS_H

#include "base/status.h"
#include <stdbool.h>
#include <sys/types.h>

enum { RANKS_MAX = 64 };

struct rank_process {
        pid_t pid; /* 0: not started */
        bool running;
        int sent;        /* the last signal of ranks_signal */
        int wait_status; /* once it ended */
        uint32_t order;  /* of its end among the others, from 1 */
};
struct ranks {
        struct rank_process all[RANKS_MAX];
        uint32_t count, ended;
        uint32_t first; /* number of this node's first rank among all */
        pid_t launcher; /* who started them: they do not outlive it for long */
};
struct ranks_environment {
        const char *run, *store, *socket;
        const char *master_address, *address; /* of rank 0's node; of this one, for the others */
        uint32_t master_port;
        uint32_t first_rank, world; /* of all nodes */
        uint32_t node_rank, nodes;
        uint64_t restart;
};

/* Starts every rank. On failure those that were started are killed. The child's standard streams
 * are ours. */
int ranks_spawn(struct ranks *r, uint32_t count, const struct ranks_environment *environment,
                char **command, struct cairn_error *reterr);
/* Note the end of a child: its rank, -1 if it is none of them. */
int ranks_reap(struct ranks *r, pid_t pid, int wait_status);
uint32_t ranks_running(const struct ranks *r);
void ranks_signal(struct ranks *r, int signal_number);
/* SIGKILL to whatever the ended ranks' groups still hold. */
void ranks_clear(const struct ranks *r);
/* The rank that decides the outcome: the first that failed, or 0. Ranks that only lost the others
 * (69, 124) come after those that failed by themselves, whoever was reaped first; those that were
 * ended by ranks_signal come last. */
uint32_t ranks_first_failed(const struct ranks *r);
/* Exit status as shells count: 128 + signal for a killed one. */
int ranks_exit_status(int wait_status);
/* "rank 0 was killed by SIGKILL": returns text. */
const char *ranks_describe(uint32_t rank, int wait_status, char *text, size_t bytes);

#endif
