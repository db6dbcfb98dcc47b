/* SPDX-License-Identifier: Apache-2.0
 *
 * reader.h - the byte ranges of a restore plan, from the checkpoint's data files into staging, each
 * checked against its CRC32C. Nothing is promised about staging after an error.
 *
 * Where the ranges lie in staging as they lie in one file (an ordinary restore), whole blocks are
 * read with O_DIRECT; otherwise exactly the ranges, buffered. Runs on the saver's main thread;
 * `wait` as in writer.h.
 */
#ifndef CAIRN_AGENT_READER_H
#define CAIRN_AGENT_READER_H

#include "agent/ring.h"
#include "agent/staging.h"
#include "format/plan.h"

struct reader_job {
        const struct plan_range *ranges; /* as plan_read gave them */
        uint64_t range_count;
        bool alone;     /* these are all that staging holds */
        const int *fds; /* data files of ranks first_rank ... */
        uint32_t first_rank, file_count;
        const struct clock_ops *clock;
        int (*wait)(void *context, int ring_fd);
        void *context;
        uint64_t deadline_ns;
};
int reader_read(const struct reader_job *job, struct ring *ring, struct staging *staging,
                uint64_t *ret_bytes, struct cairn_error *reterr);

#endif
