/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime calls (cuda_runtime_api.h) over the emulated driver, and the way of a launch to it.
 */
#include "device/cuda_abi.h"
#include "tests/cuda/emu.h"
#include "tests/cuda/sim/cuda_runtime_api.h"
#include "tests/cuda/sim/sim.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

extern const struct emu_control emu_control;
/* clang-format off */
#define DECLARE(name, symbol, since, parameters) extern enum cuda_result symbol parameters;
CUDA_FUNCTIONS(DECLARE)
/* clang-format on */

enum { DEVICES_MAX = 8, PAGE = 4096 };
#define NSEC_PER_SEC 1000000000u

/* What cudaMalloc and cudaHostAlloc gave. */
struct memory {
        struct memory *next;
        unsigned char *address;
        size_t bytes, mapped;
        bool of_device;
};
struct timed_event {
        struct timed_event *next;
        struct cuda_event *handle;
        uint64_t ns; /* when the stream came by */
};
struct device {
        bool open;
        struct cuda_module *module;
        struct cuda_function *call, *stamp;
};

static struct {
        pthread_mutex_t lock;
        struct device devices[DEVICES_MAX];
        struct timed_event *events;
        struct memory *memory;
} runtime = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int current = -1;
static _Thread_local cudaError_t last;

static cudaError_t keep(int result) {
        if (result != cudaSuccess && result != cudaErrorNotReady)
                last = (cudaError_t) result;
        return (cudaError_t) result;
}

static void lock(void) {
        (void) pthread_mutex_lock(&runtime.lock);
}

static void unlock(void) {
        (void) pthread_mutex_unlock(&runtime.lock);
}

/* ---- launches ---- */

/* One function for all kernels: what it runs is its parameter. */
static enum cuda_result run_call(const struct emu_launch *launch, void **parameters) {
        return (enum cuda_result) sim_run(parameters[0], launch->grid, launch->block,
                                          launch->shared_bytes, emu_control.mappings);
}

/* The time of a stream, in its place on it. The event may be gone by now. */
static enum cuda_result run_stamp(const struct emu_launch *launch, void **parameters) {
        struct timespec t;
        (void) clock_gettime(CLOCK_MONOTONIC, &t);
        lock();
        for (struct timed_event *e = runtime.events; e; e = e->next)
                if (e->handle == *(struct cuda_event **) parameters[0])
                        e->ns = (uint64_t) t.tv_sec * NSEC_PER_SEC + (uint64_t) t.tv_nsec;
        unlock();
        return CUDA_OK;
}

static const size_t call_bytes[] = {sizeof(struct sim_call)};
static const size_t stamp_bytes[] = {sizeof(struct cuda_event *)};
static const struct emu_kernel kernels[] = {{"call", run_call, 1, call_bytes},
                                            {"stamp", run_stamp, 1, stamp_bytes}};
static const struct emu_image image = {
        .magic = EMU_IMAGE_MAGIC, .kernel_count = 2, .kernels = kernels};

int sim_queue(const struct sim_call *call, const unsigned grid[3], const unsigned block[3],
              size_t shared_bytes, void *stream) {
        void *parameters[] = {(void *) call};
        if (current < 0)
                return keep(cudaErrorDeviceUninitialized);
        if (shared_bytes > SIM_SHARED_BYTES)
                return keep(cudaErrorInvalidValue);
        return keep(cuLaunchKernel(runtime.devices[current].call, grid[0], grid[1], grid[2],
                                   block[0], block[1], block[2], (unsigned) shared_bytes, stream,
                                   parameters, NULL));
}

/* ---- devices ---- */

cudaError_t cudaDriverGetVersion(int *version) {
        return keep(cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version) {
        *version = CUDART_VERSION;
        return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
        *count = 0;
        int result = cuInit(0);
        return keep(result == CUDA_OK ? (int) cuDeviceGetCount(count) : result);
}

static int device_open(struct device *d, int number) {
        struct cuda_context *context;
        int result = cuDevicePrimaryCtxRetain(&context, number);
        if (result != CUDA_OK)
                return result;
        result = cuCtxSetCurrent(context);
        if (result == CUDA_OK)
                result = cuModuleLoadData(&d->module, &image);
        if (result == CUDA_OK)
                result = cuModuleGetFunction(&d->call, d->module, "call");
        if (result == CUDA_OK)
                result = cuModuleGetFunction(&d->stamp, d->module, "stamp");
        d->open = result == CUDA_OK;
        if (d->open)
                return result;
        if (d->module)
                (void) cuModuleUnload(d->module);
        (void) cuDevicePrimaryCtxRelease_v2(number);
        *d = (struct device){.open = false};
        return result;
}

static int context_take(int number) {
        struct cuda_context *context;
        int result = cuDevicePrimaryCtxRetain(&context, number);
        if (result != CUDA_OK)
                return result;
        result = cuCtxSetCurrent(context);
        (void) cuDevicePrimaryCtxRelease_v2(number); /* the device keeps its own */
        return result;
}

cudaError_t cudaSetDevice(int device) {
        if (device < 0 || device >= DEVICES_MAX)
                return keep(cudaErrorInvalidDevice);
        int result = cuInit(0);
        if (result == CUDA_OK) {
                lock();
                struct device *d = &runtime.devices[device];
                result = d->open ? context_take(device) : device_open(d, device);
                unlock();
        }
        if (result == CUDA_OK)
                current = device;
        return keep(result);
}

cudaError_t cudaGetDevice(int *device) {
        if (current < 0)
                return keep(cudaErrorDeviceUninitialized);
        *device = current;
        return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *name, int bytes, int device) {
        return keep(cuDeviceGetPCIBusId(name, bytes, device));
}

static int describe(struct cudaDeviceProp *p, int device) {
        char bus[32] = "";
        const struct {
                enum cuda_attribute attribute;
                int *value;
        } attributes[] = {
                {CUDA_ATTRIBUTE_MULTIPROCESSOR_COUNT, &p->multiProcessorCount},
                {CUDA_ATTRIBUTE_INTEGRATED, &p->integrated},
                {CUDA_ATTRIBUTE_ASYNC_ENGINE_COUNT, &p->asyncEngineCount},
                {CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, &p->unifiedAddressing},
                {CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &p->major},
                {CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &p->minor},
        };
        int result = cuDeviceGetName(p->name, sizeof p->name, device);
        if (result == CUDA_OK)
                result = cuDeviceGetUuid_v2((struct cuda_uuid *) &p->uuid, device);
        if (result == CUDA_OK)
                result = cuDeviceTotalMem_v2(&p->totalGlobalMem, device);
        if (result == CUDA_OK)
                result = cuDeviceGetPCIBusId(bus, sizeof bus, device);
        for (size_t i = 0; i < sizeof attributes / sizeof *attributes && result == CUDA_OK; i++)
                result = cuDeviceGetAttribute(attributes[i].value, attributes[i].attribute, device);
        (void) sscanf(bus, "%x:%x:%x", (unsigned *) &p->pciDomainID, (unsigned *) &p->pciBusID,
                      (unsigned *) &p->pciDeviceID);
        return result;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
        *properties = (struct cudaDeviceProp){
                .sharedMemPerBlock = SIM_SHARED_BYTES,
                .warpSize = SIM_WARP,
                .maxThreadsPerBlock = SIM_THREADS_MAX,
        };
        int result = cuInit(0);
        return keep(result == CUDA_OK ? describe(properties, device) : result);
}

cudaError_t cudaDeviceSynchronize(void) {
        return keep(cuCtxSynchronize());
}

/* Streams and events that are left go with the context; memory is to be freed before. */
cudaError_t cudaDeviceReset(void) {
        if (current < 0)
                return keep(cudaErrorDeviceUninitialized);
        lock();
        struct device *d = &runtime.devices[current];
        int result = d->open ? (int) cuModuleUnload(d->module) : CUDA_OK;
        int released = d->open ? (int) cuDevicePrimaryCtxRelease_v2(current) : CUDA_OK;
        *d = (struct device){.open = false};
        unlock();
        current = -1;
        return keep(result == CUDA_OK ? released : result);
}

/* ---- errors ---- */

cudaError_t cudaPeekAtLastError(void) {
        return last;
}

cudaError_t cudaGetLastError(void) {
        cudaError_t result = last;
        last = cudaSuccess;
        return result;
}

const char *cudaGetErrorName(cudaError_t error) {
        const char *text;
        return cuGetErrorName((enum cuda_result) error, &text) == CUDA_OK ? text : "unknown error";
}

const char *cudaGetErrorString(cudaError_t error) {
        const char *text;
        return cuGetErrorString((enum cuda_result) error, &text) == CUDA_OK ? text
                                                                            : "unknown error";
}

/* ---- memory ---- */

static void memory_add(void *address, size_t bytes, size_t mapped, bool of_device) {
        struct memory *m = malloc(sizeof *m);
        if (!m)
                abort();
        lock();
        *m = (struct memory){runtime.memory, address, bytes, mapped, of_device};
        runtime.memory = m;
        unlock();
}

/* Takes it from the list; false: it is not there. */
static bool memory_take(const void *address, bool of_device, struct memory *ret) {
        lock();
        struct memory **link = &runtime.memory, *m;
        while ((m = *link) && (m->address != address || m->of_device != of_device))
                link = &m->next;
        if (m) {
                *ret = *m;
                *link = m->next;
        }
        unlock();
        free(m);
        return m != NULL;
}

/* Is it known to be of the other side? Slabs of libcairn's are not known here. */
static bool belies(const void *address, bool said_device) {
        bool belied = false;
        lock();
        for (struct memory *m = runtime.memory; m; m = m->next)
                if ((const unsigned char *) address >= m->address &&
                    (const unsigned char *) address < m->address + m->bytes)
                        belied = m->of_device != said_device;
        unlock();
        return belied;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
        cuda_address a = 0;
        /* A page that may not be used, between this and the next. */
        size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
        *address = NULL;
        if (bytes == 0)
                return cudaSuccess;
        if (bytes > SIZE_MAX - (size_t) 2 * PAGE)
                return keep(cudaErrorMemoryAllocation);
        int result = cuMemAlloc_v2(&a, mapped);
        if (result != CUDA_OK)
                return keep(result);
        *address = (void *) (uintptr_t) a;
        memory_add(*address, bytes, mapped, true);
        sim_memory_add(*address, bytes, mapped);
        return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
        struct memory m;
        if (!address)
                return cudaSuccess;
        if (!memory_take(address, true, &m))
                return keep(cudaErrorInvalidValue);
        sim_memory_remove(address);
        return keep(cuMemFree_v2((uintptr_t) address));
}

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
        size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
        *address = NULL;
        if (bytes == 0)
                return cudaSuccess;
        void *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                return keep(cudaErrorMemoryAllocation);
        int result = cuMemHostRegister_v2(p, mapped, flags);
        if (result != CUDA_OK) {
                (void) munmap(p, mapped);
                return keep(result);
        }
        memory_add(p, bytes, mapped, false);
        *address = p;
        return cudaSuccess;
}

cudaError_t cudaMallocHost(void **address, size_t bytes) {
        return cudaHostAlloc(address, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *address) {
        struct memory m;
        if (!address)
                return cudaSuccess;
        if (!memory_take(address, false, &m))
                return keep(cudaErrorInvalidValue);
        /* As the real one: not while the device may still use it. */
        int result = cuCtxSynchronize(), unregistered = cuMemHostUnregister(address);
        (void) munmap(address, m.mapped);
        return keep(result == CUDA_OK ? unregistered : result);
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags) {
        return keep(cuMemHostRegister_v2(address, bytes, flags));
}

cudaError_t cudaHostUnregister(void *address) {
        return keep(cuMemHostUnregister(address));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
        return keep(cuMemGetInfo_v2(free_bytes, total));
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream) {
        bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
        bool of_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
        if (kind > cudaMemcpyDefault || (kind != cudaMemcpyDefault && bytes > 0 &&
                                         (belies(target, to_device) || belies(source, of_device))))
                return keep(cudaErrorInvalidMemcpyDirection);
        return keep(cuMemcpyAsync((uintptr_t) target, (uintptr_t) source, bytes,
                                  (struct cuda_stream *) stream));
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
        return keep(cuMemsetD8Async((uintptr_t) target, (unsigned char) value, bytes,
                                    (struct cuda_stream *) stream));
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
        return keep(cuStreamCreateWithPriority((struct cuda_stream **) stream, flags, 0));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
        return keep(cuStreamDestroy_v2((struct cuda_stream *) stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
        return keep(cuStreamSynchronize((struct cuda_stream *) stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
        return keep(cuStreamQuery((struct cuda_stream *) stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
        return keep(cuStreamWaitEvent((struct cuda_stream *) stream, (struct cuda_event *) event,
                                      flags));
}

/* ---- events ---- */

static struct timed_event **timed(const struct cuda_event *handle) {
        struct timed_event **link = &runtime.events;
        while (*link && (*link)->handle != handle)
                link = &(*link)->next;
        return link;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
        if (flags & ~(unsigned) cudaEventDisableTiming)
                return keep(cudaErrorInvalidValue);
        struct cuda_event *handle;
        int result = cuEventCreate(&handle, CUDA_EVENT_DISABLE_TIMING);
        if (result != CUDA_OK)
                return keep(result);
        if (!(flags & cudaEventDisableTiming)) {
                struct timed_event *e = malloc(sizeof *e);
                if (!e)
                        abort();
                lock();
                *e = (struct timed_event){runtime.events, handle, 0};
                runtime.events = e;
                unlock();
        }
        *event = (cudaEvent_t) handle;
        return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
        struct cuda_event *handle = (struct cuda_event *) event;
        void *parameters[] = {&handle};
        lock();
        bool is_timed = *timed(handle) != NULL;
        unlock();
        int result = CUDA_OK;
        if (is_timed)
                result = cuLaunchKernel(runtime.devices[current].stamp, 1, 1, 1, 1, 1, 1, 0,
                                        (struct cuda_stream *) stream, parameters, NULL);
        if (result == CUDA_OK)
                result = cuEventRecord(handle, (struct cuda_stream *) stream);
        return keep(result);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
        return keep(cuEventQuery((struct cuda_event *) event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
        return keep(cuEventSynchronize((struct cuda_event *) event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
        lock();
        struct timed_event **link = timed((struct cuda_event *) event), *e = *link;
        if (e)
                *link = e->next;
        unlock();
        free(e);
        return keep(cuEventDestroy_v2((struct cuda_event *) event));
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
        int result = cuEventQuery((struct cuda_event *) start);
        if (result == CUDA_OK)
                result = cuEventQuery((struct cuda_event *) end);
        if (result != CUDA_OK)
                return keep(result);
        lock();
        struct timed_event *from = *timed((struct cuda_event *) start);
        struct timed_event *to = *timed((struct cuda_event *) end);
        bool known = from && to && from->ns > 0 && to->ns > 0;
        if (known)
                *milliseconds = (float) ((double) (int64_t) (to->ns - from->ns) / 1e6);
        unlock();
        return keep(known ? cudaSuccess : cudaErrorInvalidResourceHandle);
}
