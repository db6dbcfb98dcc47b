/* SPDX-License-Identifier: Apache-2.0
 *
 * How much longer a step of matrix products takes while its memory is copied out: nothing, push and
 * pull, in turns. cuBLAS is the machine's own ($CAIRN_LIBCUBLAS names another).
 */
#include "base/limits.h"
#include "device/chunks.h"
#include "tests/gpu/copier.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { ROUNDS_MAX = 6, STEPS_MAX = 40, PRODUCTS = 24 };
enum kind { NOTHING, PUSH, PULL, KINDS };

/* cublas_v2.h: BF16 matrices, sums in FP32. */
enum { CUDA_R_16BF = 14, CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1, CUBLAS_OP_N = 0 };
struct cublas {
        void *handle;
        int (*create)(void **handle);
        int (*destroy)(void *handle);
        int (*set_stream)(void *handle, struct cuda_stream *stream);
        int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                    const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                    const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);
};

/* False: there is no such library, or it does not work with this driver. */
static bool try_load(struct cublas *b, const char *name, int *ret_error) {
        void *library = dlopen(name, RTLD_NOW);
        if (!library)
                return false;
        b->create = (int (*)(void **)) dlsym(library, "cublasCreate_v2");
        b->destroy = (int (*)(void *)) dlsym(library, "cublasDestroy_v2");
        b->set_stream =
                (int (*)(void *, struct cuda_stream *)) dlsym(library, "cublasSetStream_v2");
        b->gemm = (int (*)(void *, int, int, int, int, int, const void *, const void *, int, int,
                           const void *, int, int, const void *, void *, int, int, int,
                           int)) dlsym(library, "cublasGemmEx");
        STEP_CHECK(b->create && b->destroy && b->set_stream && b->gemm);
        *ret_error = b->create(&b->handle);
        return *ret_error == 0;
}

static void load(struct cublas *b) {
        static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
                                            "libcublas.so.11"};
        const char *given = getenv("CAIRN_LIBCUBLAS");
        int error = 0;
        if (given && *given && try_load(b, given, &error))
                return;
        for (size_t i = 0; i < sizeof names / sizeof *names && !(given && *given); i++)
                if (try_load(b, names[i], &error))
                        return;
        if (error && !step_brief())
                step_fail("cublasCreate: %d", error);
        step_skip("no libcublas.so that works here: neither a toolkit nor a Python environment "
                  "has it");
}

/* ---- the step ---- */

struct load {
        struct step *step;
        struct cublas blas;
        struct cuda_stream *stream;
        struct device_memory matrices;
        int size;
};

static double one_step(struct load *l) {
        struct step s = *l->step;
        const float one = 1, zero = 0;
        char *a = l->matrices.address;
        uint64_t bytes = 2 * (uint64_t) l->size * (uint64_t) l->size;
        int n = l->size;
        double begin = step_seconds();
        step_enter(&s);
        for (int i = 0; i < PRODUCTS; i++) {
                int r = l->blas.gemm(l->blas.handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a,
                                     CUDA_R_16BF, n, a + bytes, CUDA_R_16BF, n, &zero,
                                     a + 2 * bytes, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                                     CUBLAS_GEMM_DEFAULT);
                if (r != 0)
                        step_fail("cublasGemmEx: %d", r);
        }
        STEP_CHECK(s.cuda->StreamSynchronize(l->stream) == CUDA_OK);
        return step_seconds() - begin;
}

static void load_init(struct load *l, struct step *step) {
        struct step s = *step;
        *l = (struct load){.step = step, .size = (int) step_choose(4096, 16)};
        step_enter(&s);
        load(&l->blas);
        l->stream = step_stream(&s);
        STEP_CHECK(l->blas.set_stream(l->blas.handle, l->stream) == 0);
        STEP_TRY(s.device->ops->allocate(s.device, 6 * (uint64_t) l->size * (uint64_t) l->size,
                                         &l->matrices, &s.error));
        /* 0x3c3c: 0.0115 as BF16 */
        step_fill(&s, l->stream, l->matrices.address, 0x3c3c3c3cu, l->matrices.bytes);
        for (int i = 0; i < 3; i++)
                (void) one_step(l);
}

static void load_done(struct load *l) {
        struct step s = *l->step;
        STEP_CHECK(l->blas.destroy(l->blas.handle) == 0);
        STEP_CHECK(s.cuda->StreamDestroy(l->stream) == CUDA_OK);
        s.device->ops->release(s.device, &l->matrices);
}

/* ---- copies beside it ---- */

struct background {
        struct copier *copier;
        enum kind kind;
        atomic_bool stop;
        unsigned copies;
        pthread_t thread;
};

static void *copy_on(void *argument) {
        struct background *b = argument;
        do {
                if (b->kind == PUSH)
                        (void) copier_push(b->copier, CHUNK_BYTES);
                else
                        (void) copier_pull(b->copier);
                b->copies++;
        } while (!atomic_load(&b->stop));
        return NULL;
}

/* Median of the steps. */
static double measure(struct load *l, struct copier *c, enum kind kind, unsigned *copies) {
        struct background b = {.copier = c, .kind = kind};
        double seconds[STEPS_MAX];
        size_t steps = step_choose(STEPS_MAX, 3);
        if (kind != NOTHING && pthread_create(&b.thread, NULL, copy_on, &b) != 0)
                step_fail("no thread");
        for (size_t i = 0; i < steps; i++)
                seconds[i] = one_step(l);
        atomic_store(&b.stop, true);
        if (kind != NOTHING)
                (void) pthread_join(b.thread, NULL);
        *copies += b.copies;
        return step_median(seconds, steps);
}

int main(int argc, char **argv) {
        struct step s;
        struct copier c;
        struct load l;
        double seconds[KINDS][ROUNDS_MAX];
        unsigned copies[KINDS] = {0};
        if (argc > 1)
                return copier_pull_main();
        step_open(&s);
        load_init(&l, &s);
        copier_init(&c, &s, step_fit(&s, step_choose(GiB, 4 * MiB)));
        size_t rounds = step_choose(ROUNDS_MAX, 1);
        for (size_t i = 0; i < rounds; i++)
                for (int kind = 0; kind < KINDS; kind++)
                        seconds[kind][i] = measure(&l, &c, (enum kind) kind, &copies[kind]);
        double alone = step_median(seconds[NOTHING], rounds),
               push = step_median(seconds[PUSH], rounds), pull = step_median(seconds[PULL], rounds);
        step_figure("step_alone", alone * 1e3, "ms");
        step_figure("step_with_push", push * 1e3, "ms");
        step_figure("step_with_pull", pull * 1e3, "ms");
        step_figure("inflation_push", 100 * (push / alone - 1), "%");
        step_figure("inflation_pull", 100 * (pull / alone - 1), "%");
        step_figure("copies_push", copies[PUSH], "");
        step_figure("copies_pull", copies[PULL], "");
        STEP_CHECK(copies[PUSH] > 0 && copies[PULL] > 0);
        copier_done(&c);
        load_done(&l);
        return step_passed(&s);
}
