/* SPDX-License-Identifier: Apache-2.0
 *
 * launcher.h - what a launcher above `cairn run` says in the environment: torchrun and its like
 * (RANK, WORLD_SIZE, LOCAL_WORLD_SIZE), Slurm (SLURM_*).
 *
 * `cairn run` starts the ranks of its node, so a launcher starts one `cairn run` a node. One that
 * started a process for each rank, or whose variables do not tell, is refused with a sentence that
 * names them: API. Options win over variables, and what an option says is not looked for.
 */
#ifndef CAIRN_TOOLS_LAUNCHER_H
#define CAIRN_TOOLS_LAUNCHER_H

#include "base/status.h"
#include "format/names.h"
#include <stdbool.h>

struct launcher_given {     /* by options */
        uint32_t nodes_max; /* 0: not given; 1: this node is alone, whatever runs beside it */
        bool run, ranks;
};
struct launcher {
        uint32_t nodes;                   /* 0: nothing is said */
        uint64_t ranks;                   /* of this node; 0: nothing is said */
        char node[65];                    /* "": its host name */
        char run[RUN_NAME_BYTES_MAX + 1]; /* "": nothing is said; not checked */
        uint16_t master_port;             /* 0: nothing is said */
        char nodes_source[64];            /* "SLURM_STEP_NUM_NODES=2" */
};

int launcher_read(const struct launcher_given *given, struct launcher *ret,
                  struct cairn_error *reterr);

#endif
