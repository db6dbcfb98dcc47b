/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/compute.h"
#include "comm/locate.h"
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *device, struct cairn_error *reterr) {
        char text[64];

        (void) snprintf(text, sizeof(text), "--device %.40s", device);
        return error_set(reterr, CAIRN_ERR_API, "read option", text,
                         "give cpu, cuda, or cuda:N for the GPU of that number");
}

static bool read_number(const char *digits, int *ret) {
        char *end;

        if (*digits < '0' || *digits > '9')
                return false;
        long number = strtol(digits, &end, 10);
        *ret = (int) number;
        return *end == '\0' && number <= 1023;
}

/* "cuda": the launcher says which of the node's ranks this one is. */
static int read_ordinal(const char *device, int *ret, struct cairn_error *reterr) {
        const char *digits = device + strlen("cuda"), *local = getenv("LOCAL_RANK");

        *ret = 0;
        if (*digits == ':')
                return read_number(digits + 1, ret) ? 0 : refuse(device, reterr);
        if (*digits)
                return refuse(device, reterr);
        if (local && !read_number(local, ret))
                return error_set(reterr, CAIRN_ERR_API, "compute on a GPU", "--device cuda",
                                 "$LOCAL_RANK, which names this rank's GPU, is \"%.40s\" and no "
                                 "number from 0 to 1023: set it, or name the GPU, --device cuda:0",
                                 local);
        return 0;
}

static int lacks(const char *why, struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "compute on a GPU", "--device cuda",
                         "%s; `make` builds cairn-cuda.so where CUDA's toolkit is installed (nvcc, "
                         "or $CUDA_HOME)",
                         why);
}

int compute_load_cuda(const struct compute_ops **ret, struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char path[PATH_MAX], text[512];

        if (locate("CAIRN_CUDA", "cairn-cuda.so", path, sizeof(path), &e) < 0) {
                (void) snprintf(text, sizeof(text), "cannot find %.200s: %.250s", e.object,
                                e.message);
                return lacks(text, reterr);
        }
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
                (void) snprintf(text, sizeof(text), "%s", dlerror());
                return lacks(text, reterr);
        }
        const struct compute_ops *ops = dlsym(library, COMPUTE_CUDA_SYMBOL);
        if (!ops || ops->abi != COMPUTE_ABI || ops->bytes != sizeof(*ops)) {
                (void) snprintf(text, sizeof(text), "%.400s is of another version", path);
                return lacks(text, reterr);
        }
        *ret = ops;
        return 0;
}

int compute_open(const char *device, const struct compute_options *o, struct compute **ret,
                 struct cairn_error *reterr) {
        const struct compute_ops *ops = &compute_cpu;
        struct compute_options options = *o;

        if (!strncmp(device, "cuda", strlen("cuda"))) {
                TRY(read_ordinal(device, &options.ordinal, reterr));
                TRY(compute_load_cuda(&ops, reterr));
        } else if (strcmp(device, "cpu") != 0) {
                return refuse(device, reterr);
        }
        return ops->open(&options, ret, reterr);
}
