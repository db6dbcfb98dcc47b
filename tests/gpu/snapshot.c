/* SPDX-License-Identifier: Apache-2.0
 *
 * A trainer of `bytes` of GPU memory for tests/gpu/snapshot.sh, as cairn.h has it:
 *
 *     snapshot BYTES fit        as many of them as the GPU has room for
 *     snapshot BYTES save       updates, a snapshot that is waited for, another beside updates
 *     snapshot BYTES restore    the state is the one of the last snapshot
 */
#include "base/limits.h"
#include "client/cairn.h"
#include "tests/gpu/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { TENSORS = 64, UPDATES = 20 };
#define COMMIT_NS (120 * NSEC_PER_SEC)

struct trainer {
        struct step step;
        struct cairn *c;
        struct cuda_stream *stream;
        uint64_t bytes; /* of a tensor */
        void *tensors[TENSORS];
};

#define CHECK(t, call)                                             \
        do {                                                       \
                if ((call) < 0)                                    \
                        step_fail("%s", cairn_error_text((t)->c)); \
        } while (0)

static uint32_t word_of(int64_t step, int tensor) {
        return (uint32_t) step * 1000 + (uint32_t) tensor;
}

static void trainer_open(struct trainer *t, uint64_t bytes) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        char name[32];
        o.device = CAIRN_DEVICE_CUDA;
        t->bytes = bytes / TENSORS;
        CHECK(t, cairn_open(&o, &t->c));
        step_open(&t->step);
        t->stream = step_stream(&t->step);
        CHECK(t, cairn_set_stream(t->c, t->stream));
        for (int i = 0; i < TENSORS; i++) {
                CHECK(t, cairn_alloc(t->c, t->bytes, &t->tensors[i]));
                (void) snprintf(name, sizeof name, "tensor.%d", i);
                const struct cairn_tensor tensor = {
                        CAIRN_TENSOR_INIT,    .name = name, .role = CAIRN_PARAMETER,
                        .dtype = CAIRN_F32,   .rank = 1,    .shape = {t->bytes / 4},
                        .data = t->tensors[i]};
                CHECK(t, cairn_register(t->c, &tensor));
        }
        CHECK(t, cairn_seal(t->c));
}

static double update(struct trainer *t, int64_t step) {
        double begin = step_seconds();
        CHECK(t, cairn_update_begin(t->c));
        double waited = step_seconds() - begin;
        for (int i = 0; i < TENSORS; i++)
                step_fill(&t->step, t->stream, t->tensors[i], word_of(step, i), t->bytes);
        CHECK(t, cairn_update_end(t->c, step));
        return waited;
}

static double take(struct trainer *t, int64_t expected) {
        cairn_ticket ticket;
        int64_t step = -1;
        double begin = step_seconds();
        CHECK(t, cairn_snapshot(t->c, &ticket));
        CHECK(t, cairn_snapshot_wait(t->c, ticket, COMMIT_NS, &step));
        if (step != expected)
                step_fail("the snapshot is of step %lld, not %lld", (long long) step,
                          (long long) expected);
        return step_seconds() - begin;
}

static void save(struct trainer *t, double gigabytes) {
        struct cairn_report report = {.size = sizeof report};
        double stalls[UPDATES], longest = 0;
        cairn_ticket ticket;
        int64_t step = -1, last = 0;
        CHECK(t, cairn_restore(t->c, &report));
        (void) update(t, ++last);
        step_figure("snapshot_first", take(t, last), "s");
        /* Updates go on while it is taken: each waits for the copy no longer than it has to. */
        CHECK(t, cairn_snapshot(t->c, &ticket));
        for (int i = 0; i < UPDATES; i++) {
                stalls[i] = update(t, ++last);
                longest = stalls[i] > longest ? stalls[i] : longest;
        }
        int r = cairn_snapshot_wait(t->c, ticket, COMMIT_NS, &step);
        step_figure("beside_updates_committed", r == 0, "");
        step_figure("longest_stall", longest * 1e3, "ms");
        step_figure("median_stall", step_median(stalls, UPDATES) * 1e3, "ms");
        (void) update(t, ++last);
        double seconds = take(t, last);
        step_figure("snapshot", seconds, "s");
        step_figure("snapshot_rate", gigabytes / seconds, "GB/s");
        printf("saved step %lld\n", (long long) last);
}

static void check(struct trainer *t, int64_t step) {
        struct step s = t->step;
        uint32_t *host = step_memfd(t->bytes, NULL);
        STEP_TRY(s.device->ops->host_register(s.device, host, t->bytes, &s.error));
        for (int i = 0; i < TENSORS; i++) {
                STEP_TRY(s.device->ops->copy_async(s.device, NULL, host, t->tensors[i], t->bytes,
                                                   &s.error));
                STEP_TRY(s.device->ops->synchronize(s.device, step_deadline(), &s.error));
                step_check_words(host, t->bytes, word_of(step, i), "a restored tensor");
        }
        STEP_TRY(s.device->ops->host_unregister(s.device, host, &s.error));
        (void) munmap(host, t->bytes);
}

static void restore(struct trainer *t, double gigabytes) {
        struct cairn_report report = {.size = sizeof report};
        double begin = step_seconds();
        CHECK(t, cairn_restore(t->c, &report));
        double seconds = step_seconds() - begin;
        printf("%s\n", report.text);
        if (report.start != CAIRN_START_RESUME || report.tensors_loaded != TENSORS)
                step_fail("%llu tensors were restored", (unsigned long long) report.tensors_loaded);
        step_figure("restore", seconds, "s");
        step_figure("restore_rate", gigabytes / seconds, "GB/s");
        check(t, report.step);
}

/* Half a GiB is left to others. */
static int print_fit(uint64_t bytes) {
        struct step s;
        size_t available, total;
        step_open(&s);
        step_enter(&s);
        STEP_CHECK(s.cuda->MemGetInfo(&available, &total) == CUDA_OK);
        while (bytes > MiB && bytes + GiB / 2 > available)
                bytes /= 2;
        printf("%llu\n", (unsigned long long) bytes);
        return step_passed(&s);
}

int main(int argc, char **argv) {
        struct trainer t = {0};
        if (argc != 3)
                step_fail("usage: snapshot BYTES fit|save|restore");
        uint64_t bytes = strtoull(argv[1], NULL, 10);
        if (strcmp(argv[2], "fit") == 0)
                return print_fit(bytes);
        trainer_open(&t, bytes);
        double gigabytes = (double) (t.bytes * TENSORS) * 1e-9;
        if (strcmp(argv[2], "save") == 0)
                save(&t, gigabytes);
        else
                restore(&t, gigabytes);
        t.step.device->ops->close(t.step.device);
        cairn_close(t.c);
        return 0;
}
