/* SPDX-License-Identifier: Apache-2.0
 *
 * push_plan.h - what this process copies of one seal, and to where in the data image. Made with the
 * inventory, so that the saver, which reads that, finds the same places.
 *
 * Constant once made. Owner: whoever holds the pointer; sources stay the trainer's.
 */
#ifndef CAIRN_CLIENT_PUSH_PLAN_H
#define CAIRN_CLIENT_PUSH_PLAN_H

#include "client/registry.h"
#include "format/file.h"

struct push_item {
        const void *source; /* the tensor, or the shadow of an ANYTIME one */
        uint64_t offset, bytes;
};
struct push_plan {
        uint64_t seal, image_bytes;
        size_t count;
        struct push_item items[]; /* ascending offsets */
};

/* Assigns the extents of this rank's tensors as well (layout.h). */
int push_plan_make(const struct registry *r, struct file_content *inventory, uint32_t rank,
                   struct arena *arena, struct push_plan **ret, uint64_t *ret_image_bytes,
                   struct cairn_error *reterr);
void push_plan_free(struct push_plan *p); /* NULL allowed */

#endif
