/* SPDX-License-Identifier: Apache-2.0
 *
 * emu.h - libcuda-emu.so, a driver of ours for tests: the functions of device/cuda_abi.h over
 * memfds and threads, stricter than the real one. Chosen by CAIRN_LIBCUDA.
 *
 * - Device memory is a memfd, mapped at the device's address without any access, so that host code
 *   that touches it faults. Copies use a second mapping; the first is open while a kernel runs.
 *   Exported descriptors work between processes and outlive the exporter. What cuMemAlloc gives
 *   holds garbage.
 * - A stream is a thread. An operation reads its source and writes its target some time after the
 *   call: whoever changes or reads them too early gets other bytes. A copy of memory that is not
 *   registered is waited for, and counted. The default stream has to be named (CUDA_STREAM_LEGACY):
 *   NULL is refused, and so are streams that would wait for the default one.
 * - Handles are never used again: a freed one, or one of another context, is refused. What the real
 *   driver leaves undefined is an error here. A forked child finds everything uninitialized.
 * - A fatal result stays: every later call in that context gives it again.
 *
 * Environment, read when the library is loaded:
 *
 *     CAIRN_EMU_DEVICES=1        how many; 0 makes cuInit fail
 *     CAIRN_EMU_VERSION=12040    what the driver is made for
 *     CAIRN_EMU_MEMORY=4096      MiB each
 *     CAIRN_EMU_GRANULARITY=2048 KiB of an allocation: a power of two, at least a page
 *     CAIRN_EMU_LATENCY=50       microseconds before an operation begins
 *     CAIRN_EMU_LACKS=102        a device attribute that is 0
 *     CAIRN_EMU_FAULT=cuMemMap:2:1    the second call returns 1
 *     CAIRN_EMU_DELAY=cuMemMap:2:100  the second call takes 100 ms longer
 *
 * Tests in the same process use the table that dlsym finds as "emu_control". Threads: any.
 */
#ifndef CAIRN_TESTS_CUDA_EMU_H
#define CAIRN_TESTS_CUDA_EMU_H

#include "device/cuda_abi.h"
#include <stdbool.h>
#include <stdint.h>

/* What exists in this process. All 0 (the sums below it apart): nothing leaked. */
struct emu_counts {
        uint64_t contexts; /* retained and not released */
        uint64_t allocations, reservations, mappings, registrations;
        uint64_t streams, events, modules, operations;
        /* sums since the last reset */
        uint64_t copies, pageable_copies;
        uint64_t abandoned; /* streams, events, modules, operations whose context went first */
        uint64_t refused;   /* calls that were wrong: handles, values, contexts; no fault */
};

struct emu_control {
        /* From now on the nth call of a function ("cuMemMap"; NULL: of any) returns `result`; nth
         * 0: none does. A function that frees something does so and then returns it, as the real
         * ones report errors of earlier work; any other does nothing. A query that answers "not
         * ready" is no call: how many there are is a matter of time. */
        void (*fault)(const char *function, uint64_t nth, enum cuda_result result);
        /* The function that met the fault, or NULL. */
        const char *(*fired)(void);
        /* The nth call (0: every) takes so much longer. */
        void (*delay)(const char *function, uint64_t nth, uint64_t delay_ns);
        /* The nth operation that a stream begins from now on fails so, for good. */
        void (*break_operation)(uint64_t nth, enum cuda_result result);
        /* The device attribute is 0 from now on; 0: all are as they were. */
        void (*lack)(int attribute);
        /* What lies there is said to be managed memory from now on, of which there is none here. */
        void (*manage)(void *address);
        /* While held, streams begin nothing. */
        void (*hold)(bool held);
        void (*counts)(struct emu_counts *ret);
        /* Each piece of device memory that is mapped. */
        void (*mappings)(void (*each)(void *address, size_t bytes));
        /* As in a new process: everything is gone, errors and faults too. No call may be under
         * way. */
        void (*reset)(void);
};

/* The image that cuModuleLoadData takes. */
#define EMU_IMAGE_MAGIC "CAIRNEMU"
struct emu_launch {
        unsigned grid[3], block[3], shared_bytes;
};
struct emu_kernel {
        const char *name;
        /* On the stream's thread; parameters as cuLaunchKernel has them. What is not CUDA_OK is a
         * fatal error. */
        enum cuda_result (*run)(const struct emu_launch *launch, void **parameters);
        unsigned parameter_count;
        const size_t *parameter_bytes;
};
struct emu_image {
        char magic[8];
        unsigned kernel_count;
        const struct emu_kernel *kernels;
};

#endif
