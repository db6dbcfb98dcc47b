/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl_library.h"

#include <dlfcn.h>
#include <stdlib.h>

int nccl_library_load(struct nccl_library *ret, struct cairn_error *reterr) {
        const char *given = getenv("CAIRN_LIBNCCL");
        const char *path = given && *given ? given : "libnccl.so.2";
        struct nccl_library l = {0};

        (void) unsetenv("NCCL_COMM_BLOCKING");
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!handle)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load NCCL", path,
                                 "%s; install it or name it in $CAIRN_LIBNCCL", dlerror());
#define NCCL_LOAD(type, name, parameters)                                          \
        l.name = (type(*) parameters) dlsym(handle, "nccl" #name);                 \
        if (!l.name)                                                               \
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load NCCL", path, \
                                 "it lacks nccl" #name ": 2.14 or newer is needed");
        NCCL_FUNCTIONS(NCCL_LOAD)
#undef NCCL_LOAD
        int r = l.GetVersion(&l.version);
        if (r != NCCL_OK || l.version < NCCL_ABI_VERSION_MIN)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load NCCL", path,
                                 "its version is %d; 2.14 or newer is needed", l.version);
        *ret = l;
        return 0;
}
