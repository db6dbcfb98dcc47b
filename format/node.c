/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of one node of several (scan.h): marks/NODE says which, and the generations which
 * ranks those are.
 */
#include "base/cleanup.h"
#include "format/check.h"
#include "format/scan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CLAIM_ARENA_BYTES_MAX (16 * GiB)

int node_read(const struct io_ops *io, int run_dirfd, char ret[SCAN_NODE_BYTES],
              struct cairn_error *reterr) {
        _cleanup_(arena_done) struct arena arena;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct file_content content;

        arena_init(&arena, 2 * MiB);
        ret[0] = '\0';
        int r = file_load(io, run_dirfd, MARKS_NAME "/" NODE_NAME, FILE_MARK, &arena, &content,
                          NULL, NULL, &e);
        if (r == CAIRN_ERR_NOTFOUND)
                return 0;
        if (r < 0) {
                if (reterr)
                        *reterr = e;
                return r;
        }
        const ProtobufCBinaryData *name = &content.mark->reason;
        if (content.mark->kind != FILE_MARK_NODE || name->len == 0 || name->len >= SCAN_NODE_BYTES)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read mark", MARKS_NAME "/" NODE_NAME,
                                 "it names no node");
        memcpy(ret, name->data, name->len);
        ret[name->len] = '\0';
        return 0;
}

void node_ranks(const Cairn__Format__Generation *g, const char *node, uint32_t *ret_first,
                uint32_t *ret_count) {
        *ret_first = *ret_count = 0;
        for (size_t i = 0; i < g->n_members; i++) {
                if (!bytes_are(&g->members[i]->host, node))
                        continue;
                if (*ret_count == 0)
                        *ret_first = g->members[i]->rank;
                if (g->members[i]->rank != *ret_first + *ret_count)
                        return; /* what follows is no node's block of ranks */
                ++*ret_count;
        }
}

int checkpoint_here(const struct io_ops *io, int run_dirfd, uint64_t generation, uint32_t world,
                    struct scan_node *ret, struct cairn_error *reterr) {
        _cleanup_(arena_done) struct arena arena;
        struct file_content claim;
        char name[NAME_BYTES];

        arena_init(&arena, CLAIM_ARENA_BYTES_MAX);
        *ret = (struct scan_node){.ranks = world};
        TRY(node_read(io, run_dirfd, ret->node, reterr));
        if (!*ret->node)
                return 0;
        name_generation(name, generation);
        TRY(file_load(io, run_dirfd, name, FILE_GENERATION, &arena, &claim, NULL, NULL, reterr));
        node_ranks(claim.generation, ret->node, &ret->first_rank, &ret->ranks);
        if (ret->ranks == 0 || claim.generation->world != world)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "read claim", name,
                                 "this is the folder of node %s, and the generation gives it no "
                                 "ranks, or is not of %" PRIu32 " ranks",
                                 ret->node, world);
        return 0;
}
