/* SPDX-License-Identifier: Apache-2.0
 *
 * writer.h - a snapshot in staging becomes a data file and a manifest, both on stable storage:
 *
 *     reserve space -> convert what is stored narrower -> data (CRC32C per tensor and per MiB,
 *     ahead of the I/O thread) -> fdatasync -> manifest -> fdatasync
 *
 * The manifest is written under the temporary name that the store process opened; giving it its
 * name is not done here. A failed write or sync dooms this checkpoint; nothing is tried again.
 *
 * Runs on the saver's main thread; every call into storage is the I/O thread's. While it waits for
 * storage it calls `wait`, which serves the saver's other duties and returns when `ring_fd` is
 * readable or after a while (at once where it is -1); a negative result (the agent is gone) ends
 * the writing. After that, or after the deadline, the ring may be stuck (ring.h): nothing here may
 * be used again then. `wait` may also drop the job (ring_drop): the result is VOID.
 */
#ifndef CAIRN_AGENT_WRITER_H
#define CAIRN_AGENT_WRITER_H

#include "agent/copier.h"
#include "agent/ring.h"
#include "agent/saver.h"

struct writer_job {
        const char *run;
        uint64_t generation;
        uint32_t rank, world, attempt;
        struct saver_ending ending;
        int data_fd, manifest_fd;
        const struct clock_ops *clock;
        int (*wait)(void *context, int ring_fd);
        void *context;
        uint64_t deadline_ns;
};
struct written {
        uint8_t data_uuid[16];
        uint64_t bytes; /* of the data file */
        uint64_t non_finite_count;
};
int writer_write(const struct writer_job *job, struct ring *ring, const struct source *source,
                 struct staging *staging, const struct copied *copied, struct written *ret,
                 struct cairn_error *reterr);

#endif
