/* SPDX-License-Identifier: Apache-2.0
 *
 * What device/nvml.c asks of libnvidia-ml.so.1, for $CAIRN_LIBNVML: $CAIRN_EMU_PERSISTENCE is 0 or
 * 1 for the GPUs of emu.c; not set: the library starts and does not say.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DONE = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct nvml_device;

#define NVML_API __attribute__((visibility("default")))
NVML_API int nvmlInit_v2(void);
NVML_API int nvmlShutdown(void);
NVML_API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct nvml_device **ret);
NVML_API int nvmlDeviceGetPersistenceMode(struct nvml_device *device, int *ret);

static int started;
static char gpu;

int nvmlInit_v2(void) {
        started++;
        return DONE;
}

int nvmlShutdown(void) {
        if (started == 0)
                return UNINITIALIZED;
        started--;
        return DONE;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct nvml_device **ret) {
        if (started == 0)
                return UNINITIALIZED;
        if (strncmp(bus_id, "0000:", 5) != 0 || strcmp(bus_id + 7, ":00.0") != 0)
                return NOT_FOUND;
        *ret = (struct nvml_device *) &gpu;
        return DONE;
}

int nvmlDeviceGetPersistenceMode(struct nvml_device *device, int *ret) {
        const char *mode = getenv("CAIRN_EMU_PERSISTENCE");
        if (started == 0)
                return UNINITIALIZED;
        if (device != (struct nvml_device *) &gpu)
                return INVALID_ARGUMENT;
        if (!mode || !*mode)
                return NOT_SUPPORTED;
        *ret = *mode == '1';
        return DONE;
}
