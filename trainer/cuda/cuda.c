/* SPDX-License-Identifier: Apache-2.0
 *
 * The one GPU: opened, closed, and what of it the bits of a result depend on. Counting devices
 * makes no context, cudaSetDevice that of the chosen one alone: no other GPU is touched.
 */
#include "trainer/cuda/cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int unsupported(cudaError_t e, struct cairn_error *reterr) {
        int version = 0;

        /* 0: there is no driver, of which the runtime's own sentence says that it is too old. */
        if (cudaDriverGetVersion(&version) == cudaSuccess && version == 0)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "open device", "cuda",
                                 "no NVIDIA driver is loaded on this machine (libcuda.so.1); "
                                 "install one, or give --device cpu");
        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "open device", "cuda",
                         "%s: %s; look at `nvidia-smi` and `cairn doctor`, or give --device cpu",
                         cudaGetErrorName(e), cudaGetErrorString(e));
}

static int choose(struct cuda *g, int ordinal, struct cairn_error *reterr) {
        struct cudaDeviceProp p;
        int count = 0;
        cudaError_t e = cudaGetDeviceCount(&count);

        if (e != cudaSuccess)
                return unsupported(e, reterr);
        if (ordinal >= count)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "open device", "cuda",
                                 "there is no GPU %d among the %d that this process sees; give "
                                 "fewer ranks a node, or another --device cuda:N",
                                 ordinal, count);
        TRY(cuda_error(cudaSetDevice(ordinal), "open device", "cuda", reterr));
        TRY(cuda_error(cudaGetDeviceProperties(&p, ordinal), "open device", "cuda", reterr));
        (void) snprintf(g->gpu, sizeof(g->gpu), "%.240s sm_%d%d", p.name, p.major, p.minor);
        (void) snprintf(g->title, sizeof(g->title), "cuda:%d (%.240s)", ordinal, p.name);
        g->base.ordinal = ordinal;
        return 0;
}

/* The driver itself has a finer number than what it can do, where the system tells it. */
static void read_versions(struct cuda *g) {
        char exact[64] = "";
        int version = 0;
        FILE *in = fopen("/sys/module/nvidia/version", "re");

        if (in) {
                if (fgets(exact, sizeof(exact), in))
                        exact[strcspn(exact, "\n")] = '\0';
                (void) fclose(in);
        }
        (void) cudaDriverGetVersion(&version);
        (void) snprintf(g->driver, sizeof(g->driver), "for CUDA %d.%d%s%s", version / 1000,
                        version % 1000 / 10, exact[0] ? ", " : "", exact);
        (void) cudaRuntimeGetVersion(&version);
        (void) snprintf(g->runtime, sizeof(g->runtime), "%d.%d", version / 1000,
                        version % 1000 / 10);
        (void) snprintf(g->library, sizeof(g->library), "cuBLAS %d", g->blas.version);
}

static int set_up(struct cuda *g, const struct compute_options *o, struct cairn_error *reterr) {
        void *bounce = NULL;

        TRY(choose(g, o->ordinal, reterr));
        TRY(cuda_error(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking),
                       "create stream", g->title, reterr));
        TRY(cuda_error(cudaEventCreateWithFlags(&g->event, cudaEventDisableTiming), "create event",
                       g->title, reterr));
        TRY(cuda_error(cudaHostAlloc(&bounce, CUDA_BOUNCE_BYTES, cudaHostAllocDefault),
                       "allocate page-locked memory", g->title, reterr));
        g->bounce = bounce;
        TRY(blas_init(&g->blas, g->stream, o->tf32, reterr));
        read_versions(g);
        return 0;
}

int cuda_open(const struct compute_options *o, struct compute **ret, struct cairn_error *reterr) {
        static const cudaDataType blas_types[] = {
                [GPU_F32] = CUDA_R_32F, [GPU_BF16] = CUDA_R_16BF, [GPU_F16] = CUDA_R_16F};
        struct cuda *g = calloc(1, sizeof(*g));

        if (!g)
                return error_set(reterr, CAIRN_ERR_NOMEM, "open device", "cuda",
                                 "no memory is free");
        g->base = (struct compute){.ops = &cairn_cuda_compute, .type = o->dtype};
        g->error = (struct cairn_error) CAIRN_ERROR_INIT;
        g->type = cuda_type_of(o->dtype);
        g->blas_type = blas_types[g->type];
        g->limit_ns = o->limit_ns;
        g->tf32 = o->tf32;
        int r = set_up(g, o, reterr);
        if (r < 0) {
                cuda_close(&g->base);
                return r;
        }
        *ret = &g->base;
        return 0;
}

void cuda_close(struct compute *c) {
        struct cuda *g = c ? cuda_of(c) : NULL;

        if (!g)
                return;
        if (g->event)
                cuda_drain(g);
        if (g->base.is_lost) {
                free(g); /* whatever would be freed on the device waits for it */
                return;
        }
        if (g->results)
                (void) cudaFree(g->results);
        blas_done(&g->blas);
        if (g->bounce)
                (void) cudaFreeHost(g->bounce);
        if (g->event)
                (void) cudaEventDestroy(g->event);
        if (g->stream)
                (void) cudaStreamDestroy(g->stream);
        free(g);
}

int cuda_describe(const struct compute *c, compute_visit_fn visit, void *argument) {
        const struct cuda *g = (const struct cuda *) c;
        const char *const values[][2] = {
                {"numerics.backend", "cuda"},   {"numerics.gpu", g->gpu},
                {"numerics.driver", g->driver}, {"numerics.cudart", g->runtime},
                {"numerics.blas", g->library},  {"numerics.tf32", g->tf32 ? "yes" : "no"},
        };

        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
                int r = visit(values[i][0], values[i][1], argument);
                if (r != 0)
                        return r;
        }
        return 0;
}

void *cuda_queue(const struct compute *c) {
        return ((const struct cuda *) c)->stream;
}

void cuda_thread_begin(void *context) {
        (void) cudaSetDevice(((struct compute *) context)->ordinal);
}
