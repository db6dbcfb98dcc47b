/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/recall.h"

static void copy_bytes(char *target, size_t bytes, const ProtobufCBinaryData *text) {
        size_t n = text->len < bytes ? text->len : bytes - 1;
        if (n)
                memcpy(target, text->data, n);
        target[n] = 0;
}

static void fill(struct start_reply *r, const Cairn__Format__Generation *claim,
                 const Cairn__Format__GenerationStart *start) {
        r->decided = START_FRESH;
        r->checkpoint_step = -1;
        if (start->parent.len > 0) {
                r->decided = START_RESUME;
                copy_bytes(r->checkpoint, sizeof r->checkpoint, &start->parent);
                r->checkpoint_step = start->parent_step;
                r->checkpoint_generation = start->parent_generation;
        } else if (claim->init_from.len > 0) {
                r->decided = START_INIT_FROM;
                copy_bytes(r->checkpoint, sizeof r->checkpoint, &claim->init_from);
        }
}

int generation_recall(const struct store_run *run, uint64_t generation, struct start_reply *ret,
                      struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        struct file_content claim, start;
        char name[NAME_BYTES], start_name[NAME_BYTES];
        struct arena arena;
        *ret = (struct start_reply){.generation = generation};
        name_generation(name, generation);
        name_generation_start(start_name, generation);
        arena_init(&arena, 16 * MiB);
        int r = file_load(io, run->fd, name, FILE_GENERATION, &arena, &claim, NULL, NULL, reterr);
        if (r == 0)
                r = file_load(io, run->fd, start_name, FILE_GENERATION_START, &arena, &start, NULL,
                              NULL, reterr);
        if (r == 0)
                fill(ret, claim.generation, start.generation_start);
        arena_done(&arena);
        return r;
}
