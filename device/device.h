/* SPDX-License-Identifier: Apache-2.0
 *
 * device.h - memory that outlives its owner, copies and events behind a table. Two implementations:
 * `host` (sealed memfds, memcpy; host.c) and `cuda` (driver functions of libcuda.so.1; cuda.c).
 *
 * Calling sequence:
 *
 *     struct device *d;
 *     TRY(device_host.open(0, &d, reterr));               // cuda: ordinal of the visible device
 *     TRY(d->ops->allocate(d, bytes, &m, reterr));        // m.address is usable, zeroed
 *     TRY(d->ops->export_fd(d, &m, &fd, reterr));         // send it by SCM_RIGHTS, close it
 *       ... other process:
 *       TRY(d->ops->import_fd(d, fd, bytes, read_only, &m2, reterr)); ... d->ops->unmap(d, &m2);
 *     TRY(d->ops->copy_async(d, queue, target, source, bytes, reterr));
 *     TRY(d->ops->event_record(d, &e, queue, reterr));
 *     TRY(d->ops->event_wait(d, &e, deadline_ns, reterr));
 *     d->ops->release(d, &m);
 *     d->ops->close(d);
 *
 * Verbs suit both sides: `queue` is a CUstream (NULL: the implementation's own stream), an address
 * is a CUdeviceptr or a host pointer, a device_memory keeps the VMM handle. On the host a copy is
 * finished when copy_async returns and events are complete when they are recorded. On a GPU source
 * and target belong to the copy until an event recorded after it is complete; copies of host memory
 * that is not registered are not asynchronous. The context that a thread has is left as it was.
 *
 * Owner: device_memory belongs to whoever allocated or imported it, until release or unmap, which
 * come after the last copy has ended. Exported descriptors belong to the caller. Threads: copies
 * and events from any thread; allocate, import, release and unmap one at a time per device. Memory
 * is MADV_DONTFORK where the system can; it is absent in a forked child, which must not call any
 * verb. Errors: NOMEM with the size and a remedy, DEVICE with the driver's code in system_code
 * (cuda_driver.h: some of them end what this process can do on that GPU), CORRUPT for a received
 * descriptor that is not what it should be, TIMEOUT.
 */
#ifndef CAIRN_DEVICE_H
#define CAIRN_DEVICE_H

#include "base/limits.h"
#include "base/status.h"
#include <stdbool.h>

enum device_class { DEVICE_CLASS_HOST = 0, DEVICE_CLASS_CUDA = 1 }; /* as in manifest.proto */

/* What a slab's descriptor is (SlabBatch.kind in control.proto). */
enum device_handle_kind { DEVICE_HANDLE_MEMFD = 1, DEVICE_HANDLE_CUDA_VMM = 2 };

struct device_ops;
struct device {
        const struct device_ops *ops;
        int ordinal;
};

struct device_memory {
        void *address;  /* host pointer or CUdeviceptr */
        uint64_t bytes; /* as mapped: a multiple of the granularity */
        enum device_handle_kind kind;
        int fd;          /* host: the memfd; cuda: -1 */
        uint64_t handle; /* cuda: CUmemGenericAllocationHandle */
        bool imported;
};
#define DEVICE_MEMORY_INIT \
        { .fd = -1 }

struct device_event {
        uint64_t handle; /* cuda: CUevent; host: unused */
        bool recorded;
};

struct device_ops {
        const char *name; /* "host", "cuda" */
        enum device_class class;

        int (*open)(int ordinal, struct device **ret, struct cairn_error *reterr);
        void (*close)(struct device *d); /* NULL allowed; all memory was released before */
        /* Smallest unit of allocate: slabs are multiples of it. */
        uint64_t (*granularity)(const struct device *d);

        /* Zeroed, exportable memory of at least `bytes`. */
        int (*allocate)(struct device *d, uint64_t bytes, struct device_memory *ret,
                        struct cairn_error *reterr);
        void (*release)(struct device *d, struct device_memory *m); /* of allocate; clears *m */
        int (*export_fd)(struct device *d, const struct device_memory *m, int *ret_fd,
                         struct cairn_error *reterr);
        /* Map a received handle of exactly `bytes`; the caller keeps its fd. CORRUPT: fewer are
         * there (host: or more, which CUDA does not tell). Read-only where `read_only` and the
         * implementation can. */
        int (*import_fd)(struct device *d, int fd, uint64_t bytes, bool read_only,
                         struct device_memory *ret, struct cairn_error *reterr);
        void (*unmap)(struct device *d, struct device_memory *m); /* of import_fd; clears *m */

        /* Any direction: the implementation knows device from host pointers. Not overlapping. */
        int (*copy_async)(struct device *d, void *queue, void *target, const void *source,
                          uint64_t bytes, struct cairn_error *reterr);
        int (*event_record)(struct device *d, struct device_event *e, void *queue,
                            struct cairn_error *reterr);
        /* 0: complete; BUSY: not yet; DEVICE: the work before it failed. */
        int (*event_query)(struct device *d, const struct device_event *e,
                           struct cairn_error *reterr);
        int (*event_wait)(struct device *d, const struct device_event *e, uint64_t deadline_ns,
                          struct cairn_error *reterr);
        void (*event_done)(struct device *d, struct device_event *e);
        /* All that the own stream was given is done. */
        int (*synchronize)(struct device *d, uint64_t deadline_ns, struct cairn_error *reterr);

        /* Memory that somebody else allocated: can copies reach all of it? API says why not. 0 with
         * *ret_host: it is not the device's, as far as is known, so the process has to hold it.
         * What a driver does not tell is not checked. */
        int (*check_memory)(struct device *d, const void *address, uint64_t bytes, bool *ret_host,
                            struct cairn_error *reterr);

        /* Page-lock host memory for the device's copies, and undo it. */
        int (*host_register)(struct device *d, void *address, uint64_t bytes,
                             struct cairn_error *reterr);
        int (*host_unregister)(struct device *d, void *address, struct cairn_error *reterr);
};

extern const struct device_ops device_host;
extern const struct device_ops device_cuda; /* the driver is loaded by the first open */

/* The driver keeps this error: nothing on that device works in this process any more. */
bool device_error_is_final(const struct cairn_error *e);
/* A GPU's own name (DEVICE_UUID_BYTES), by which another process finds it again. */
int device_cuda_uuid(const struct device *d, unsigned char *ret_uuid, struct cairn_error *reterr);
/* UNSUPPORTED: no visible one has it. Touches none of them. */
int device_cuda_find(const unsigned char *uuid, int *ret_ordinal, struct cairn_error *reterr);

/* Every verb is there: checked once by whoever opens a device. FATAL names the missing one. */
int device_ops_check(const struct device_ops *ops, struct cairn_error *reterr);

#endif
