/* SPDX-License-Identifier: Apache-2.0
 *
 * budget.h - may this much staging be promised? Asked before a memfd is made, so that registration
 * fails with the number that is needed instead of an OOM kill at the first snapshot. Reads procfs
 * and cgroupfs, which never block.
 */
#ifndef CAIRN_AGENT_BUDGET_H
#define CAIRN_AGENT_BUDGET_H

#include "base/status.h"
#include <stdint.h>

struct budget {
        uint64_t configured_bytes; /* what the configuration leaves; UINT64_MAX: no limit */
        uint64_t cgroup_bytes;     /* what the tightest memory.max above us leaves */
        uint64_t memory_bytes;     /* MemAvailable */
};

/* `used` of `bytes_max` (0: no limit) are promised already. */
void budget_read(uint64_t bytes_max, uint64_t used, struct budget *ret);
/* NOMEM: the sentence names what is needed, what is there, and which limit says so. */
int budget_check(const struct budget *b, uint64_t bytes, struct cairn_error *reterr);

#endif
