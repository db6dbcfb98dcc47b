/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define CUDA_LIBRARY "libcuda.so.1"

static const struct {
        enum cuda_result result;
        const char *remedy;
} remedies[] = {
        {CUDA_OUT_OF_MEMORY, "free memory of the GPU (nvidia-smi says who holds it)"},
        {CUDA_STUB_LIBRARY, "this is the toolkit's stub: take the driver's own " CUDA_LIBRARY},
        {CUDA_DEVICE_UNAVAILABLE, "another process has the GPU for itself (nvidia-smi -c DEFAULT)"},
        {CUDA_NO_DEVICE, "look at nvidia-smi and at $CUDA_VISIBLE_DEVICES"},
        {CUDA_INVALID_DEVICE, "look at nvidia-smi -L and at $CUDA_VISIBLE_DEVICES"},
        {CUDA_NO_BINARY_FOR_GPU, "this build has no kernels for the GPU"},
        {CUDA_NOT_PERMITTED, "the user or the container may not use the GPU so"},
        {CUDA_SYSTEM_NOT_READY, "start the driver's daemons (nvidia-fabricmanager)"},
        {CUDA_SYSTEM_DRIVER_MISMATCH, "library and kernel module differ: restart the machine"},
        {CUDA_MPS_CONNECTION_FAILED, "the MPS daemon does not answer: start or quit it"},
        {CUDA_MPS_RPC_FAILURE, "the MPS server was lost: restart the MPS daemon"},
        {CUDA_MPS_SERVER_NOT_READY, "the MPS server recovers from an error: try again later"},
        {CUDA_MPS_MAX_CLIENTS_REACHED, "too many processes share the GPU through MPS"},
        {CUDA_MPS_MAX_CONNECTIONS_REACHED, "too many processes share the GPU through MPS"},
};

bool cuda_result_is_sticky(enum cuda_result result) {
        switch ((int) result) {
        case CUDA_ECC_UNCORRECTABLE:
        case CUDA_NVLINK_UNCORRECTABLE:
        case CUDA_CONTAINED:
        case CUDA_ILLEGAL_ADDRESS:
        case CUDA_LAUNCH_TIMEOUT:
        case CUDA_ASSERT:
        case CUDA_HARDWARE_STACK_ERROR:
        case CUDA_ILLEGAL_INSTRUCTION:
        case CUDA_MISALIGNED_ADDRESS:
        case CUDA_INVALID_ADDRESS_SPACE:
        case CUDA_INVALID_PC:
        case CUDA_LAUNCH_FAILED:
        case CUDA_TENSOR_MEMORY_LEAK:
        case CUDA_MPS_CLIENT_TERMINATED:
        case CUDA_EXTERNAL_DEVICE:
                return true;
        default:
                return false;
        }
}

static const char *remedy_of(enum cuda_result result) {
        if (cuda_result_is_sticky(result))
                return "nothing on this GPU works in this process any more: it has to end";
        for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
                if (remedies[i].result == result)
                        return remedies[i].remedy;
        return "";
}

int cuda_error(const struct cuda_driver *cuda, enum cuda_result result, const char *operation,
               const char *object, struct cairn_error *reterr) {
        const char *name = NULL, *text = NULL, *remedy = remedy_of(result);
        int status = CAIRN_ERR_DEVICE;

        if (result == CUDA_OK)
                return 0;
        if (result == CUDA_OUT_OF_MEMORY)
                status = CAIRN_ERR_NOMEM;
        if (result == CUDA_NOT_READY)
                status = CAIRN_ERR_BUSY;
        if (cuda->GetErrorName(result, &name) != CUDA_OK || !name)
                name = "an error that the driver does not know";
        if (cuda->GetErrorString(result, &text) != CUDA_OK || !text)
                text = "no description";
        (void) error_set(reterr, status, operation, object, "%s (%s)%s%s", name, text,
                         remedy[0] ? "; " : "", remedy);
        /* Where it is DEVICE the code is the driver's; elsewhere it would be read as an errno. */
        if (reterr && status == CAIRN_ERR_DEVICE)
                reterr->system_code = (int) result;
        return status;
}

static int check_version(struct cuda_driver *cuda, const char *path, struct cairn_error *reterr) {
        TRY(cuda_error(cuda, cuda->DriverGetVersion(&cuda->version), "load CUDA", path, reterr));
        if (cuda->version < CUDA_ABI_VERSION_MIN)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load CUDA", path,
                                 "the driver is made for CUDA %d.%d, %d.%d is needed: install a "
                                 "newer one",
                                 cuda->version / 1000, cuda->version % 1000 / 10,
                                 CUDA_ABI_VERSION_MIN / 1000, CUDA_ABI_VERSION_MIN % 1000 / 10);
        return cuda_error(cuda, cuda->Init(0), "start CUDA", path, reterr);
}

static int fill(struct cuda_driver *cuda, void *handle, const char *path,
                struct cairn_error *reterr) {
#define CUDA_LOAD(name, symbol, since, parameters)                                         \
        cuda->name = (enum cuda_result(*) parameters) dlsym(handle, #symbol);              \
        if (!cuda->name)                                                                   \
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load CUDA", path,         \
                                 "it lacks " #symbol ", which drivers have since CUDA "    \
                                 "%d.%d: install a newer one, or name another library in " \
                                 "$CAIRN_LIBCUDA",                                         \
                                 (since) / 1000, (since) % 1000 / 10);
        CUDA_FUNCTIONS(CUDA_LOAD)
#undef CUDA_LOAD
        return 0;
}

static bool is_given(void) {
        const char *given = getenv("CAIRN_LIBCUDA");
        return given && given[0];
}

static const char *library_name(void) {
        return is_given() ? getenv("CAIRN_LIBCUDA") : CUDA_LIBRARY;
}

bool cuda_driver_find(char *ret, size_t bytes) {
        const char *path = library_name();
        Dl_info place;
        void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
        const void *function = handle ? dlsym(handle, "cuInit") : NULL;
        bool told = function && dladdr(function, &place) && place.dli_fname;
        (void) snprintf(ret, bytes, "%s", told ? place.dli_fname : path);
        if (handle)
                (void) dlclose(handle);
        return handle != NULL;
}

static int load(struct cuda_driver *ret, struct cairn_error *reterr) {
        const char *path = library_name();
        struct cuda_driver cuda = {0};
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle && is_given())
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load CUDA", path,
                                 "$CAIRN_LIBCUDA names it: %s; correct or unset the variable",
                                 dlerror());
        if (!handle)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load CUDA", path,
                                 "%s; install NVIDIA's driver or name the library in "
                                 "$CAIRN_LIBCUDA",
                                 dlerror());
        int r = fill(&cuda, handle, path, reterr);
        if (r == 0)
                r = check_version(&cuda, path, reterr);
        if (r < 0) {
                (void) dlclose(handle);
                return r;
        }
        *ret = cuda;
        return 0;
}

int cuda_driver_load(const struct cuda_driver **ret, struct cairn_error *reterr) {
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        static struct cuda_driver table;
        int r = 0;

        (void) pthread_mutex_lock(&lock);
        if (!table.Init)
                r = load(&table, reterr);
        (void) pthread_mutex_unlock(&lock);
        if (r == 0)
                *ret = &table;
        return r;
}
