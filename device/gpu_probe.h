/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_probe.h - what there is of GPUs and what of it works, tried for real: `cairnd --probe-gpu`,
 * for `cairn doctor`.
 *
 *     struct gpu_driver_found driver;
 *     gpu_probe_driver(&driver);
 *     for (int i = 0; i < driver.count; i++)
 *             gpu_probe(i, &found);
 *
 * gpu_probe makes a context, which costs seconds and a few hundred MiB on the GPU: only processes
 * that end soon after ask. Nothing else of it stays. Failures are results, kept in the structs. One
 * thread.
 */
#ifndef CAIRN_DEVICE_GPU_PROBE_H
#define CAIRN_DEVICE_GPU_PROBE_H

#include "base/status.h"
#include "device/nvml.h"
#include <stdbool.h>

#define GPU_PROBE_STAGING_BYTES (16ull << 20)

struct gpu_driver_found {
        bool present;             /* such a library can be loaded */
        char library[512];        /* where it is; not present: what was looked for */
        int version;              /* 12040: made for CUDA 12.4; 0: it did not get so far */
        int count;                /* GPUs that this process sees */
        bool none;                /* it works and sees no GPU */
        struct cairn_error error; /* status 0: the driver works */
};

struct gpu_found {
        char name[96], uuid[48]; /* "GPU-...", of a slice "MIG-..." */
        char bus_id[24];
        uint64_t memory_bytes;
        int capability; /* 90: sm_90 */
        bool exclusive; /* one process at a time (compute mode) */
        bool vmm, posix_fd, host_register;
        enum nvml_answer persistence;
        bool full;                  /* no memory was left to try with: slab and staging say so */
        struct cairn_error error;   /* asking failed; nothing below was tried */
        struct cairn_error slab;    /* memory made, exported, imported again and filled */
        struct cairn_error staging; /* a memfd registered, and a copy of the slab in it */
};

void gpu_probe_driver(struct gpu_driver_found *ret);
void gpu_probe(int ordinal, struct gpu_found *ret);

#endif
