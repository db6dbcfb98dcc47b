/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA implementation: slabs are VMM allocations with a POSIX descriptor. A device holds the
 * primary context, which the CUDA runtime of the process uses as well, and a stream of its own.
 * Each verb makes the context current for itself and leaves the thread's as it was.
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "device/cuda_driver.h"
#include "device/device.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

/* Filling the largest memory takes less than a second; more says that the GPU hangs. */
#define ZERO_NS (60 * NSEC_PER_SEC)
#define POLL_NS_MAX NSEC_PER_MSEC
enum { POLL_TURNS_FAST = 64 };

struct gpu {
        struct device base;
        const struct cuda_driver *cuda;
        char name[24]; /* "GPU 0" */
        int device;
        struct cuda_context *context;
        struct cuda_stream *stream;
        size_t granularity;
};

static struct gpu *gpu_of(const struct device *d) {
        return (struct gpu *) d;
}

static int check(const struct gpu *g, enum cuda_result result, const char *operation,
                 struct cairn_error *reterr) {
        return cuda_error(g->cuda, result, operation, g->name, reterr);
}

/* ---- the context ---- */

static void leave(const struct gpu **entered) {
        struct cuda_context *dropped;
        /* Only errors of earlier work come from here; whoever waits for that is told. */
        if (*entered)
                (void) (*entered)->cuda->CtxPopCurrent(&dropped);
}

/* `_cleanup_(leave) const struct gpu *scope = NULL; TRY(enter(g, "copy", &scope, reterr));` */
static int enter(const struct gpu *g, const char *operation, const struct gpu **scope,
                 struct cairn_error *reterr) {
        TRY(check(g, g->cuda->CtxPushCurrent(g->context), operation, reterr));
        *scope = g;
        return 0;
}

/* For what frees and has nobody to tell: an error of earlier work is reported once. */
static void enter_to_free(const struct gpu *g, const struct gpu **scope) {
        if (enter(g, "free", scope, NULL) < 0)
                (void) enter(g, "free", scope, NULL);
}

/* ---- open and close ---- */

static struct cuda_allocation properties_of(const struct gpu *g) {
        return (struct cuda_allocation){
                .type = CUDA_ALLOCATION_PINNED,
                .handle_types = CUDA_HANDLE_POSIX_FD,
                .location = {CUDA_LOCATION_DEVICE, g->device},
        };
}

static int find(struct gpu *g, int ordinal, struct cairn_error *reterr) {
        int count;
        TRY(check(g, g->cuda->DeviceGetCount(&count), "open device", reterr));
        if (ordinal < 0 || ordinal >= count)
                return error_set(reterr, CAIRN_ERR_API, "open device", g->name,
                                 "%d GPUs are visible: look at $CUDA_VISIBLE_DEVICES", count);
        return check(g, g->cuda->DeviceGet(&g->device, ordinal), "open device", reterr);
}

static int check_abilities(struct gpu *g, struct cairn_error *reterr) {
        static const struct {
                enum cuda_attribute attribute;
                const char *what;
        } needed[] = {
                {CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, "one address space with the host"},
                {CUDA_ATTRIBUTE_VMM_SUPPORTED, "virtual memory management"},
                {CUDA_ATTRIBUTE_POSIX_FD_SUPPORTED, "memory handles as descriptors"},
                {CUDA_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "registered host memory"},
        };
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
                int value = 0;
                TRY(check(g, g->cuda->DeviceGetAttribute(&value, needed[i].attribute, g->device),
                          "open device", reterr));
                if (!value)
                        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "open device", g->name,
                                         "GPU or driver lacks %s: install a newer driver, or take "
                                         "another GPU",
                                         needed[i].what);
        }
        return 0;
}

static int prepare(struct gpu *g, struct cairn_error *reterr) {
        _cleanup_(leave) const struct gpu *scope = NULL;
        struct cuda_allocation p = properties_of(g);
        TRY(enter(g, "open device", &scope, reterr));
        TRY(check(g,
                  g->cuda->MemGetAllocationGranularity(&g->granularity, &p,
                                                       CUDA_GRANULARITY_RECOMMENDED),
                  "open device", reterr));
        return check(g, g->cuda->StreamCreateWithPriority(&g->stream, CUDA_STREAM_NON_BLOCKING, 0),
                     "open device", reterr);
}

static void gpu_close(struct device *d) {
        struct gpu *g = gpu_of(d);
        if (!g)
                return;
        if (g->stream) {
                _cleanup_(leave) const struct gpu *scope = NULL;
                enter_to_free(g, &scope);
                (void) g->cuda->StreamDestroy(g->stream);
        }
        if (g->context)
                (void) g->cuda->DevicePrimaryCtxRelease(g->device);
        free(g);
}

static int gpu_open(int ordinal, struct device **ret, struct cairn_error *reterr) {
        int r;
        TRY(device_ops_check(&device_cuda, reterr));
        struct gpu *g = calloc(1, sizeof *g);
        if (!g)
                return error_set_errno(reterr, ENOMEM, "open device", "cuda");
        g->base = (struct device){.ops = &device_cuda, .ordinal = ordinal};
        (void) snprintf(g->name, sizeof g->name, "GPU %d", ordinal);
        TRY_GOTO(cuda_driver_load(&g->cuda, reterr), fail);
        TRY_GOTO(find(g, ordinal, reterr), fail);
        TRY_GOTO(check_abilities(g, reterr), fail);
        TRY_GOTO(check(g, g->cuda->DevicePrimaryCtxRetain(&g->context, g->device), "open device",
                       reterr),
                 fail);
        TRY_GOTO(prepare(g, reterr), fail);
        *ret = &g->base;
        return 0;
fail:
        gpu_close(&g->base);
        return r;
}

static uint64_t gpu_granularity(const struct device *d) {
        return gpu_of(d)->granularity;
}

/* ---- which one it is ---- */

int device_cuda_uuid(const struct device *d, unsigned char *ret_uuid, struct cairn_error *reterr) {
        const struct gpu *g = gpu_of(d);
        struct cuda_uuid uuid;
        TRY(check(g, g->cuda->DeviceGetUuid(&uuid, g->device), "look at device", reterr));
        memcpy(ret_uuid, uuid.bytes, DEVICE_UUID_BYTES);
        return 0;
}

int device_cuda_find(const unsigned char *uuid, int *ret_ordinal, struct cairn_error *reterr) {
        static const char operation[] = "find device";
        const struct cuda_driver *cuda;
        int count, device;
        TRY(cuda_driver_load(&cuda, reterr));
        TRY(cuda_error(cuda, cuda->DeviceGetCount(&count), operation, "cuda", reterr));
        for (int i = 0; i < count; i++) {
                struct cuda_uuid seen;
                TRY(cuda_error(cuda, cuda->DeviceGet(&device, i), operation, "cuda", reterr));
                TRY(cuda_error(cuda, cuda->DeviceGetUuid(&seen, device), operation, "cuda",
                               reterr));
                if (memcmp(seen.bytes, uuid, DEVICE_UUID_BYTES) != 0)
                        continue;
                *ret_ordinal = i;
                return 0;
        }
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, operation, "cuda",
                         "none of the %d GPUs that are visible here is the one: look at "
                         "$CUDA_VISIBLE_DEVICES of the agent",
                         count);
}

/* ---- waiting ---- */

/* The event, or the own stream; the context is entered. BUSY says nothing: it is asked often. */
static int ask(struct gpu *g, const struct device_event *e, struct cairn_error *reterr) {
        enum cuda_result result =
                e ? g->cuda->EventQuery((struct cuda_event *) (uintptr_t) e->handle)
                  : g->cuda->StreamQuery(g->stream);
        if (result == CUDA_NOT_READY)
                return CAIRN_ERR_BUSY;
        return check(g, result, "wait for the GPU", reterr);
}

static int wait_for(struct gpu *g, const struct device_event *e, uint64_t deadline_ns,
                    struct cairn_error *reterr) {
        _cleanup_(leave) const struct gpu *scope = NULL;
        uint64_t pause_ns = 1000;
        TRY(enter(g, "wait for the GPU", &scope, reterr));
        for (unsigned turn = 0;; turn++) {
                int r = ask(g, e, reterr);
                if (r != CAIRN_ERR_BUSY)
                        return r;
                if (clock_now(&clock_system) >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "wait for the GPU", g->name,
                                         "what it was given has not ended in time");
                if (turn < POLL_TURNS_FAST)
                        continue;
                clock_system.sleep_ns(clock_system.context, pause_ns);
                if (pause_ns < POLL_NS_MAX)
                        pause_ns *= 2;
        }
}

static int gpu_synchronize(struct device *d, uint64_t deadline_ns, struct cairn_error *reterr) {
        return wait_for(gpu_of(d), NULL, deadline_ns, reterr);
}

/* ---- memory ---- */

static void *pointer(cuda_address address) {
        return (void *) (uintptr_t) address;
}

static void forget(struct gpu *g, struct device_memory *m) {
        _cleanup_(leave) const struct gpu *scope = NULL;
        cuda_address address = (uintptr_t) m->address;
        if (address || m->handle)
                enter_to_free(g, &scope);
        if (address) {
                (void) g->cuda->MemUnmap(address, m->bytes);
                (void) g->cuda->MemAddressFree(address, m->bytes);
        }
        if (m->handle)
                (void) g->cuda->MemRelease(m->handle);
        *m = (struct device_memory) DEVICE_MEMORY_INIT;
}

static enum cuda_result grant(struct gpu *g, cuda_address address, uint64_t bytes,
                              enum cuda_access_flags flags) {
        struct cuda_access access = {{CUDA_LOCATION_DEVICE, g->device}, flags};
        return g->cuda->MemSetAccess(address, bytes, &access, 1);
}

/* Gives m->handle an address. *ret_step: what failed. */
static enum cuda_result map(struct gpu *g, struct device_memory *m, bool read_only,
                            const char **ret_step) {
        cuda_address address = 0;
        *ret_step = "reserve addresses of the GPU";
        enum cuda_result result = g->cuda->MemAddressReserve(&address, m->bytes, 0, 0, 0);
        if (result != CUDA_OK)
                return result;
        *ret_step = "map device memory";
        result = g->cuda->MemMap(address, m->bytes, 0, m->handle, 0);
        if (result != CUDA_OK) {
                (void) g->cuda->MemAddressFree(address, m->bytes);
                return result;
        }
        m->address = pointer(address);
        *ret_step = "get access to device memory";
        if (read_only) {
                result = grant(g, address, m->bytes, CUDA_ACCESS_READ);
                if (result != CUDA_NOT_SUPPORTED && result != CUDA_INVALID_VALUE)
                        return result;
        }
        return grant(g, address, m->bytes, CUDA_ACCESS_READ_WRITE);
}

static int out_of_memory(struct gpu *g, uint64_t bytes, struct cairn_error *reterr) {
        size_t available, total;
        char have[64] = "";
        if (g->cuda->MemGetInfo(&available, &total) == CUDA_OK)
                (void) snprintf(have, sizeof have, ", %zu of %zu are free", available, total);
        return error_set(reterr, CAIRN_ERR_NOMEM, "allocate device memory", g->name,
                         "%" PRIu64 " bytes are not there%s; use less, or end what else is on the "
                         "GPU (nvidia-smi)",
                         bytes, have);
}

static int zero(struct gpu *g, const struct device_memory *m, struct cairn_error *reterr) {
        TRY(check(g, g->cuda->MemsetD8Async((uintptr_t) m->address, 0, m->bytes, g->stream),
                  "clear device memory", reterr));
        return wait_for(g, NULL, clock_now(&clock_system) + ZERO_NS, reterr);
}

/* Whether memory that was being cleared may go. A GPU that hangs keeps it: nothing waits for that
 * without a limit. An error of earlier work is reported once, one that stays says that nothing
 * runs. */
static bool may_forget(struct gpu *g) {
        int r = wait_for(g, NULL, clock_now(&clock_system) + ZERO_NS, NULL);
        if (r < 0 && r != CAIRN_ERR_TIMEOUT)
                r = wait_for(g, NULL, clock_now(&clock_system) + ZERO_NS, NULL);
        return r != CAIRN_ERR_TIMEOUT;
}

static int create(struct gpu *g, struct device_memory *m, struct cairn_error *reterr) {
        struct cuda_allocation p = properties_of(g);
        const char *step;
        cuda_handle handle;
        enum cuda_result result = g->cuda->MemCreate(&handle, m->bytes, &p, 0);
        if (result == CUDA_OUT_OF_MEMORY)
                return out_of_memory(g, m->bytes, reterr);
        TRY(check(g, result, "allocate device memory", reterr));
        m->handle = handle;
        result = map(g, m, false, &step);
        TRY(check(g, result, step, reterr));
        return zero(g, m, reterr);
}

static int gpu_allocate(struct device *d, uint64_t bytes, struct device_memory *ret,
                        struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        struct device_memory m = DEVICE_MEMORY_INIT;
        _cleanup_(leave) const struct gpu *scope = NULL;
        if (bytes == 0 || !align_up_checked(bytes, g->granularity, &m.bytes) ||
            m.bytes > SLAB_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "allocate device memory", g->name,
                                 "%" PRIu64 " bytes are not between 1 and %" PRIu64, bytes,
                                 SLAB_BYTES_MAX);
        m.kind = DEVICE_HANDLE_CUDA_VMM;
        TRY(enter(g, "allocate device memory", &scope, reterr));
        int r = create(g, &m, reterr);
        if (r < 0) {
                if (may_forget(g))
                        forget(g, &m);
                return r;
        }
        *ret = m;
        return 0;
}

static void gpu_release(struct device *d, struct device_memory *m) {
        forget(gpu_of(d), m);
}

static int gpu_export(struct device *d, const struct device_memory *m, int *ret_fd,
                      struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        _cleanup_(leave) const struct gpu *scope = NULL;
        _cleanup_close_ int fd = -1;
        TRY(enter(g, "export device memory", &scope, reterr));
        TRY(check(g, g->cuda->MemExportToShareableHandle(&fd, m->handle, CUDA_HANDLE_POSIX_FD, 0),
                  "export device memory", reterr));
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
                return error_set_errno(reterr, errno, "export device memory", g->name);
        *ret_fd = TAKE_FD(fd);
        return 0;
}

/* What another process sent is checked by the driver alone. */
static int import(struct gpu *g, int fd, bool read_only, struct device_memory *m,
                  struct cairn_error *reterr) {
        const char *step;
        cuda_handle handle;
        enum cuda_result result = g->cuda->MemImportFromShareableHandle(
                &handle, (void *) (intptr_t) fd, CUDA_HANDLE_POSIX_FD);
        if (result == CUDA_INVALID_VALUE)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "import device memory", g->name,
                                 "the descriptor is no memory of this GPU's driver");
        TRY(check(g, result, "import device memory", reterr));
        m->handle = handle;
        result = map(g, m, read_only, &step);
        if (result == CUDA_INVALID_VALUE && !m->address)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "import device memory", g->name,
                                 "%" PRIu64 " bytes were announced, which do not map", m->bytes);
        TRY(check(g, result, step, reterr));
        /* The mapping keeps the memory. */
        m->handle = 0;
        return check(g, g->cuda->MemRelease(handle), "import device memory", reterr);
}

static int gpu_import(struct device *d, int fd, uint64_t bytes, bool read_only,
                      struct device_memory *ret, struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        struct device_memory m = {
                .fd = -1, .bytes = bytes, .kind = DEVICE_HANDLE_CUDA_VMM, .imported = true};
        _cleanup_(leave) const struct gpu *scope = NULL;
        if (bytes == 0 || bytes % g->granularity != 0 || bytes > SLAB_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "import device memory", g->name,
                                 "%" PRIu64 " bytes were announced, not a multiple of %zu", bytes,
                                 g->granularity);
        TRY(enter(g, "import device memory", &scope, reterr));
        int r = import(g, fd, read_only, &m, reterr);
        if (r < 0) {
                forget(g, &m);
                return r;
        }
        *ret = m;
        return 0;
}

static void gpu_unmap(struct device *d, struct device_memory *m) {
        forget(gpu_of(d), m);
}

/* ---- copies and events ---- */

static struct cuda_stream *stream_of(const struct gpu *g, void *queue) {
        return queue ? queue : g->stream;
}

static int gpu_copy(struct device *d, void *queue, void *target, const void *source, uint64_t bytes,
                    struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        _cleanup_(leave) const struct gpu *scope = NULL;
        if (bytes == 0)
                return 0;
        TRY(enter(g, "copy", &scope, reterr));
        return check(g,
                     g->cuda->MemcpyAsync((uintptr_t) target, (uintptr_t) source, bytes,
                                          stream_of(g, queue)),
                     "copy", reterr);
}

static int gpu_event_record(struct device *d, struct device_event *e, void *queue,
                            struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        struct cuda_event *event = (struct cuda_event *) (uintptr_t) e->handle;
        _cleanup_(leave) const struct gpu *scope = NULL;
        TRY(enter(g, "record event", &scope, reterr));
        if (!event)
                TRY(check(g, g->cuda->EventCreate(&event, CUDA_EVENT_DISABLE_TIMING),
                          "record event", reterr));
        e->handle = (uintptr_t) event;
        TRY(check(g, g->cuda->EventRecord(event, stream_of(g, queue)), "record event", reterr));
        e->recorded = true;
        return 0;
}

static int check_recorded(const struct gpu *g, const struct device_event *e,
                          struct cairn_error *reterr) {
        if (!e->recorded)
                return error_set(reterr, CAIRN_ERR_API, "query event", g->name,
                                 "it was never recorded");
        return 0;
}

static int gpu_event_query(struct device *d, const struct device_event *e,
                           struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        _cleanup_(leave) const struct gpu *scope = NULL;
        TRY(check_recorded(g, e, reterr));
        TRY(enter(g, "query event", &scope, reterr));
        return ask(g, e, reterr);
}

static int gpu_event_wait(struct device *d, const struct device_event *e, uint64_t deadline_ns,
                          struct cairn_error *reterr) {
        TRY(check_recorded(gpu_of(d), e, reterr));
        return wait_for(gpu_of(d), e, deadline_ns, reterr);
}

static void gpu_event_done(struct device *d, struct device_event *e) {
        struct gpu *g = gpu_of(d);
        _cleanup_(leave) const struct gpu *scope = NULL;
        if (e->handle) {
                enter_to_free(g, &scope);
                (void) g->cuda->EventDestroy((struct cuda_event *) (uintptr_t) e->handle);
        }
        *e = (struct device_event){0};
}

/* ---- memory that others allocated ---- */

/* Whatever the width of the answer is: it comes to the low end of 8 bytes. */
static enum cuda_result ask_of(const struct gpu *g, cuda_address address,
                               enum cuda_pointer_attribute attribute, uint64_t *ret) {
        *ret = 0;
        return g->cuda->PointerGetAttribute(ret, attribute, address);
}

/* 1, 0, or -1: the driver does not say. */
static int is_mapped(const struct gpu *g, cuda_address address) {
        uint64_t mapped;
        return ask_of(g, address, CUDA_POINTER_MAPPED, &mapped) != CUDA_OK ? -1 : mapped != 0;
}

/* Memory of some GPU. A range may be that of reserved addresses, of which not all are mapped. */
static int check_range(const struct gpu *g, uint64_t first, uint64_t bytes,
                       struct cairn_error *reterr) {
        static const char operation[] = "look at memory";
        uint64_t managed, ordinal, start, size;
        if (ask_of(g, first, CUDA_POINTER_IS_MANAGED, &managed) == CUDA_OK && managed)
                return 0; /* the driver moves it to whoever copies */
        if (ask_of(g, first, CUDA_POINTER_DEVICE_ORDINAL, &ordinal) == CUDA_OK &&
            (int) ordinal != g->base.ordinal)
                return error_set(reterr, CAIRN_ERR_API, operation, g->name,
                                 "it is memory of GPU %d, and this is a session of %s: register it "
                                 "in one of its own GPU (cairn_options.device_ordinal)",
                                 (int) ordinal, g->name);
        if (ask_of(g, first, CUDA_POINTER_RANGE_START, &start) == CUDA_OK &&
            ask_of(g, first, CUDA_POINTER_RANGE_BYTES, &size) == CUDA_OK &&
            (first - start > size || bytes > size - (first - start)))
                return error_set(reterr, CAIRN_ERR_API, operation, g->name,
                                 "its %" PRIu64 " bytes reach beyond the allocation, which has "
                                 "%" PRIu64 " from there on",
                                 bytes, first - start > size ? 0 : size - (first - start));
        /* Where the beginning counts as mapped; a driver might count only what cuMemMap did. */
        if (is_mapped(g, first) == 1 && is_mapped(g, first + bytes - 1) == 0)
                return error_set(reterr, CAIRN_ERR_API, operation, g->name,
                                 "not all of its %" PRIu64 " bytes are mapped to memory", bytes);
        return 0;
}

static int gpu_check_memory(struct device *d, const void *address, uint64_t bytes, bool *ret_host,
                            struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        _cleanup_(leave) const struct gpu *scope = NULL;
        uint64_t type;
        TRY(enter(g, "look at memory", &scope, reterr));
        enum cuda_result result = ask_of(g, (uintptr_t) address, CUDA_POINTER_MEMORY_TYPE, &type);
        /* INVALID_VALUE: the driver does not know the address: plain memory, or none any more. */
        *ret_host = result == CUDA_INVALID_VALUE || (result == CUDA_OK && type == CUDA_MEMORY_HOST);
        if (result != CUDA_OK || type != CUDA_MEMORY_DEVICE)
                return 0;
        return check_range(g, (uintptr_t) address, bytes, reterr);
}

/* ---- host memory ---- */

static int gpu_host_register(struct device *d, void *address, uint64_t bytes,
                             struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        _cleanup_(leave) const struct gpu *scope = NULL;
        TRY(enter(g, "page-lock host memory", &scope, reterr));
        enum cuda_result result = g->cuda->MemHostRegister(address, bytes, 0);
        if (result == CUDA_OUT_OF_MEMORY)
                return error_set(reterr, CAIRN_ERR_NOMEM, "page-lock host memory", g->name,
                                 "%" PRIu64 " bytes cannot be locked: give the machine or the "
                                 "container more memory",
                                 bytes);
        return check(g, result, "page-lock host memory", reterr);
}

static int gpu_host_unregister(struct device *d, void *address, struct cairn_error *reterr) {
        struct gpu *g = gpu_of(d);
        _cleanup_(leave) const struct gpu *scope = NULL;
        TRY(enter(g, "unlock host memory", &scope, reterr));
        return check(g, g->cuda->MemHostUnregister(address), "unlock host memory", reterr);
}

const struct device_ops device_cuda = {
        .name = "cuda",
        .class = DEVICE_CLASS_CUDA,
        .open = gpu_open,
        .close = gpu_close,
        .granularity = gpu_granularity,
        .allocate = gpu_allocate,
        .release = gpu_release,
        .export_fd = gpu_export,
        .import_fd = gpu_import,
        .unmap = gpu_unmap,
        .copy_async = gpu_copy,
        .event_record = gpu_event_record,
        .event_query = gpu_event_query,
        .event_wait = gpu_event_wait,
        .event_done = gpu_event_done,
        .synchronize = gpu_synchronize,
        .check_memory = gpu_check_memory,
        .host_register = gpu_host_register,
        .host_unregister = gpu_host_unregister,
};
