/* SPDX-License-Identifier: Apache-2.0
 *
 * lockstep - a trainer of many ranks without a communicator: one flat tensor, shared out over the
 * ranks however many there are, whose every element is a function of its place and the step; and a
 * barrier before each update, in a file that all ranks map, in the place of exchanged gradients.
 *
 *     cairn run ... -- lockstep BARRIER LOG [--steps N] [--step-ms T] [--elements N]
 *
 * Each rank has a random stream of its own, as a host value.
 *
 * Whatever a restore brings is compared element by element, so that a checkpoint of ranks at
 * different steps, a rank's part at another's place, or anything of a node that was given up is
 * found: exit status 1. Rank 0 appends "generation world step" lines to LOG.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "client/cairn.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS_AT_MOST = 128 };

struct lockstep {
        struct cairn *cairn;
        struct cairn_session session;
        const char *barrier, *log;
        int64_t steps, step_ms, samples;
        uint64_t elements, first, count;
        uint32_t *data;
        uint64_t draws; /* the state of this rank's own stream */
        _Atomic int64_t
                *arrived; /* by rank: the step it wants to make; last: the one not to make */
};

static uint32_t value_of(uint64_t place, int64_t step) {
        uint64_t x = (place + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t) step;
        x = (x ^ (x >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
        return (uint32_t) (x >> 32);
}

static uint64_t draws_of(uint64_t rank, int64_t step) {
        return (rank + 1) * UINT64_C(1000000007) + (uint64_t) step * 3;
}

static void fill(struct lockstep *l, int64_t step) {
        for (uint64_t i = 0; i < l->count; i++)
                l->data[i] = value_of(l->first + i, step);
        l->samples = step * 7;
        l->draws = draws_of(l->session.rank, step);
}

/* stored: ranks of the checkpoint; those that it has not begin with the first one's values. */
static bool is_as_it_should_be(const struct lockstep *l, int64_t step, uint32_t stored) {
        uint32_t rank = l->session.rank < stored ? l->session.rank : 0;
        if (step > 0 && l->draws != draws_of(rank, step)) {
                fprintf(stderr, "lockstep: rank %u has not the stream of rank %u\n",
                        l->session.rank, rank);
                return false;
        }
        for (uint64_t i = 0; i < l->count; i++)
                if (l->data[i] != value_of(l->first + i, step)) {
                        fprintf(stderr,
                                "lockstep: rank %u: element %" PRIu64 " is not of step %" PRId64
                                "\n",
                                l->session.rank, l->first + i, step);
                        return false;
                }
        return l->samples == step * 7;
}

static int fail(const struct lockstep *l) {
        fprintf(stderr, "lockstep: %s\n", cairn_error_text(l->cairn));
        return cairn_exit_code(l->cairn);
}

static int map_barrier(struct lockstep *l) {
        char path[4096];
        (void) snprintf(path, sizeof path, "%s-%" PRIu64, l->barrier, l->session.generation);
        size_t bytes = (RANKS_AT_MOST + 1) * sizeof *l->arrived;
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, (off_t) bytes) < 0)
                return -1;
        l->arrived = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void) close(fd);
        return l->arrived == MAP_FAILED ? -1 : 0;
}

/* As an all-reduce does: nobody gets past it before all are there. */
static void wait_for_all(struct lockstep *l, int64_t step) {
        atomic_store(&l->arrived[l->session.rank], step);
        for (uint32_t i = 0; i < l->session.world; i++)
                while (atomic_load(&l->arrived[i]) < step)
                        clock_system.sleep_ns(NULL, NSEC_PER_MSEC / 4);
}

/* Nobody gets past this step's barrier before us, so all make this step and none the next. */
static bool is_stopping(const struct lockstep *l, int64_t step) {
        _Atomic int64_t *stop = &l->arrived[RANKS_AT_MOST];
        int64_t none = 0;
        if (cairn_should_stop(l->cairn))
                (void) atomic_compare_exchange_strong(stop, &none, step + 1);
        return atomic_load(stop) != 0 && step >= atomic_load(stop);
}

/* Asked to stop: one last snapshot. Else the run is complete. */
static void end(const struct lockstep *l, bool is_complete) {
        cairn_ticket ticket;
        int64_t step;
        if (is_complete)
                (void) cairn_finish(l->cairn, "completed");
        else if (cairn_snapshot(l->cairn, &ticket) == 0)
                (void) cairn_snapshot_wait(l->cairn, ticket, 60 * NSEC_PER_SEC, &step);
        cairn_close(l->cairn);
}

static void note(const struct lockstep *l, int64_t step) {
        if (l->session.rank != 0)
                return;
        FILE *file = fopen(l->log, "ae");
        if (!file)
                return;
        fprintf(file, "%" PRIu64 " %u %" PRId64 "\n", l->session.generation, l->session.world,
                step);
        (void) fclose(file);
}

static uint32_t stored_world(const struct cairn_report *report) {
        static const char key[] = "\"world_stored\":";
        const char *at = report->json ? strstr(report->json, key) : NULL;
        return at ? (uint32_t) strtoul(at + strlen(key), NULL, 10) : 0;
}

static int begin(struct lockstep *l, struct cairn_report *report) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        if (cairn_open(&o, &l->cairn) < 0 || cairn_session(l->cairn, &l->session) < 0)
                return fail(l);
        uint32_t world = l->session.world, rank = l->session.rank;
        l->first = l->elements * rank / world;
        l->count = l->elements * (rank + 1) / world - l->first;
        if (world > RANKS_AT_MOST || map_barrier(l) < 0)
                return 70;
        if (cairn_alloc(l->cairn, l->count * sizeof *l->data, (void **) &l->data) < 0)
                return fail(l);
        const struct cairn_tensor t = {CAIRN_TENSOR_INIT,
                                       .name = "weights",
                                       .role = CAIRN_PARAMETER,
                                       .dtype = CAIRN_U32,
                                       .rank = 1,
                                       .shape = {l->elements},
                                       .data = l->data,
                                       .sharded = world > 1,
                                       .flat_start = l->first,
                                       .flat_count = l->count};
        if (cairn_register(l->cairn, &t) < 0 ||
            cairn_state_i64(l->cairn, "samples", &l->samples) < 0 ||
            cairn_state_u64(l->cairn, "draws", &l->draws) < 0)
                return fail(l);
        fill(l, 0);
        report->size = sizeof *report;
        if (cairn_seal(l->cairn) < 0 || cairn_restore(l->cairn, report) < 0)
                return fail(l);
        if (!is_as_it_should_be(l, report->step, stored_world(report)))
                return 1;
        return 0;
}

int main(int argc, char **argv) {
        struct lockstep l = {.session = {.size = sizeof l.session},
                             .steps = 100,
                             .step_ms = 5,
                             .elements = 100003};
        struct cairn_report report;
        if (argc < 3)
                return 64;
        l.barrier = argv[1];
        l.log = argv[2];
        for (int i = 3; i + 1 < argc; i += 2) {
                if (strcmp(argv[i], "--steps") == 0)
                        l.steps = strtoll(argv[i + 1], NULL, 10);
                if (strcmp(argv[i], "--step-ms") == 0)
                        l.step_ms = strtoll(argv[i + 1], NULL, 10);
                if (strcmp(argv[i], "--elements") == 0)
                        l.elements = strtoull(argv[i + 1], NULL, 10);
        }
        int code = begin(&l, &report);
        if (code != 0)
                return code;
        fprintf(stderr, "lockstep: rank %u of %u begins after step %" PRId64 "\n", l.session.rank,
                l.session.world, report.step);
        int64_t step = report.step + 1;
        for (; step <= l.steps && !is_stopping(&l, step); step++) {
                clock_system.sleep_ns(NULL, (uint64_t) l.step_ms * NSEC_PER_MSEC);
                wait_for_all(&l, step);
                (void) cairn_update_begin(l.cairn);
                fill(&l, step);
                (void) cairn_update_end(l.cairn, step);
                note(&l, step);
        }
        end(&l, step > l.steps);
        return 0;
}
