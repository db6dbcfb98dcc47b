/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/haul.h"
#include "agent/survey.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "format/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Cairn__Peer__HeldGeneration HeldGeneration;
typedef Cairn__Peer__Held Held;
typedef Cairn__Peer__HeldNode HeldNode;

#define ARENA_FACTOR 64
#define ARENA_BYTES_MIN (1 * MiB)

static const char operation[] = "survey node";

static ProtobufCBinaryData text_of(const char *text) {
        return (ProtobufCBinaryData){strlen(text), (uint8_t *) (uintptr_t) text};
}

/* ---- writing ---- */

struct rows {
        struct arena arena;
        Cairn__Peer__Holds holds;
};

static void *take(struct rows *r, size_t count, size_t bytes) {
        return arena_alloc(&r->arena, (count + 1) * bytes, _Alignof(max_align_t));
}

static int fill_generations(struct rows *r, const struct run_scan *scan) {
        HeldGeneration *rows = take(r, scan->generation_count, sizeof *rows);

        r->holds.generations = take(r, scan->generation_count, sizeof(void *));
        if (!rows || !r->holds.generations)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < scan->generation_count; i++) {
                const struct scan_generation *g = &scan->generations[i];
                HeldGeneration *h = r->holds.generations[i] = &rows[i];
                cairn__peer__held_generation__init(h);
                h->generation = g->generation;
                h->started = g->started;
                h->parent = text_of(g->parent);
                h->parent_step = g->parent_step;
                h->parent_generation = g->parent_generation;
                h->world = g->world;
        }
        r->holds.n_generations = scan->generation_count;
        return 0;
}

static int fill_checkpoints(struct rows *r, const struct run_scan *scan) {
        Held *rows = take(r, scan->checkpoint_count, sizeof *rows);
        Cairn__Control__Failure *failures = take(r, scan->checkpoint_count, sizeof *failures);

        r->holds.checkpoints = take(r, scan->checkpoint_count, sizeof(void *));
        if (!rows || !failures || !r->holds.checkpoints)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                const struct scan_checkpoint *c = &scan->checkpoints[i];
                Held *h = r->holds.checkpoints[i] = &rows[i];
                cairn__peer__held__init(h);
                h->generation = c->generation;
                h->attempt = c->attempt;
                h->step = c->step;
                h->is_attempt = c->is_attempt;
                h->validity = c->validity;
                h->record_crc32c = c->record_crc32c;
                h->bytes = c->bytes;
                h->time_ns = c->time_ns;
                if (c->error.status >= 0)
                        continue;
                cairn__control__failure__init(&failures[i]);
                wire_failure_fill(&failures[i], &c->error);
                h->failure = &failures[i];
        }
        r->holds.n_checkpoints = scan->checkpoint_count;
        return 0;
}

static int fill_nodes(struct rows *r, const struct run_scan *scan) {
        HeldNode *rows = take(r, scan->node_count, sizeof *rows);

        r->holds.nodes = take(r, scan->node_count, sizeof(void *));
        if (!rows || !r->holds.nodes)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < scan->node_count; i++) {
                HeldNode *h = r->holds.nodes[i] = &rows[i];
                cairn__peer__held_node__init(h);
                h->node = text_of(scan->nodes[i].node);
                h->first_rank = scan->nodes[i].first_rank;
                h->ranks = scan->nodes[i].ranks;
        }
        r->holds.n_nodes = scan->node_count;
        return 0;
}

int survey_write(const struct run_scan *scan, const uint8_t store_id[16], int *ret_memfd,
                 struct cairn_error *reterr) {
        struct rows r = {.holds = CAIRN__PEER__HOLDS__INIT};
        int status;

        arena_init(&r.arena, UINT64_C(1) << 32);
        r.holds.store_id = (ProtobufCBinaryData){16, (uint8_t *) (uintptr_t) store_id};
        r.holds.node = text_of(scan->node);
        r.holds.generation_max = scan->generation_max;
        r.holds.finished = scan->finished;
        r.holds.finished_reason = text_of(scan->finished_reason);
        r.holds.finished_step = scan->finished_step;
        if (fill_generations(&r, scan) < 0 || fill_checkpoints(&r, scan) < 0 ||
            fill_nodes(&r, scan) < 0)
                status = error_set_errno(reterr, ENOMEM, operation, "holds");
        else
                status = haul_pack(&r.holds.base, ret_memfd, reterr);
        arena_done(&r.arena);
        return status;
}

/* ---- reading ---- */

static int bad(struct cairn_error *reterr, const char *what) {
        return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "holds", "%s", what);
}

static bool copy_text(char *target, size_t bytes, const ProtobufCBinaryData *text) {
        if (text->len >= bytes || !text_is_plain((const char *) text->data, text->len))
                return false;
        if (text->len)
                memcpy(target, text->data, text->len);
        target[text->len] = '\0';
        return true;
}

static int read_generations(struct run_scan *scan, const Cairn__Peer__Holds *h,
                            struct cairn_error *reterr) {
        scan->generations = calloc(h->n_generations + 1, sizeof *scan->generations);
        if (!scan->generations)
                return error_set_errno(reterr, ENOMEM, operation, "holds");
        for (size_t i = 0; i < h->n_generations; i++) {
                const HeldGeneration *g = h->generations[i];
                struct scan_generation *to = &scan->generations[scan->generation_count++];
                *to = (struct scan_generation){.generation = g->generation,
                                               .started = g->started,
                                               .parent_step = g->parent_step,
                                               .parent_generation = g->parent_generation,
                                               .world = g->world,
                                               .error = CAIRN_ERROR_INIT};
                if (g->generation == 0 || g->generation > h->generation_max ||
                    (i > 0 && g->generation <= to[-1].generation))
                        return bad(reterr, "its generations do not ascend");
                if (!copy_text(to->parent, sizeof to->parent, &g->parent) ||
                    g->parent_generation >= g->generation || g->parent_step < 0 ||
                    g->parent_step > STEP_MAX || g->world > RANK_COUNT_MAX)
                        return bad(reterr, "a generation has no possible parent or world");
        }
        scan->generation_max = h->generation_max;
        return 0;
}

static int read_checkpoints(struct run_scan *scan, const Cairn__Peer__Holds *h,
                            struct cairn_error *reterr) {
        scan->checkpoints = calloc(h->n_checkpoints + 1, sizeof *scan->checkpoints);
        if (!scan->checkpoints)
                return error_set_errno(reterr, ENOMEM, operation, "holds");
        for (size_t i = 0; i < h->n_checkpoints; i++) {
                const Held *c = h->checkpoints[i];
                struct scan_checkpoint *to = &scan->checkpoints[scan->checkpoint_count++];
                if (c->generation == 0 || c->step < -1 || c->step > STEP_MAX ||
                    c->validity > CHECKPOINT_ROLLABLE ||
                    (c->step < 0 && c->validity != CHECKPOINT_DAMAGED &&
                     c->validity != CHECKPOINT_UNCHECKED) ||
                    (c->validity == CHECKPOINT_ROLLABLE && !c->is_attempt) ||
                    (c->step < 0 && !c->is_attempt))
                        return bad(reterr, "a checkpoint is not possible");
                *to = (struct scan_checkpoint){.generation = c->generation,
                                               .attempt = c->attempt,
                                               .step = c->step,
                                               .is_attempt = c->is_attempt,
                                               .validity = (enum checkpoint_validity) c->validity,
                                               .record_crc32c = c->record_crc32c,
                                               .bytes = c->bytes,
                                               .time_ns = c->time_ns,
                                               .error = CAIRN_ERROR_INIT};
                if (c->failure)
                        wire_failure_read(c->failure, &to->error);
        }
        return 0;
}

static int read_nodes(struct run_scan *scan, const Cairn__Peer__Holds *h,
                      struct cairn_error *reterr) {
        scan->nodes = calloc(h->n_nodes + 1, sizeof *scan->nodes);
        if (!scan->nodes)
                return error_set_errno(reterr, ENOMEM, operation, "holds");
        for (size_t i = 0; i < h->n_nodes; i++) {
                struct scan_node *to = &scan->nodes[scan->node_count++];
                if (!copy_text(to->node, sizeof to->node, &h->nodes[i]->node) || !*to->node)
                        return bad(reterr, "a node has no name");
                to->first_rank = h->nodes[i]->first_rank;
                to->ranks = h->nodes[i]->ranks;
        }
        return 0;
}

static int read_holds(struct survey_node *node, const Cairn__Peer__Holds *h,
                      struct cairn_error *reterr) {
        struct run_scan *scan = &node->scan;

        if (h->store_id.len != sizeof node->store_id)
                return bad(reterr, "its store has no id");
        memcpy(node->store_id, h->store_id.data, sizeof node->store_id);
        if (!copy_text(scan->node, sizeof scan->node, &h->node) ||
            !copy_text(scan->finished_reason, sizeof scan->finished_reason, &h->finished_reason))
                return bad(reterr, "a text is too long, or no text");
        scan->finished = h->finished;
        scan->finished_step = h->finished_step;
        TRY(read_generations(scan, h, reterr));
        TRY(read_checkpoints(scan, h, reterr));
        return read_nodes(scan, h, reterr);
}

static void *arena_take(void *context, size_t bytes) {
        return arena_alloc(context, bytes, _Alignof(max_align_t));
}

static void arena_leave(void *context, void *memory) {
        (void) context;
        (void) memory;
}

int survey_read(const void *bytes, size_t count, struct survey_node *ret,
                struct cairn_error *reterr) {
        _cleanup_(arena_done) struct arena arena;
        struct survey_node node = {.place = ret->place};

        arena_init(&arena, ARENA_BYTES_MIN + ARENA_FACTOR * (uint64_t) count);
        if (count > HAUL_HOLDS_BYTES_MAX)
                return bad(reterr, "it is too long");
        ProtobufCAllocator allocator = {arena_take, arena_leave, &arena};
        const Cairn__Peer__Holds *h = cairn__peer__holds__unpack(&allocator, count, bytes);
        if (!h)
                return bad(reterr, "it cannot be read");
        int r = read_holds(&node, h, reterr);
        if (r < 0)
                survey_node_done(&node);
        else
                *ret = node;
        return r;
}

void survey_node_done(struct survey_node *node) {
        run_scan_done(&node->scan);
        *node = (struct survey_node){0};
}
