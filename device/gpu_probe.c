/* SPDX-License-Identifier: Apache-2.0 */
#include "device/gpu_probe.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "device/cuda_driver.h"
#include "device/device.h"
#include "format/wire.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define COPY_NS (10 * NSEC_PER_SEC)
enum { EXCLUSIVE_THREAD = 1, EXCLUSIVE_PROCESS = 3 }; /* of CUDA_ATTRIBUTE_COMPUTE_MODE */

void gpu_probe_driver(struct gpu_driver_found *ret) {
        const struct cuda_driver *cuda;
        *ret = (struct gpu_driver_found){.error = CAIRN_ERROR_INIT};
        ret->present = cuda_driver_find(ret->library, sizeof ret->library);
        if (cuda_driver_load(&cuda, &ret->error) < 0) {
                ret->none = ret->error.status == CAIRN_ERR_DEVICE &&
                            ret->error.system_code == CUDA_NO_DEVICE;
                return;
        }
        ret->version = cuda->version;
        if (cuda_error(cuda, cuda->DeviceGetCount(&ret->count), "count GPUs", ret->library,
                       &ret->error) < 0)
                ret->count = 0;
        ret->none = ret->error.status == 0 && ret->count == 0;
}

/* ---- what it says of itself ---- */

static void write_uuid(const struct cuda_uuid *uuid, struct gpu_found *ret) {
        /* The driver gives a slice's number in the same form; its name tells what it is of. */
        bool slice = strstr(ret->name, " MIG ") != NULL;
        int used = snprintf(ret->uuid, sizeof ret->uuid, "%s-", slice ? "MIG" : "GPU");
        for (int i = 0; i < 16; i++)
                used += snprintf(ret->uuid + used, sizeof ret->uuid - (size_t) used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                                 (unsigned char) uuid->bytes[i]);
}

static int attribute(const struct cuda_driver *cuda, enum cuda_attribute which, int device,
                     int *ret, struct cairn_error *reterr) {
        return cuda_error(cuda, cuda->DeviceGetAttribute(ret, which, device), "ask GPU",
                          "attribute", reterr);
}

static int describe(const struct cuda_driver *cuda, int ordinal, struct gpu_found *ret,
                    struct cairn_error *reterr) {
        int device, mode, major, minor, vmm, posix_fd, host_register;
        struct cuda_uuid uuid;
        size_t bytes;
        TRY(cuda_error(cuda, cuda->DeviceGet(&device, ordinal), "ask GPU", "handle", reterr));
        TRY(cuda_error(cuda, cuda->DeviceGetName(ret->name, sizeof ret->name, device), "ask GPU",
                       "name", reterr));
        TRY(cuda_error(cuda, cuda->DeviceGetUuid(&uuid, device), "ask GPU", "UUID", reterr));
        TRY(cuda_error(cuda, cuda->DeviceGetPCIBusId(ret->bus_id, sizeof ret->bus_id, device),
                       "ask GPU", "PCI address", reterr));
        TRY(cuda_error(cuda, cuda->DeviceTotalMem(&bytes, device), "ask GPU", "memory", reterr));
        TRY(attribute(cuda, CUDA_ATTRIBUTE_COMPUTE_MODE, device, &mode, reterr));
        TRY(attribute(cuda, CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device, &major, reterr));
        TRY(attribute(cuda, CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device, &minor, reterr));
        TRY(attribute(cuda, CUDA_ATTRIBUTE_VMM_SUPPORTED, device, &vmm, reterr));
        TRY(attribute(cuda, CUDA_ATTRIBUTE_POSIX_FD_SUPPORTED, device, &posix_fd, reterr));
        TRY(attribute(cuda, CUDA_ATTRIBUTE_HOST_REGISTER_SUPPORTED, device, &host_register,
                      reterr));
        write_uuid(&uuid, ret);
        ret->memory_bytes = bytes;
        ret->capability = 10 * major + minor;
        ret->exclusive = mode == EXCLUSIVE_THREAD || mode == EXCLUSIVE_PROCESS;
        ret->vmm = vmm != 0;
        ret->posix_fd = posix_fd != 0;
        ret->host_register = host_register != 0;
        return 0;
}

/* ---- what it does ---- */

/* From the slab to the memfd, which has other bytes before. */
static int copy_out(struct device *d, const struct device_memory *slab, unsigned char *host,
                    struct cairn_error *reterr) {
        uint64_t bytes =
                slab->bytes < GPU_PROBE_STAGING_BYTES ? slab->bytes : GPU_PROBE_STAGING_BYTES;
        memset(host, 1, bytes);
        TRY(d->ops->copy_async(d, NULL, host, slab->address, bytes, reterr));
        TRY(d->ops->synchronize(d, clock_now(&clock_system) + COPY_NS, reterr));
        for (uint64_t i = 0; i < bytes; i++)
                if (host[i] != 0)
                        return error_set(reterr, CAIRN_ERR_DEVICE, "copy from the GPU", "memfd",
                                         "other bytes arrived than were there");
        return 0;
}

static int try_staging(struct device *d, const struct device_memory *slab,
                       struct cairn_error *reterr) {
        _cleanup_close_ int fd = -1;
        TRY(wire_memfd_create("cairn-probe", GPU_PROBE_STAGING_BYTES, &fd, reterr));
        void *host = mmap(NULL, GPU_PROBE_STAGING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (host == MAP_FAILED)
                return error_set_errno(reterr, errno, "map memory", "memfd");
        int r = d->ops->host_register(d, host, GPU_PROBE_STAGING_BYTES, reterr);
        if (r == 0) {
                r = copy_out(d, slab, host, reterr);
                if (r < 0) /* what is under way ends before its memory goes */
                        (void) d->ops->synchronize(d, clock_now(&clock_system) + COPY_NS, NULL);
                /* A first try that fails has done nothing, or everything. */
                int undone = d->ops->host_unregister(d, host, r == 0 ? reterr : NULL);
                if (undone < 0)
                        (void) d->ops->host_unregister(d, host, NULL);
                if (r == 0)
                        r = undone;
        }
        (void) munmap(host, GPU_PROBE_STAGING_BYTES);
        return r;
}

static int try_sharing(struct device *d, const struct device_memory *slab,
                       struct cairn_error *reterr) {
        struct device_memory again = DEVICE_MEMORY_INIT;
        _cleanup_close_ int fd = -1;
        TRY(d->ops->export_fd(d, slab, &fd, reterr));
        TRY(d->ops->import_fd(d, fd, slab->bytes, true, &again, reterr));
        d->ops->unmap(d, &again);
        return 0;
}

static void try_use(int ordinal, struct gpu_found *ret) {
        struct device_memory slab = DEVICE_MEMORY_INIT;
        struct device *d;
        if (device_cuda.open(ordinal, &d, &ret->slab) < 0) {
                ret->staging = ret->slab;
                return;
        }
        if (d->ops->allocate(d, 1, &slab, &ret->slab) < 0)
                ret->staging = ret->slab;
        else {
                (void) try_sharing(d, &slab, &ret->slab);
                (void) try_staging(d, &slab, &ret->staging);
                d->ops->release(d, &slab);
        }
        d->ops->close(d);
}

void gpu_probe(int ordinal, struct gpu_found *ret) {
        const struct cuda_driver *cuda;
        *ret = (struct gpu_found){.persistence = NVML_UNKNOWN,
                                  .error = CAIRN_ERROR_INIT,
                                  .slab = CAIRN_ERROR_INIT,
                                  .staging = CAIRN_ERROR_INIT};
        if (cuda_driver_load(&cuda, &ret->error) < 0 ||
            describe(cuda, ordinal, ret, &ret->error) < 0)
                return;
        ret->persistence = nvml_persistence(ret->bus_id);
        try_use(ordinal, ret);
        ret->full = ret->slab.status == CAIRN_ERR_NOMEM;
}
