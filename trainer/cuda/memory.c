/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and waits. The runtime's own waits have no end, so none is used: copies to and from the
 * host go through page-locked memory, which makes them queued work like any other, and all waiting
 * is polling of one event.
 */
#include "base/clock.h"
#include "trainer/cuda/cuda.h"
#include <string.h>

/* Short work is over before a sleep would be. */
#define SPIN_NS (100 * UINT64_C(1000))
#define SLEEP_NS (20 * UINT64_C(1000))

int cuda_error(cudaError_t e, const char *operation, const char *object,
               struct cairn_error *reterr) {
        if (e == cudaSuccess)
                return 0;
        (void) cudaGetLastError(); /* what can be forgotten shall not be told of a later call */
        if (e == cudaErrorMemoryAllocation)
                return error_set(reterr, CAIRN_ERR_NOMEM, operation, object,
                                 "the GPU has no memory left");
        int r = error_set(reterr, CAIRN_ERR_DEVICE, operation, object,
                          "%s (%d): %s; this process has to end, and can be started again",
                          cudaGetErrorName(e), (int) e, cudaGetErrorString(e));
        if (reterr)
                reterr->system_code = (int) e;
        return r;
}

void cuda_keep(struct cuda *g, int result, const char *operation) {
        if (result == cudaSuccess || g->error.status < 0)
                return;
        if (cuda_error((cudaError_t) result, operation, g->title, &g->error) != CAIRN_ERR_NOMEM)
                g->base.is_lost = true;
}

void cuda_keep_blas(struct cuda *g, cublasStatus_t status, const char *operation) {
        if (status == CUBLAS_STATUS_SUCCESS || g->error.status < 0)
                return;
        bool is_short = status == CUBLAS_STATUS_ALLOC_FAILED;
        (void) error_set(&g->error, is_short ? CAIRN_ERR_NOMEM : CAIRN_ERR_DEVICE, operation,
                         g->title, "%s; this process has to end, and can be started again",
                         blas_status_name(status));
        g->base.is_lost = g->base.is_lost || !is_short;
}

/* The failure that is kept; one that less work avoids is told once. */
static int told(struct cuda *g, struct cairn_error *reterr) {
        int r = g->error.status;

        if (r < 0 && reterr)
                *reterr = g->error;
        if (!g->base.is_lost)
                g->error.status = 0;
        return r;
}

static int poll_event(struct cuda *g, struct cairn_error *reterr) {
        uint64_t begin = clock_now(&clock_system);

        for (;;) {
                cudaError_t e = cudaEventQuery(g->event);
                if (e != cudaErrorNotReady)
                        return cuda_error(e, "wait for the GPU", g->title, reterr);
                uint64_t now = clock_now(&clock_system);
                if (now - begin >= g->limit_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "wait for the GPU", g->title,
                                         "what was queued has not ended within %.0f s "
                                         "(--device-timeout); this process has to end, and can be "
                                         "started again",
                                         (double) g->limit_ns * 1e-9);
                if (now - begin >= SPIN_NS)
                        clock_system.sleep_ns(clock_system.context, SLEEP_NS);
        }
}

void cuda_drain(struct cuda *g) {
        struct cairn_error e = CAIRN_ERROR_INIT;

        if (g->base.is_lost)
                return;
        cudaError_t recorded = cudaEventRecord(g->event, g->stream);
        if (recorded != cudaSuccess) {
                cuda_keep(g, recorded, "record event");
                g->base.is_lost = true; /* nobody knows any more what is done */
        } else if (poll_event(g, &e) < 0) {
                g->error = e;
                g->base.is_lost = true;
        }
        g->bounce_used = 0;
}

int cuda_wait(struct cuda *g, struct cairn_error *reterr) {
        cuda_drain(g);
        return told(g, reterr);
}

int cuda_check(struct compute *c, struct cairn_error *reterr) {
        return told(cuda_of(c), reterr);
}

int cuda_finish(struct compute *c, struct cairn_error *reterr) {
        return cuda_wait(cuda_of(c), reterr);
}

int cuda_allocate(struct compute *c, size_t bytes, void **ret, struct cairn_error *reterr) {
        struct cuda *g = cuda_of(c);
        size_t free_bytes = 0, all_bytes = 0;
        void *p = NULL;
        cudaError_t e = cudaMalloc(&p, bytes > 0 ? bytes : 1);

        if (e == cudaErrorMemoryAllocation) {
                (void) cudaGetLastError();
                (void) cudaMemGetInfo(&free_bytes, &all_bytes);
                return error_set(reterr, CAIRN_ERR_NOMEM, "allocate", g->title,
                                 "%zu MiB of the GPU's memory are not free (%zu of %zu are)",
                                 bytes >> 20, free_bytes >> 20, all_bytes >> 20);
        }
        if (e != cudaSuccess) {
                cuda_keep(g, e, "allocate");
                return told(g, reterr);
        }
        cuda_zero(c, p, bytes);
        *ret = p;
        return 0;
}

void cuda_release(struct compute *c, void *memory) {
        struct cuda *g = cuda_of(c);

        if (!memory)
                return;
        cuda_drain(
                g); /* freeing waits for the device without an end, unless it has nothing to do */
        if (!g->base.is_lost)
                (void) cudaFree(memory);
}

void cuda_zero(struct compute *c, void *target, size_t bytes) {
        struct cuda *g = cuda_of(c);

        if (bytes > 0)
                cuda_keep(g, cudaMemsetAsync(target, 0, bytes, g->stream), "zero");
}

void cuda_copy(struct compute *c, void *target, const void *source, size_t bytes) {
        struct cuda *g = cuda_of(c);

        if (bytes > 0 && target != source)
                cuda_keep(
                        g,
                        cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, g->stream),
                        "copy");
}

void cuda_upload(struct compute *c, void *target, const void *source, size_t bytes) {
        struct cuda *g = cuda_of(c);

        while (bytes > 0 && !g->base.is_lost) {
                if (g->bounce_used == CUDA_BOUNCE_BYTES)
                        cuda_drain(g);
                size_t room = CUDA_BOUNCE_BYTES - g->bounce_used,
                       part = bytes < room ? bytes : room;
                memcpy(g->bounce + g->bounce_used, source, part);
                cuda_keep(g,
                          cudaMemcpyAsync(target, g->bounce + g->bounce_used, part,
                                          cudaMemcpyHostToDevice, g->stream),
                          "copy to the GPU");
                g->bounce_used += part;
                target = (char *) target + part;
                source = (const char *) source + part;
                bytes -= part;
        }
}

int cuda_download(struct compute *c, void *host, const void *source, size_t bytes,
                  struct cairn_error *reterr) {
        struct cuda *g = cuda_of(c);

        TRY(cuda_wait(g, reterr)); /* the bounce memory is free */
        for (size_t done = 0; done < bytes;) {
                size_t left = bytes - done;
                size_t part = left < CUDA_BOUNCE_BYTES ? left : CUDA_BOUNCE_BYTES;
                cuda_keep(g,
                          cudaMemcpyAsync(g->bounce, (const char *) source + done, part,
                                          cudaMemcpyDeviceToHost, g->stream),
                          "copy from the GPU");
                TRY(cuda_wait(g, reterr));
                memcpy((char *) host + done, g->bounce, part);
                done += part;
        }
        return 0;
}

int cuda_make_results(struct cuda *g, size_t bytes, struct cairn_error *reterr) {
        if (bytes <= g->results_bytes)
                return 0;
        cuda_release(&g->base, g->results);
        g->results = NULL;
        g->results_bytes = 0;
        TRY(cuda_allocate(&g->base, bytes, &g->results, reterr));
        g->results_bytes = bytes;
        return 0;
}
