/* SPDX-License-Identifier: Apache-2.0
 *
 * Step 1: the driver has every function of device/cuda_abi.h, and every GPU what Cairn needs.
 */
#include "device/gpu_probe.h"
#include "tests/gpu/step.h"

#include <stdio.h>

static const struct {
        enum cuda_attribute attribute;
        const char *name;
} attributes[] = {
        {CUDA_ATTRIBUTE_MULTIPROCESSOR_COUNT, "multiprocessors"},
        {CUDA_ATTRIBUTE_INTEGRATED, "integrated"},
        {CUDA_ATTRIBUTE_COMPUTE_MODE, "compute_mode"},
        {CUDA_ATTRIBUTE_ASYNC_ENGINE_COUNT, "copy_engines"},
        {CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, "unified_addressing"},
        {CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "capability_major"},
        {CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "capability_minor"},
        {CUDA_ATTRIBUTE_HOST_REGISTER_SUPPORTED, "host_register"},
        {CUDA_ATTRIBUTE_VMM_SUPPORTED, "vmm"},
        {CUDA_ATTRIBUTE_POSIX_FD_SUPPORTED, "posix_fd"},
};

static void check_gpu(int ordinal) {
        struct gpu_found gpu;
        gpu_probe(ordinal, &gpu);
        if (gpu.error.status < 0)
                step_fail_error(&gpu.error);
        printf("GPU %d: %s, %s, %s, sm_%d, %llu bytes, persistence %s\n", ordinal, gpu.name,
               gpu.uuid, gpu.bus_id, gpu.capability, (unsigned long long) gpu.memory_bytes,
               gpu.persistence == NVML_UNKNOWN ? "unknown"
               : gpu.persistence == NVML_ON    ? "on"
                                               : "off");
        if (gpu.slab.status < 0)
                step_fail_error(&gpu.slab);
        if (gpu.staging.status < 0)
                step_fail_error(&gpu.staging);
}

int main(void) {
        struct gpu_driver_found driver;
        struct step s = {.error = CAIRN_ERROR_INIT};
        int device, value;
        gpu_probe_driver(&driver);
        printf("library %s\n", driver.library);
        if (driver.error.status < 0)
                step_fail_error(&driver.error);
        unsigned functions = 0;
#define COUNT(name, symbol, since, parameters) functions++;
        CUDA_FUNCTIONS(COUNT)
#undef COUNT
        step_figure("driver_version", driver.version, "");
        step_figure("functions", functions, "");
        step_figure("gpus", driver.count, "");
        STEP_TRY(cuda_driver_load(&s.cuda, &s.error));
        if (driver.count == 0)
                step_fail("no GPU is visible");
        STEP_CHECK(s.cuda->DeviceGet(&device, 0) == CUDA_OK);
        for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
                STEP_TRY(cuda_error(
                        s.cuda, s.cuda->DeviceGetAttribute(&value, attributes[i].attribute, device),
                        "ask attribute", attributes[i].name, &s.error));
                step_figure(attributes[i].name, value, "");
        }
        for (int i = 0; i < driver.count; i++)
                check_gpu(i);
        return 0;
}
