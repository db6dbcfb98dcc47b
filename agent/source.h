/* SPDX-License-Identifier: Apache-2.0
 *
 * source.h - what a saver copies from: the trainer's slabs, its host state, and the inventory that
 * says where in them each tensor lies and where in the data image it goes.
 *
 *     source_add_slab (each)  ->  source_seal (each seal; replaces the inventory)  ->  source_done
 *
 * The trainer is not trusted: sizes and seals of every memfd are checked, each placement has to lie
 * within its slab, and the inventory is taken over before it is parsed.
 */
#ifndef CAIRN_AGENT_SOURCE_H
#define CAIRN_AGENT_SOURCE_H

#include "format/file.h"

/* A tensor that this rank writes. */
struct source_tensor {
        Cairn__Format__Tensor *record; /* extents[0] is its place in the image */
        /* In a slab: the tensor, or the shadow of an ANYTIME one; NULL where only its trainer, or
         * only a process with a GPU, can read it. */
        const unsigned char *live;
        uint32_t slab; /* UINT32_MAX: in none */
        uint64_t slab_offset;
        uint64_t live_bytes; /* as held at run time */
        uint64_t elements;
        uint64_t offset;     /* in the image */
        uint64_t room_bytes; /* reserved there: the larger of runtime and stored size */
};
struct source {
        unsigned char *slabs[SLAB_COUNT_MAX]; /* NULL: memory of a GPU */
        int slab_fds[SLAB_COUNT_MAX];         /* its handle; else -1 */
        uint64_t slab_bytes[SLAB_COUNT_MAX];
        uint32_t slab_count;
        /* of the present seal; seal 0: none */
        uint64_t seal;
        struct arena arena;
        struct file_content inventory;
        struct source_tensor *tensors; /* ascending offsets; in the arena */
        size_t tensor_count;
        uint64_t image_bytes, tensor_bytes;
        bool is_live;         /* all tensors are */
        size_t mapped_tensor; /* where source_populate goes on */
        uint64_t mapped_bytes;
        const void *host;
        uint64_t host_bytes, payload_bytes;
};

void source_init(struct source *s);
void source_done(struct source *s);
/* A GPU's handle is not opened here: no process that lives long holds a context. */
int source_add_slab(struct source *s, uint32_t index, int fd, uint64_t bytes, uint32_t kind,
                    struct cairn_error *reterr);
/* On failure the source has no seal and nothing may be cut from it. */
int source_seal(struct source *s, uint32_t rank, uint64_t seal, int inventory_fd, int host_fd,
                struct cairn_error *reterr);
/* Map the next slice of large tensors' pages, so that the first copy is as fast as a later one.
 * False once all are. Only when the trainer has made its state: a page that is not there is made.
 * */
bool source_populate(struct source *s);

#endif
