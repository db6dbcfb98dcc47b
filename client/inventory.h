/* SPDX-License-Identifier: Apache-2.0
 *
 * inventory.h - a registry as the framed file that the agent reads (FILE_INVENTORY), in a sealed
 * memfd, and the host-state memfd that goes with it. Fixes owners and the offsets of host values in
 * the registry.
 *
 * Owner: descriptors belong to the caller. One thread at a time.
 */
#ifndef CAIRN_CLIENT_INVENTORY_H
#define CAIRN_CLIENT_INVENTORY_H

#include "client/push_plan.h"
#include "client/registry.h"
#include "format/layout.h"

struct inventory {
        int fd, host_fd;        /* -1 after they were taken */
        void *host;             /* mapping of host_fd */
        uint64_t host_bytes;    /* of the mapping */
        uint64_t payload_bytes; /* of one slot's values */
        uint64_t image_bytes;   /* of this rank's data file */
        uint64_t file_bytes;
        unsigned char device_uuid[DEVICE_UUID_BYTES];
        size_t device_uuid_bytes; /* 0: a session of the host */
        struct push_plan *plan;   /* where this process copies; NULL once it was taken */
};
#define INVENTORY_INIT \
        { .fd = -1, .host_fd = -1 }

/* `writers`: the ranks that share the writing of replicated tensors, this one among them. The agent
 * can read the state itself unless slabs are memory of a GPU, or tensors lie outside them. */
int inventory_build(struct registry *r, const struct slabs *slabs, uint64_t seal, uint32_t rank,
                    struct layout_ranks writers, struct inventory *ret, struct cairn_error *reterr);
void inventory_done(struct inventory *i);
/* The host values now, as they lie in a slot; payload_bytes of room. API if a value is longer than
 * its capacity. */
int inventory_pack_values(const struct registry *r, size_t value_count, void *payload,
                          struct cairn_error *reterr);

#endif
