/* SPDX-License-Identifier: Apache-2.0 */
#include "device/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>

#define NVML_LIBRARY "libnvidia-ml.so.1"

struct nvml_device; /* nvmlDevice_st */

/* Member, symbol, parameters; all return 0 or an error. */
#define NVML_FUNCTIONS(X)                                     \
        X(init, nvmlInit_v2, (void) )                         \
        X(shutdown, nvmlShutdown, (void) )                    \
        X(handle_by_bus_id, nvmlDeviceGetHandleByPciBusId_v2, \
          (const char *bus_id, struct nvml_device **ret))     \
        X(persistence_mode, nvmlDeviceGetPersistenceMode, (struct nvml_device * device, int *ret))

struct nvml {
#define NVML_MEMBER(member, symbol, parameters) int(*member) parameters;
        NVML_FUNCTIONS(NVML_MEMBER)
#undef NVML_MEMBER
};

static int fill(struct nvml *n, void *library) {
#define NVML_LOAD(member, symbol, parameters)                    \
        n->member = (int(*) parameters) dlsym(library, #symbol); \
        if (!n->member)                                          \
                return -1;
        NVML_FUNCTIONS(NVML_LOAD)
#undef NVML_LOAD
        return 0;
}

static enum nvml_answer ask(const struct nvml *n, const char *bus_id) {
        struct nvml_device *device;
        int mode;
        if (n->handle_by_bus_id(bus_id, &device) != 0 || n->persistence_mode(device, &mode) != 0)
                return NVML_UNKNOWN;
        return mode ? NVML_ON : NVML_OFF;
}

enum nvml_answer nvml_persistence(const char *bus_id) {
        const char *given = getenv("CAIRN_LIBNVML");
        void *library = dlopen(given && *given ? given : NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL);
        enum nvml_answer answer = NVML_UNKNOWN;
        struct nvml n;
        if (!library)
                return answer;
        if (fill(&n, library) == 0 && n.init() == 0) {
                answer = ask(&n, bus_id);
                (void) n.shutdown();
        }
        (void) dlclose(library);
        return answer;
}
