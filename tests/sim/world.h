/* SPDX-License-Identifier: Apache-2.0
 *
 * world.h - the tensors of a large run, for tests of size: parameters that all ranks hold and, for
 * each of them, three tensors of optimizer state of which each rank has its part of the whole, in
 * flat shards (ZeRO-1). All bytes are zero, in sparse files.
 *
 *     world_init(&w, 8000, 100000);
 *     world_write(&w, rank, data_fd, manifest_fd, ...);    // as its saver would
 *     world_register(&w, rank, ranks, &registry, &slabs);  // as its trainer would, in any world
 */
#ifndef CAIRN_TESTS_WORLD_H
#define CAIRN_TESTS_WORLD_H

#include "client/registry.h"
#include "format/file.h"

struct world {
        uint32_t ranks;
        size_t parameters; /* a quarter of the tensors */
        char (*names)[32]; /* of the parameters, sorted */
        uint64_t *starts;  /* first element of each among all, and the end */
        uint32_t *owners;
        unsigned char *zeros; /* 1 MiB */
        uint64_t digest, digest_count;
};

void world_init(struct world *w, uint32_t ranks, size_t tensors);
void world_done(struct world *w);
/* Adds to *ret_records and *ret_bytes what the manifest has. */
void world_write(const struct world *w, uint32_t rank, int data_fd, int manifest_fd,
                 uint64_t *ret_records, uint64_t *ret_bytes);
void world_register(const struct world *w, uint32_t rank, uint32_t ranks, struct registry *registry,
                    struct slabs *slabs);

#endif
