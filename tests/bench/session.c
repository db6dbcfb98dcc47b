/* SPDX-License-Identifier: Apache-2.0
 *
 * session - one trainer's session under `cairn run`, measured from the trainer's side. Prints one
 * line of "name value" pairs; seconds unless the name says otherwise.
 *
 *     session calls                  update_pair_ns: begin and end with no copy pending
 *     session request COUNT BYTES    request_p99_ms: the call that asks for a snapshot
 *     session save COUNT BYTES       register, seal, save: from the request to the commit
 *     session restore COUNT BYTES    restore: read, verified and in place (resumes what save left)
 *
 * A state is COUNT parameters of BYTES bytes each, of values that no disk can compress.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "client/cairn.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAVE_TIMEOUT_NS (300 * NSEC_PER_SEC)
#define REQUEST_EVERY_NS (2 * NSEC_PER_MSEC)
enum { BATCHES = 201, BATCH_CALLS = 1000, REQUESTS = 500, SAVES = 2 };

struct bench {
        struct cairn *c;
        uint64_t count, bytes; /* of tensors; of each */
        int64_t step;
        uint64_t register_ns, seal_ns;
        struct cairn_report report;
};

static uint64_t now(void) {
        return clock_now(&clock_system);
}

static int compare(const void *a, const void *b) {
        const uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;
        return (x > y) - (x < y);
}

/* 1 <= x < 2, so that no scan finds anything to report. */
static void fill(uint32_t *words, uint64_t count) {
        static uint32_t x = 0x9e3779b9;
        for (uint64_t i = 0; i < count; i++) {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                words[i] = 0x3f800000 | x >> 9;
        }
}

static int add_tensors(struct bench *b) {
        _cleanup_free_ void **data = calloc(b->count, sizeof *data);
        char name[64];
        if (!data)
                return CAIRN_ERR_NOMEM;
        for (uint64_t i = 0; i < b->count; i++) {
                int r = cairn_alloc(b->c, b->bytes, &data[i]);
                if (r < 0)
                        return r;
                fill(data[i], b->bytes / sizeof(uint32_t));
        }
        uint64_t start_ns = now();
        for (uint64_t i = 0; i < b->count; i++) {
                (void) snprintf(name, sizeof name, "model.layers.%06" PRIu64 ".weight", i);
                struct cairn_tensor t = {
                        CAIRN_TENSOR_INIT,  .name = name, .role = CAIRN_PARAMETER,
                        .dtype = CAIRN_F32, .rank = 1,    .shape = {b->bytes / sizeof(float)},
                        .data = data[i]};
                int r = cairn_register(b->c, &t);
                if (r < 0)
                        return r;
        }
        b->register_ns = now() - start_ns;
        int r = cairn_seal(b->c);
        b->seal_ns = now() - start_ns - b->register_ns;
        return r;
}

static int begin(struct bench *b) {
        struct cairn_options options = CAIRN_OPTIONS_INIT;
        int r = cairn_open(&options, &b->c);
        if (r == 0)
                r = add_tensors(b);
        b->report.size = sizeof b->report;
        if (r == 0)
                r = cairn_restore(b->c, &b->report);
        b->step = b->report.step;
        return r;
}

static int update(struct bench *b) {
        int r = cairn_update_begin(b->c);
        return r < 0 ? r : cairn_update_end(b->c, ++b->step);
}

static int measure_calls(struct bench *b) {
        uint64_t took_ns[BATCHES];
        for (int i = 0; i < BATCHES; i++) {
                uint64_t start_ns = now();
                for (int j = 0; j < BATCH_CALLS; j++) {
                        int r = update(b);
                        if (r < 0)
                                return r;
                }
                took_ns[i] = now() - start_ns;
        }
        qsort(took_ns, BATCHES, sizeof *took_ns, compare);
        const uint64_t median = took_ns[BATCHES / 2];
        printf("update_pair_ns %.1f\n", (double) median / BATCH_CALLS);
        return 0;
}

/* Copies and writes of the state go on beside it, as fast as they can. */
static int measure_request(struct bench *b) {
        uint64_t took_ns[REQUESTS];
        int64_t committed = -1;
        cairn_ticket ticket = 0;
        for (int i = 0; i < REQUESTS; i++) {
                int r = update(b);
                uint64_t start_ns = now();
                if (r == 0)
                        r = cairn_snapshot(b->c, &ticket);
                took_ns[i] = now() - start_ns;
                if (r < 0 && r != CAIRN_ERR_BUSY)
                        return r;
                clock_system.sleep_ns(clock_system.context, REQUEST_EVERY_NS);
        }
        qsort(took_ns, REQUESTS, sizeof *took_ns, compare);
        const uint64_t p99 = took_ns[REQUESTS * 99 / 100], middle = took_ns[REQUESTS / 2];
        printf("request_p99_ms %.6f request_median_ms %.6f\n", (double) p99 / 1e6,
               (double) middle / 1e6);
        return cairn_snapshot_wait(b->c, ticket, SAVE_TIMEOUT_NS, &committed);
}

/* The first save finds memory that no copy has touched. */
static int measure_save(struct bench *b) {
        uint64_t took_ns[SAVES] = {0};
        for (int i = 0; i < SAVES; i++) {
                int64_t committed = -1;
                cairn_ticket ticket;
                int r = update(b);
                took_ns[i] = now();
                if (r == 0)
                        r = cairn_snapshot(b->c, &ticket);
                if (r == 0)
                        r = cairn_snapshot_wait(b->c, ticket, SAVE_TIMEOUT_NS, &committed);
                if (r < 0)
                        return r;
                took_ns[i] = now() - took_ns[i];
        }
        printf("register %.6f seal %.6f first_save %.6f save %.6f\n", (double) b->register_ns / 1e9,
               (double) b->seal_ns / 1e9, (double) took_ns[0] / 1e9,
               (double) took_ns[SAVES - 1] / 1e9);
        return 0;
}

static int measure_restore(struct bench *b) {
        if (b->report.start != CAIRN_START_RESUME)
                return CAIRN_ERR_API;
        printf("restore %.6f read %.6f apply %.6f\n",
               (double) (b->report.read_ns + b->report.apply_ns) / 1e9,
               (double) b->report.read_ns / 1e9, (double) b->report.apply_ns / 1e9);
        return 0;
}

int main(int argc, char **argv) {
        static const struct {
                const char *name;
                int (*run)(struct bench *b);
        } kinds[] = {{"calls", measure_calls},
                     {"request", measure_request},
                     {"save", measure_save},
                     {"restore", measure_restore}};
        struct bench b = {.count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1,
                          .bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : MiB};
        size_t kind = 0;
        while (kind < sizeof kinds / sizeof *kinds &&
               (argc < 2 || strcmp(argv[1], kinds[kind].name) != 0))
                kind++;
        if (kind == sizeof kinds / sizeof *kinds || b.count == 0 || b.bytes < sizeof(float)) {
                fprintf(stderr, "usage: session calls|request|save|restore [COUNT BYTES]\n");
                return 64;
        }
        int r = begin(&b);
        if (r == 0)
                r = kinds[kind].run(&b);
        int code = r < 0 && b.c ? cairn_exit_code(b.c) : r < 0;
        if (r < 0)
                fprintf(stderr, "session: %s: %s\n", cairn_status_name(r),
                        b.c ? cairn_error_text(b.c) : "");
        cairn_close(b.c);
        return code;
}
