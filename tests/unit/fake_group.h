/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_group.h - the ranks of a group as threads of one process: defines the group_* functions, so
 * that the linker does not take the trainer's. Sums are taken in the order of the ranks, as the
 * real ones are. Include in one test program's only source.
 *
 *     fake_group_run(3, body, argument);       // body(rank, argument) in three threads
 */
#ifndef CAIRN_TESTS_FAKE_GROUP_H
#define CAIRN_TESTS_FAKE_GROUP_H

#include "base/assert.h"
#include "tests/unit/fake_cairn.h"
#include "trainer/group.h"
#include <pthread.h>

enum { FAKE_WORLD_MAX = 8 };

static struct {
        pthread_barrier_t barrier;
        void *x[FAKE_WORLD_MAX];
        size_t bytes[FAKE_WORLD_MAX];
        void (*body)(uint32_t rank, void *argument);
        void *argument;
        uint32_t world;
        _Atomic int calls_left; /* until an exchange fails on all ranks; negative: none does */
} fake_group = {.calls_left = -1};

static inline void fake_group_wait(void) {
        (void) pthread_barrier_wait(&fake_group.barrier);
}

/* All ranks are in the same call with the same size. */
static inline int fake_group_meet(struct group *g, void *x, size_t bytes,
                                  struct cairn_error *reterr) {
        fake_group.x[g->rank] = x;
        fake_group.bytes[g->rank] = bytes;
        fake_group_wait();
        for (uint32_t i = 0; i < g->world; i++)
                CAIRN_ASSERT(fake_group.bytes[i] == bytes);
        bool fails = fake_group.calls_left == 0;
        fake_group_wait();
        if (g->rank == 0 && fake_group.calls_left > 0)
                fake_group.calls_left--;
        return fails ? error_set(reterr, CAIRN_ERR_PEER, "all_gather", "fake", "rank 1 is gone")
                     : 0;
}

int group_open(struct group *g, struct cairn *c, struct compute *compute, uint64_t generation,
               const struct settings *s, struct cairn_error *reterr) {
        return 0;
}
void group_close(struct group *g) {
}
const char *group_describe(const struct group *g) {
        return g->world > 1 ? "threads" : "none";
}
const char *group_numerics(const struct group *g, char *buf, size_t bytes) {
        (void) snprintf(buf, bytes, "%s", group_describe(g));
        return buf;
}
void group_keepalive(struct group *g) {
}

int group_spread(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr) {
        if (g->world == 1)
                return 0;
        TRY(fake_group_meet(g, x, part_bytes, reterr));
        for (uint32_t i = 0; i < g->world; i++)
                if (i != g->rank)
                        memcpy((char *) x + i * part_bytes,
                               (char *) fake_group.x[i] + i * part_bytes, part_bytes);
        fake_group_wait();
        return 0;
}

int group_gather(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr) {
        return group_spread(g, x, part_bytes, reterr);
}

static inline int fake_group_sum(struct group *g, float *x, size_t first, size_t count,
                                 size_t meet_count, struct cairn_error *reterr) {
        TRY(fake_group_meet(g, x, meet_count * sizeof(float), reterr));
        float *sum = malloc(count * sizeof(*sum));
        memcpy(sum, (float *) fake_group.x[0] + first, count * sizeof(*sum));
        for (uint32_t i = 1; i < g->world; i++)
                for (size_t k = 0; k < count; k++)
                        sum[k] += ((float *) fake_group.x[i])[first + k];
        fake_group_wait();
        memcpy(x + first, sum, count * sizeof(*sum));
        free(sum);
        return 0;
}

int group_sum(struct group *g, float *x, size_t count, struct cairn_error *reterr) {
        return g->world == 1 ? 0 : fake_group_sum(g, x, 0, count, count, reterr);
}

int group_sum_part(struct group *g, float *x, size_t count, struct cairn_error *reterr) {
        return g->world == 1 ? 0 : fake_group_sum(g, x, g->rank * count, count, count, reterr);
}

static inline void *fake_group_thread(void *argument) {
        fake_rank = (uint32_t) (uintptr_t) argument;
        fake_world = fake_group.world;
        fake_group.body(fake_rank, fake_group.argument);
        return NULL;
}

/* A thread even for one rank, so that the caller's world stays as it was. */
static inline void fake_group_run(uint32_t world, void (*body)(uint32_t rank, void *argument),
                                  void *argument) {
        pthread_t threads[FAKE_WORLD_MAX];

        CAIRN_ASSERT(world <= FAKE_WORLD_MAX &&
                     pthread_barrier_init(&fake_group.barrier, NULL, world) == 0);
        fake_group.world = world;
        fake_group.body = body;
        fake_group.argument = argument;
        for (uint32_t i = 0; i < world; i++)
                CAIRN_ASSERT(pthread_create(&threads[i], NULL, fake_group_thread,
                                            (void *) (uintptr_t) i) == 0);
        for (uint32_t i = 0; i < world; i++)
                (void) pthread_join(threads[i], NULL);
        (void) pthread_barrier_destroy(&fake_group.barrier);
}

#endif
