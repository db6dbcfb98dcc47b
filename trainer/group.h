/* SPDX-License-Identifier: Apache-2.0
 *
 * group.h - the ranks of this run as the trainer uses them: sums and exchanges of equal pieces. A
 * group of one rank has no communicator and waits for nobody.
 *
 *     struct group g = {.rank = r, .world = n};
 *     TRY(group_open(&g, cairn, compute, generation, &settings, &e));   // all ranks
 *     TRY(group_sum(&g, gradients, count, &e));
 *     group_close(&g);
 *
 * Sums and gathers are of memory of whoever computes (compute.h), spreads of host memory. What the
 * communicator cannot reach goes through a buffer that it can: gloo reaches host memory, NCCL a
 * GPU's.
 *
 * All ranks make the same calls in the same order. Sums are taken in the order of the ranks: equal
 * inputs give equal bits, the same on all ranks. A failure names who is missing and ends the group:
 * the process has to end without another update, and `cairn run` starts all ranks again. One
 * thread, the one that calls libcairn.
 */
#ifndef CAIRN_TRAINER_GROUP_H
#define CAIRN_TRAINER_GROUP_H

#include "client/cairn.h"
#include "trainer/compute.h"
#include "trainer/settings.h"

struct comm;
struct device;
struct group {
        uint32_t rank, world;
        struct comm *comm; /* NULL: one rank */
        struct cairn *cairn;
        struct compute *compute;
        struct device *device; /* NCCL's, NULL with others */
        void *stage;           /* memory that the communicator reaches */
        size_t stage_bytes;
};

/* VOID: asked to end before all had come. The group stays where it is until it is closed. */
int group_open(struct group *g, struct cairn *c, struct compute *compute, uint64_t generation,
               const struct settings *s, struct cairn_error *reterr);
/* Also after a failure. Does not return where the communicator cannot be taken down. */
void group_close(struct group *g);
/* For the log: back end, version, interface; "none" for one rank. Holds until close. */
const char *group_describe(const struct group *g);
/* What the bits of a sum depend on: back end and version. Returns buf. */
const char *group_numerics(const struct group *g, char *buf, size_t bytes);

/* x: count floats, replaced by their sum over all ranks. */
int group_sum(struct group *g, float *x, size_t count, struct cairn_error *reterr);
/* x: world parts of count floats; this rank's part is replaced by its sum over all ranks, the
 * others are undefined afterwards. */
int group_sum_part(struct group *g, float *x, size_t count, struct cairn_error *reterr);
/* x: world parts of so many bytes; each rank gives its own, all get all. */
int group_gather(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr);
/* The same of host memory. */
int group_spread(struct group *g, void *x, size_t part_bytes, struct cairn_error *reterr);
/* A rank that works long without an exchange says so now and then. */
void group_keepalive(struct group *g);

#endif
