/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/cuda/blas.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What NVIDIA recommends for its larger GPUs; too small a workspace only costs speed. */
enum { WORKSPACE_BYTES = 32 << 20 };

static void *open_library(char *ret_name, size_t bytes, const char **ret_why) {
        static const char *const folders[] = {"", "/usr/local/cuda/lib64/"};
        const char *given = getenv("CAIRN_LIBCUBLAS");
        int release = CUDART_VERSION / 1000;

        if (given && *given) {
                (void) snprintf(ret_name, bytes, "%s", given);
                void *library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
                *ret_why = library ? NULL : dlerror();
                return library;
        }
        for (int major = release; major >= release - 1; major--)
                for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
                        (void) snprintf(ret_name, bytes, "%slibcublas.so.%d", folders[i], major);
                        void *library = dlopen(ret_name, RTLD_NOW | RTLD_LOCAL);
                        if (library)
                                return library;
                }
        (void) snprintf(ret_name, bytes, "libcublas.so.%d", release);
        *ret_why = "neither on the loader's path nor in /usr/local/cuda/lib64";
        return NULL;
}

static int load(struct blas *b, struct cairn_error *reterr) {
        char name[512];
        const char *why = NULL;
        void *library = open_library(name, sizeof(name), &why);

        if (!library)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load cuBLAS", name,
                                 "%s; install it, or name it in $CAIRN_LIBCUBLAS", why);
#define BLAS_LOAD(member, symbol, parameters)                                        \
        b->member = (cublasStatus_t(*) parameters) dlsym(library, symbol);           \
        if (!b->member)                                                              \
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "load cuBLAS", name, \
                                 "it lacks %s: release 11.6 or newer is needed", symbol);
        BLAS_FUNCTIONS(BLAS_LOAD)
#undef BLAS_LOAD
        return 0;
}

const char *blas_status_name(cublasStatus_t status) {
        switch ((int) status) {
        case CUBLAS_STATUS_NOT_INITIALIZED:
                return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED:
                return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE:
                return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_ARCH_MISMATCH:
                return "CUBLAS_STATUS_ARCH_MISMATCH";
        case CUBLAS_STATUS_EXECUTION_FAILED:
                return "CUBLAS_STATUS_EXECUTION_FAILED";
        case CUBLAS_STATUS_NOT_SUPPORTED:
                return "CUBLAS_STATUS_NOT_SUPPORTED";
        default:
                return "an internal error of cuBLAS";
        }
}

int blas_find(char *ret, size_t bytes, struct cairn_error *reterr) {
        struct blas b = {.version = 0};
        Dl_info place;

        TRY(load(&b, reterr));
        bool told = dladdr((void *) b.Create, &place) && place.dli_fname;
        (void) snprintf(ret, bytes, "%s", told ? place.dli_fname : "there");
        return 0;
}

static int check(cublasStatus_t status, const char *operation, struct cairn_error *reterr) {
        if (status == CUBLAS_STATUS_SUCCESS)
                return 0;
        return error_set(reterr,
                         status == CUBLAS_STATUS_ALLOC_FAILED ? CAIRN_ERR_NOMEM : CAIRN_ERR_DEVICE,
                         operation, "cuBLAS", "%s", blas_status_name(status));
}

static int set_up(struct blas *b, cudaStream_t stream, bool tf32, struct cairn_error *reterr) {
        cublasMath_t math = tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH;

        TRY(check(b->Create(&b->handle), "start cuBLAS", reterr));
        TRY(check(b->GetVersion(b->handle, &b->version), "start cuBLAS", reterr));
        TRY(check(b->SetMathMode(b->handle, math), "choose the products' precision", reterr));
        TRY(check(b->SetStream(b->handle, stream), "give cuBLAS its stream", reterr));
        if (cudaMalloc(&b->workspace, WORKSPACE_BYTES) != cudaSuccess) {
                (void) cudaGetLastError();
                return error_set(reterr, CAIRN_ERR_NOMEM, "start cuBLAS", "workspace",
                                 "%d MiB of the GPU's memory are not free; end what else is on the "
                                 "GPU (nvidia-smi)",
                                 WORKSPACE_BYTES >> 20);
        }
        return check(b->SetWorkspace(b->handle, b->workspace, WORKSPACE_BYTES),
                     "give cuBLAS its workspace", reterr);
}

int blas_init(struct blas *b, cudaStream_t stream, bool tf32, struct cairn_error *reterr) {
        *b = (struct blas){.version = 0};
        TRY(load(b, reterr));
        int r = set_up(b, stream, tf32, reterr);
        if (r < 0)
                blas_done(b);
        return r;
}

void blas_done(struct blas *b) {
        if (b->handle)
                (void) b->Destroy(b->handle);
        if (b->workspace)
                (void) cudaFree(b->workspace);
        b->handle = NULL;
        b->workspace = NULL;
}

cublasStatus_t blas_multiply(const struct blas *b, const struct blas_product *p) {
        const float one = 1.0f;

        return b->GemmEx(b->handle, p->op_a, p->op_b, p->m, p->n, p->k, &one, p->a, p->type,
                         p->a_columns_apart, p->b, p->type, p->b_columns_apart, &p->beta, p->target,
                         p->target_type, p->m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
