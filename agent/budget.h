/* SPDX-License-Identifier: Apache-2.0
 *
 * budget.h - may this much staging be promised? Asked before a memfd is made, so that registration
 * fails with the number that is needed instead of an OOM kill at the first snapshot. Reads procfs
 * and cgroupfs, which never block.
 */
#ifndef CAIRN_AGENT_BUDGET_H
#define CAIRN_AGENT_BUDGET_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct budget {
        uint64_t configured_bytes; /* what the configuration leaves; UINT64_MAX: no limit */
        uint64_t cgroup_bytes;     /* what the tightest control group above us leaves */
        uint64_t memory_bytes;     /* MemAvailable */
};

/* What is promised to others already. */
struct budget_use {
        uint64_t bytes_max; /* staging_bytes_max; 0: no limit */
        uint64_t promised;  /* all of it */
        uint64_t unfilled;  /* of that, what takes no memory yet: pages come with the first copy */
        uint64_t trainers;  /* what trainers registered and have not filled yet */
        bool same_group;    /* they are in our control group, too */
        uint64_t freed;     /* takes memory and goes before the new one is filled */
};
void budget_read(const struct budget_use *use, struct budget *ret);
/* What the control groups leave of which the file says that we are in them (/proc/self/cgroup), on
 * the usual mount points beneath `mounts`. UINT64_MAX: no limit is known. */
uint64_t budget_groups_left(const char *membership, const char *mounts);
/* NOMEM: the sentence names what is needed, what is there, and which limit says so. */
int budget_check(const struct budget *b, uint64_t bytes, struct cairn_error *reterr);
/* The same of open files, for so many ranks in all: refused at the start, for what is lost on its
 * way later would be missed in the middle of something. */
int budget_check_files(uint32_t ranks, struct cairn_error *reterr);

#endif
