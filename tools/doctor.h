/* SPDX-License-Identifier: Apache-2.0
 *
 * doctor.h - `cairn doctor`: probes that each report one line: what was found, and what to do about
 * it. doctor.c runs them and prints, doctor_host.c asks about the machine, doctor_gpu.c about its
 * GPUs, doctor_store.c about a store. Nothing that a probe makes outlives it.
 */
#ifndef CAIRN_TOOLS_DOCTOR_H
#define CAIRN_TOOLS_DOCTOR_H

#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>

enum verdict {
        VERDICT_GOOD,
        VERDICT_WEAK, /* works, but slower or with a limit */
        VERDICT_BAD   /* does not work */
};
struct doctor {
        json_t *probes; /* NULL: print lines */
        bool bad;       /* one verdict was */
};

/* One line. The remedy (NULL: none needed) is left out where the verdict is good. */
void doctor_say(struct doctor *d, enum verdict verdict, const char *probe, const char *remedy,
                const char *found, ...) __attribute__((format(printf, 5, 6)));

void doctor_host(struct doctor *d);
void doctor_gpu(struct doctor *d);
/* `named`: the user gave it; a default one need not exist yet. */
void doctor_store(struct doctor *d, const char *path, bool named);

/* What `PROGRAM FLAG` of ours prints, with an end; what comes after `bytes` is dropped. 0, or
 * TIMEOUT: it did not end in time and was killed, what it had printed is there. `answer` is empty
 * where there is no such program or it cannot start. Nothing that may not work (a ring, a GPU) is
 * touched in this process. */
int doctor_ask(const char *program, const char *flag, uint64_t limit_ns, char *answer,
               size_t bytes);

/* Parts of probes, for tests. */
/* What `cairnd --probe-gpu` answered, changed by reading; `in_time`: it ended. Returns whether
 * there are GPUs. */
bool doctor_report_gpus(struct doctor *d, char *answer, bool in_time, const char *device_folder);
/* What `cairn-train --probe-gpu` answered, changed by reading. */
void doctor_report_trainer(struct doctor *d, char *answer);
/* Whether the daemon that lets processes share a GPU is there. */
void doctor_report_mps(struct doctor *d);
/* What `cairnd --probe` answered. */
void doctor_report_ring(struct doctor *d, const char *json);
/* The lowest limit that a cgroup at `path` ("/a/b") or one above it sets, beneath the mount `root`;
 * UINT64_MAX: none. */
uint64_t doctor_cgroup_limit(const char *root, const char *path);
/* Name of a file system by its statfs type; *ret_why: what is the matter with it for checkpoints,
 * NULL: nothing. */
const char *doctor_file_system(uint64_t type, const char **ret_why);

#endif
