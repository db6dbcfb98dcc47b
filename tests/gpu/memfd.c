/* SPDX-License-Identifier: Apache-2.0
 *
 * Registering staging: sealed memfds of several sizes, with and without their pages there; how long
 * it takes, what it brings, and that the bytes arrive.
 */
#include "base/limits.h"
#include "format/wire.h"
#include "tests/gpu/step.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static double timed_copy(struct step *step, void *target, const void *source, uint64_t bytes) {
        struct step s = *step;
        double begin = step_seconds();
        STEP_TRY(s.device->ops->copy_async(s.device, NULL, target, source, bytes, &s.error));
        STEP_TRY(s.device->ops->synchronize(s.device, step_deadline(), &s.error));
        return step_seconds() - begin;
}

static double timed_register(struct step *step, void *p, uint64_t bytes) {
        struct step s = *step;
        double begin = step_seconds();
        STEP_TRY(s.device->ops->host_register(s.device, p, bytes, &s.error));
        return step_seconds() - begin;
}

static void *map_empty(uint64_t bytes) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int fd = -1;
        if (wire_memfd_create("cairn-gpu-step", bytes, &fd, &e) < 0)
                step_fail_error(&e);
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        STEP_CHECK(p != MAP_FAILED);
        (void) close(fd);
        return p;
}

static void one_size(struct step *step, struct cuda_stream *stream, struct device_memory *slab,
                     uint64_t bytes) {
        struct step s = *step;
        char name[64];
        uint32_t word = (uint32_t) (bytes >> 12) | 1;
        step_fill(&s, stream, slab->address, word, bytes);
        STEP_CHECK(s.cuda->StreamSynchronize(stream) == CUDA_OK);
        void *ready = step_memfd(bytes, NULL);
        double plain = timed_copy(&s, ready, slab->address, bytes);
        step_check_words(ready, bytes, word, "copy to a memfd");
        memset(ready, 0, bytes);
        double there = timed_register(&s, ready, bytes);
        double fast = timed_copy(&s, ready, slab->address, bytes);
        step_check_words(ready, bytes, word, "copy to a registered memfd");
        double begin = step_seconds();
        STEP_TRY(s.device->ops->host_unregister(s.device, ready, &s.error));
        double undone = step_seconds() - begin;
        (void) munmap(ready, bytes);
        void *empty = map_empty(bytes);
        double faulted = timed_register(&s, empty, bytes);
        (void) timed_copy(&s, empty, slab->address, bytes);
        step_check_words(empty, bytes, word, "copy to one registered without pages");
        STEP_TRY(s.device->ops->host_unregister(s.device, empty, &s.error));
        (void) munmap(empty, bytes);
        const struct {
                const char *what;
                double value;
                const char *unit;
        } figures[] = {
                {"register", there * 1e3, "ms"},
                {"register_without_pages", faulted * 1e3, "ms"},
                {"unregister", undone * 1e3, "ms"},
                {"copy_registered", (double) bytes * 1e-9 / fast, "GB/s"},
                {"copy_plain", (double) bytes * 1e-9 / plain, "GB/s"},
        };
        for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
                (void) snprintf(name, sizeof name, "%s_%lluMiB", figures[i].what,
                                (unsigned long long) (bytes / MiB));
                step_figure(name, figures[i].value, figures[i].unit);
        }
}

int main(void) {
        struct step s;
        struct device_memory slab;
        struct rlimit limit = {0};
        step_open(&s);
        (void) getrlimit(RLIMIT_MEMLOCK, &limit);
        step_figure("locked_memory_limit",
                    limit.rlim_cur == RLIM_INFINITY ? -1 : (double) limit.rlim_cur, "B");
        struct cuda_stream *stream = step_stream(&s);
        uint64_t largest = step_fit(&s, step_choose(4 * GiB, 8 * MiB));
        STEP_TRY(s.device->ops->allocate(s.device, largest, &slab, &s.error));
        for (uint64_t bytes = step_choose(64 * MiB, MiB); bytes <= largest; bytes *= 8)
                one_size(&s, stream, &slab, bytes);
        s.device->ops->release(s.device, &slab);
        STEP_CHECK(s.cuda->StreamDestroy(stream) == CUDA_OK);
        return step_passed(&s);
}
