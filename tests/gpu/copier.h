/* SPDX-License-Identifier: Apache-2.0
 *
 * copier.h - the two ways out of a GPU, for the steps that measure them: push (chunks on a stream
 * of the process that owns the memory) and pull (another process that has imported it).
 *
 *     main: if (argc > 1) return copier_pull_main();          // in the process of copier_spawn
 *     struct copier c;
 *     copier_init(&c, &s, bytes);                             // slab, staging, the other process
 *     seconds = copier_push(&c, CHUNK_BYTES);  seconds = copier_pull(&c);
 *     copier_check(&c, word);
 *     copier_done(&c);
 */
#ifndef CAIRN_TESTS_GPU_COPIER_H
#define CAIRN_TESTS_GPU_COPIER_H

#include "tests/gpu/step.h"

struct copier {
        struct step *step;
        struct device_memory slab;
        unsigned char *staging; /* a registered memfd, which the other process has, too */
        uint64_t bytes;
        pid_t puller;
        int socket;
};

void copier_init(struct copier *c, struct step *s, uint64_t bytes);
void copier_done(struct copier *c);
/* One copy of everything: what the hardware gives. */
double copier_whole(struct copier *c);
double copier_push(struct copier *c, uint64_t chunk_bytes);
double copier_pull(struct copier *c);
/* Pull in two halves, so that something else goes on meanwhile. */
void copier_pull_begin(struct copier *c);
double copier_pull_end(struct copier *c);
/* The slab's words are these, in the staging, too; then the staging is overwritten. */
void copier_check(struct copier *c, uint32_t word);
int copier_pull_main(void);

#endif
