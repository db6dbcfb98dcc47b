/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/launcher.h"

#include "tools/command.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OPERATION "read the launcher's variables"
#define ALONE "or --nnodes 1 for a run of this process alone"

/* A variable that is empty is one that is not set. */
static const char *variable(const char *name) {
        const char *text = getenv(name);
        return text && *text ? text : NULL;
}

/* 0 where it is not set. */
static int number(const char *name, uint64_t least, uint64_t most, uint64_t *ret,
                  struct cairn_error *reterr) {
        const char *text = variable(name);
        *ret = 0;
        if (text && (!parse_count(text, ret) || *ret < least || *ret > most))
                return error_set(reterr, CAIRN_ERR_API, OPERATION, name,
                                 "'%s' is no number from %" PRIu64 " to %" PRIu64, text, least,
                                 most);
        return 0;
}

static int read_port(struct launcher *l, struct cairn_error *reterr) {
        const char *taken = variable("TORCHELASTIC_USE_AGENT_STORE");
        uint64_t port;
        if (taken && strcmp(taken, "True") == 0)
                return 0; /* the launcher listens there itself */
        TRY(number("MASTER_PORT", 1, UINT16_MAX, &port, reterr));
        l->master_port = (uint16_t) port;
        return 0;
}

/* ---- torchrun and its like ---- */

static int read_ranks(const struct launcher_given *given, struct launcher *l,
                      struct cairn_error *reterr) {
        const char *rank_text = variable("RANK"), *world_text = variable("WORLD_SIZE");
        uint64_t rank, world, local;
        char host[51] = "node";
        TRY(number("RANK", 0, UINT32_MAX, &rank, reterr));
        TRY(number("WORLD_SIZE", 1, UINT32_MAX, &world, reterr));
        TRY(number("LOCAL_WORLD_SIZE", 1, UINT32_MAX, &local, reterr));
        if (!rank_text || !world_text || (!local && !given->nodes_max))
                return error_set(
                        reterr, CAIRN_ERR_API, OPERATION, "",
                        "RANK=%s WORLD_SIZE=%s LOCAL_WORLD_SIZE=%s: a launcher that starts "
                        "processes sets all three, and LOCAL_WORLD_SIZE=1 says that it starts one "
                        "`cairn run` a node; set or unset them, or give --nnodes",
                        rank_text ? rank_text : "", world_text ? world_text : "",
                        local ? variable("LOCAL_WORLD_SIZE") : "");
        if (rank >= world || local > world)
                return error_set(reterr, CAIRN_ERR_API, OPERATION, "",
                                 "RANK=%" PRIu64 " LOCAL_WORLD_SIZE=%" PRIu64
                                 " do not go with WORLD_SIZE=%" PRIu64,
                                 rank, local, world);
        if (local > 1)
                return error_set(
                        reterr, CAIRN_ERR_API, OPERATION, "",
                        "RANK=%" PRIu64 " WORLD_SIZE=%" PRIu64 " LOCAL_WORLD_SIZE=%" PRIu64
                        " say that a launcher starts a process for each rank, and `cairn run` "
                        "starts the ranks of its node: let it start one a node (torchrun "
                        "--nproc-per-node 1 --no-python cairn run --nproc-per-node N), " ALONE,
                        rank, world, local);
        l->nodes = (uint32_t) world;
        (void) snprintf(l->nodes_source, sizeof l->nodes_source, "WORLD_SIZE=%" PRIu64, world);
        (void) gethostname(host, sizeof host - 1);
        /* Nodes are numbered in the order of their names: as the launcher numbers them. */
        (void) snprintf(l->node, sizeof l->node, "%04" PRIu64 "-%s", rank, host);
        return 0;
}

/* ---- Slurm ---- */

static int read_slurm_nodes(const struct launcher_given *given, struct launcher *l,
                            struct cairn_error *reterr) {
        uint64_t tasks, nodes, job;
        TRY(number("SLURM_STEP_NUM_TASKS", 1, UINT32_MAX, &tasks, reterr));
        TRY(number("SLURM_STEP_NUM_NODES", 1, UINT32_MAX, &nodes, reterr));
        TRY(number(variable("SLURM_JOB_NUM_NODES") ? "SLURM_JOB_NUM_NODES" : "SLURM_NNODES", 1,
                   UINT32_MAX, &job, reterr));
        if (tasks > nodes)
                return error_set(
                        reterr, CAIRN_ERR_API, OPERATION, "",
                        "SLURM_STEP_NUM_TASKS=%" PRIu64 " SLURM_STEP_NUM_NODES=%" PRIu64
                        " say that srun starts a process for each rank, and `cairn run` starts the "
                        "ranks of its node: srun --ntasks-per-node=1 cairn run --nproc-per-node "
                        "N, " ALONE,
                        tasks, nodes);
        if (!nodes && job > 1 && !given->nodes_max)
                return error_set(
                        reterr, CAIRN_ERR_API, OPERATION, "",
                        "SLURM_JOB_NUM_NODES=%" PRIu64
                        ", and no SLURM_STEP_NUM_NODES: this is the batch script, which runs on "
                        "the first node only; srun --ntasks-per-node=1 cairn run starts one a "
                        "node, " ALONE,
                        job);
        l->nodes = (uint32_t) (nodes ? nodes : job);
        (void) snprintf(l->nodes_source, sizeof l->nodes_source, "%s=%u",
                        nodes ? "SLURM_STEP_NUM_NODES" : "SLURM_JOB_NUM_NODES", l->nodes);
        return 0;
}

/* In a step there is one task a node, so that only the GPUs tell. */
static int read_slurm_ranks(struct launcher *l, struct cairn_error *reterr) {
        uint64_t gpus, tasks = 0;
        TRY(number("SLURM_GPUS_ON_NODE", 0, UINT32_MAX, &gpus, reterr));
        if (!variable("SLURM_STEP_NUM_TASKS"))
                TRY(number("SLURM_NTASKS_PER_NODE", 1, UINT32_MAX, &tasks, reterr));
        if (gpus && tasks && gpus != tasks)
                return error_set(reterr, CAIRN_ERR_API, OPERATION, "",
                                 "SLURM_GPUS_ON_NODE=%" PRIu64 " SLURM_NTASKS_PER_NODE=%" PRIu64
                                 ": how many ranks? Give --nproc-per-node",
                                 gpus, tasks);
        l->ranks = gpus ? gpus : tasks;
        return 0;
}

int launcher_read(const struct launcher_given *given, struct launcher *ret,
                  struct cairn_error *reterr) {
        const char *job = variable("SLURM_JOB_ID"), *name = variable("SLURM_JOB_NAME");
        const char *node = variable("SLURMD_NODENAME");
        *ret = (struct launcher){0};
        TRY(read_port(ret, reterr));
        if (job && !given->run &&
            (size_t) snprintf(ret->run, sizeof ret->run, "%s-%s", name ? name : "job", job) >=
                    sizeof ret->run)
                return error_set(reterr, CAIRN_ERR_API, OPERATION, "SLURM_JOB_NAME",
                                 "it is too long to name the run; give --run NAME");
        if (job && !given->ranks)
                TRY(read_slurm_ranks(ret, reterr));
        if (job && node &&
            (size_t) snprintf(ret->node, sizeof ret->node, "%s", node) >= sizeof ret->node)
                return error_set(reterr, CAIRN_ERR_API, OPERATION, "SLURMD_NODENAME",
                                 "it is too long to name the node; give --node NAME");
        if (given->nodes_max == 1)
                return 0;
        if (variable("RANK") || variable("WORLD_SIZE")) /* the inner one, should both be there */
                return read_ranks(given, ret, reterr);
        return job ? read_slurm_nodes(given, ret, reterr) : 0;
}
