/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/world.h"
#include "agent/store.h"
#include "base/assert.h"
#include "format/crc32c.h"
#include "format/layout.h"

#include <stdlib.h>
#include <string.h>

typedef Cairn__Format__Tensor Tensor;

enum { PARTS = 3, VALUES = 12, NAME_ROOM = 48 };
static const char *const suffixes[PARTS] = {".exp_avg", ".exp_avg_sq", ".master"};
static const uint32_t roles[PARTS] = {CAIRN_MOMENT1, CAIRN_MOMENT2, CAIRN_MASTER};

static const char *const value_names[VALUES] = {
        "data.samples", "data.epoch",  "data.seed",  "dropout.seed",
        "phase",        "ema.updates", "good_steps", "updates.skipped",
        "nonfinite",    "early.step",  "early.wait", "optimizer.step"};

static void *take(struct arena *arena, size_t count, size_t bytes) {
        void *memory = arena_alloc(arena, count * bytes + 1, _Alignof(max_align_t));
        CAIRN_ASSERT(memory);
        memset(memory, 0, count * bytes);
        return memory;
}

static ProtobufCBinaryData text(const char *s) {
        return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *) (uintptr_t) s};
}

/* ---- who has what ---- */

static uint64_t elements_of(const struct world *w, size_t parameter) {
        return w->starts[parameter + 1] - w->starts[parameter];
}

/* Where the part of a rank begins among all elements. */
static uint64_t part_begin(const struct world *w, uint32_t rank, uint32_t ranks) {
        return (uint64_t) ((__uint128_t) w->starts[w->parameters] * rank / ranks);
}

/* The first parameter that ends behind this element. */
static size_t parameter_at(const struct world *w, uint64_t element) {
        size_t low = 0, high = w->parameters;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (w->starts[middle + 1] <= element)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* A rank's part of one parameter. */
static void part_of(const struct world *w, size_t parameter, uint32_t rank, uint32_t ranks,
                    uint64_t *ret_first, uint64_t *ret_count) {
        uint64_t begin = part_begin(w, rank, ranks), end = part_begin(w, rank + 1, ranks);
        uint64_t from = w->starts[parameter], to = w->starts[parameter + 1];
        begin = begin < from ? from : begin > to ? to : begin;
        end = end < from ? from : end > to ? to : end;
        *ret_first = begin == end ? 0 : begin - from;
        *ret_count = end - begin;
}

/* ---- records ---- */

struct records {
        struct arena arena;
        struct file_content content;
        size_t capacity;
        Cairn__Format__Placement *placements;
};

static Tensor *add(struct records *r, const char *name, uint32_t role, const uint64_t *elements) {
        struct file_content *c = &r->content;
        Tensor *t = take(&r->arena, 1, sizeof *t);
        CAIRN_ASSERT(c->tensor_count < r->capacity);
        cairn__format__tensor__init(t);
        t->name = text(name);
        t->role = role;
        t->runtime_dtype = t->stored_dtype = CAIRN_F32;
        t->shape = (uint64_t *) (uintptr_t) elements;
        t->n_shape = 1;
        cairn__format__placement__init(&r->placements[c->tensor_count]);
        c->placements[c->tensor_count] = &r->placements[c->tensor_count];
        c->tensors[c->tensor_count++] = t;
        return t;
}

static void add_parameter(struct records *r, const struct world *w, size_t i, uint32_t rank) {
        uint64_t *elements = take(&r->arena, 1, sizeof *elements);
        *elements = elements_of(w, i);
        bool owned = w->owners[i] == rank;
        if (owned || rank == 0) {
                add(r, w->names[i], CAIRN_PARAMETER, elements)->replicated = true;
                r->placements[r->content.tensor_count - 1].owned = owned;
        }
}

static void add_parts(struct records *r, const struct world *w, size_t i, uint32_t rank) {
        uint64_t first, count;
        part_of(w, i, rank, w->ranks, &first, &count);
        for (size_t k = 0; k < PARTS && (count > 0 || rank == 0); k++) {
                uint64_t *elements = take(&r->arena, 1, sizeof *elements);
                char *name = take(&r->arena, 1, NAME_ROOM);
                Cairn__Format__Shard *shard = take(&r->arena, 1, sizeof *shard);
                *elements = elements_of(w, i);
                (void) snprintf(name, NAME_ROOM, "%s%s", w->names[i], suffixes[k]);
                cairn__format__shard__init(shard);
                shard->flat = true;
                shard->flat_start = first;
                shard->flat_count = count;
                add(r, name, roles[k], elements)->shard = shard;
                r->placements[r->content.tensor_count - 1].owned = count > 0;
        }
}

/* What rank 0 registered, or of another rank what layout_in_manifest leaves. */
static void fill_records(struct records *r, const struct world *w, uint32_t rank) {
        struct file_content *c = &r->content;
        r->capacity = rank == 0 ? (PARTS + 1) * w->parameters : 0;
        for (size_t i = 0; rank > 0 && i < w->parameters; i++)
                r->capacity += w->owners[i] == rank;
        uint64_t begin = part_begin(w, rank, w->ranks), end = part_begin(w, rank + 1, w->ranks);
        size_t first = parameter_at(w, begin),
               last = end > begin ? parameter_at(w, end - 1) : first;
        r->capacity += PARTS * (last - first + 1);
        c->tensors = take(&r->arena, r->capacity, sizeof *c->tensors);
        c->placements = take(&r->arena, r->capacity, sizeof *c->placements);
        r->placements = take(&r->arena, r->capacity, sizeof *r->placements);
        for (size_t i = 0; i < w->parameters; i++)
                add_parameter(r, w, i, rank);
        for (size_t i = rank == 0 ? 0 : first; i < (rank == 0 ? w->parameters : last + 1); i++)
                add_parts(r, w, i, rank);
        c->placement_count = c->tensor_count;
        for (size_t i = 0; i < c->tensor_count; i++)
                CAIRN_ASSERT(c->placements[i]->owned || layout_in_manifest(c->tensors[i], rank));
}

static void fill_state(struct records *r, uint32_t rank) {
        struct file_content *c = &r->content;
        Cairn__Format__State *state = take(&r->arena, 1, sizeof *state);
        Cairn__Format__StateValue *values = take(&r->arena, VALUES, sizeof *values);
        cairn__format__state__init(state);
        state->rank = rank;
        state->step = 12;
        state->seq = 12;
        state->values = take(&r->arena, VALUES, sizeof *state->values);
        for (size_t i = 0; i < VALUES; i++) {
                cairn__format__state_value__init(&values[i]);
                values[i].name = text(value_names[i]);
                values[i].type = CAIRN_VALUE_I64;
                values[i].i64 = (int64_t) i * 1000003;
                state->values[i] = &values[i];
        }
        state->n_values = VALUES;
        c->states = take(&r->arena, 1, sizeof *c->states);
        c->states[0] = state;
        c->state_count = 1;
}

/* ---- files ---- */

static void fill_checksums(struct records *r, const struct world *w, const void *header,
                           uint32_t rank, uint64_t image_bytes) {
        struct file_content *c = &r->content;
        uint64_t chunks = (image_bytes + DATA_CHUNK_BYTES - 1) / DATA_CHUNK_BYTES;
        Cairn__Format__ChunkCrcs *crcs = take(&r->arena, 1, sizeof *crcs);
        cairn__format__chunk_crcs__init(crcs);
        crcs->rank = rank;
        crcs->crc32c = take(&r->arena, chunks, sizeof *crcs->crc32c);
        crcs->n_crc32c = chunks;
        for (uint64_t i = 0; i < chunks; i++) {
                uint64_t left = image_bytes - i * DATA_CHUNK_BYTES;
                uint64_t bytes = left < DATA_CHUNK_BYTES ? left : DATA_CHUNK_BYTES;
                uint32_t crc = i == 0 ? crc32c(0, header, DATA_BLOCK_BYTES) : 0;
                crcs->crc32c[i] = crc32c(crc, w->zeros, bytes - (i == 0 ? DATA_BLOCK_BYTES : 0));
        }
        c->chunk_crcs = take(&r->arena, 1, sizeof *c->chunk_crcs);
        c->chunk_crcs[0] = crcs;
        c->chunk_crcs_count = 1;
        for (size_t i = 0; i < c->tensor_count; i++)
                for (size_t k = 0; k < c->tensors[i]->n_extents; k++)
                        c->tensors[i]->extents[k]->crc32c =
                                crc32c(0, w->zeros, c->tensors[i]->extents[k]->bytes);
}

static void fill_head(struct records *r, const struct world *w, uint32_t rank, uint8_t *uuid,
                      uint64_t image_bytes) {
        struct file_content *c = &r->content;
        Cairn__Format__Head *head = c->head = take(&r->arena, 1, sizeof *head);
        cairn__format__head__init(head);
        head->run = text("run");
        head->generation = head->attempt = 1;
        head->rank = rank;
        head->world = w->ranks;
        head->step = 12;
        head->seq = 12;
        head->data_uuid = (ProtobufCBinaryData){.len = 16, .data = uuid};
        head->data_bytes = image_bytes;
        head->tensor_count = c->tensor_count;
        for (size_t i = 0; i < c->tensor_count; i++)
                for (size_t k = 0; k < c->tensors[i]->n_extents; k++)
                        head->tensor_bytes += c->tensors[i]->extents[k]->bytes;
        head->writer = text("test");
        head->replicated_digest = w->digest;
        head->replicated_count = w->digest_count;
}

void world_write(const struct world *w, uint32_t rank, int data_fd, int manifest_fd,
                 uint64_t *ret_records, uint64_t *ret_bytes) {
        struct records r = {.content = {.kind = FILE_MANIFEST}};
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct data_header header = {.rank = rank, .generation = 1, .run = "run"};
        unsigned char block[DATA_BLOCK_BYTES];
        uint64_t image_bytes;
        void *manifest;
        size_t count;
        arena_init(&r.arena, 4 * GiB);
        memcpy(header.uuid, &rank, sizeof rank);
        header.uuid[15] = 1;
        fill_records(&r, w, rank);
        CAIRN_ASSERT(layout_assign(&r.content, rank, &r.arena, &image_bytes, &e) == 0);
        data_header_write(block, &header);
        fill_checksums(&r, w, block, rank, image_bytes);
        fill_state(&r, rank);
        fill_head(&r, w, rank, header.uuid, image_bytes);
        r.content.placements = NULL;
        r.content.placement_count = 0;
        if (file_write(&r.content, &manifest, &count, &e) < 0)
                fprintf(stderr, "%s %s: %s\n", e.operation, e.object, e.message);
        CAIRN_ASSERT(!e.status);
        CAIRN_ASSERT(io_write_all(&io_system, data_fd, block, sizeof block, 0, "data", &e) == 0);
        CAIRN_ASSERT(ftruncate(data_fd, (off_t) image_bytes) == 0);
        CAIRN_ASSERT(io_write_all(&io_system, manifest_fd, manifest, count, 0, "manifest", &e) ==
                     0);
        *ret_records += r.content.tensor_count;
        *ret_bytes += count;
        free(manifest);
        arena_done(&r.arena);
}

/* ---- a trainer ---- */

static void declare(struct registry *registry, struct slabs *slabs, struct cairn_tensor t) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t bytes = 4 * (t.sharded ? t.flat_count : t.shape[0]);
        CAIRN_ASSERT(!bytes || slabs_allocate(slabs, bytes, &t.data, NULL, NULL) == 0);
        CAIRN_ASSERT(registry_add_tensor(registry, slabs, &t, &e) == 0);
}

void world_register(const struct world *w, uint32_t rank, uint32_t ranks, struct registry *registry,
                    struct slabs *slabs) {
        static int64_t values[VALUES];
        struct device *device;
        CAIRN_ASSERT(device_host.open(0, &device, NULL) == 0);
        slabs_init(slabs, device);
        for (size_t i = 0; i < w->parameters; i++)
                declare(registry, slabs,
                        (struct cairn_tensor){CAIRN_TENSOR_INIT, .name = w->names[i],
                                              .role = CAIRN_PARAMETER, .dtype = CAIRN_F32,
                                              .rank = 1, .shape = {elements_of(w, i)},
                                              .replicated = true});
        for (size_t i = 0; i < w->parameters; i++)
                for (size_t k = 0; k < PARTS; k++) {
                        char name[NAME_ROOM];
                        struct cairn_tensor t = {CAIRN_TENSOR_INIT,
                                                 .name = name,
                                                 .role = (enum cairn_role) roles[k],
                                                 .dtype = CAIRN_F32,
                                                 .rank = 1,
                                                 .shape = {elements_of(w, i)},
                                                 .sharded = true};
                        (void) snprintf(name, sizeof name, "%s%s", w->names[i], suffixes[k]);
                        part_of(w, i, rank, ranks, &t.flat_start, &t.flat_count);
                        declare(registry, slabs, t);
                }
        for (size_t i = 0; i < VALUES; i++)
                CAIRN_ASSERT(registry_add_value(registry, value_names[i], CAIRN_VALUE_I64,
                                                &values[i], NULL, 8, NULL) == 0);
}

/* ---- making ---- */

static void digest(struct world *w) {
        Tensor *records = calloc(w->parameters, sizeof *records);
        Tensor **pointers = calloc(w->parameters, sizeof *pointers);
        uint64_t *elements = calloc(w->parameters, sizeof *elements);
        CAIRN_ASSERT(records && pointers && elements);
        for (size_t i = 0; i < w->parameters; i++) {
                pointers[i] = &records[i];
                elements[i] = elements_of(w, i);
                cairn__format__tensor__init(&records[i]);
                records[i].name = text(w->names[i]);
                records[i].role = CAIRN_PARAMETER;
                records[i].runtime_dtype = CAIRN_F32;
                records[i].shape = &elements[i];
                records[i].n_shape = 1;
                records[i].replicated = true;
        }
        w->digest = layout_digest_replicated(pointers, w->parameters, &w->digest_count);
        free(elements);
        free(pointers);
        free(records);
}

void world_init(struct world *w, uint32_t ranks, size_t tensors) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        *w = (struct world){.ranks = ranks, .parameters = tensors / (PARTS + 1)};
        w->names = calloc(w->parameters, sizeof *w->names);
        w->starts = calloc(w->parameters + 1, sizeof *w->starts);
        w->owners = calloc(w->parameters, sizeof *w->owners);
        w->zeros = calloc(1, DATA_CHUNK_BYTES);
        uint64_t *bytes = calloc(w->parameters, sizeof *bytes);
        const char **names = calloc(w->parameters, sizeof *names);
        CAIRN_ASSERT(w->names && w->starts && w->owners && w->zeros && bytes && names);
        for (size_t i = 0; i < w->parameters; i++) {
                (void) snprintf(w->names[i], sizeof w->names[i], "layers.%06u.weight",
                                (unsigned) i % 1000000);
                w->starts[i + 1] = w->starts[i] + 64 + i * 37 % 61 * 16;
                bytes[i] = 4 * elements_of(w, i);
                names[i] = w->names[i];
        }
        CAIRN_ASSERT(layout_elect_owners(bytes, names, w->parameters, ranks, w->owners, &e) == 0);
        free(names);
        free(bytes);
        digest(w);
}

void world_done(struct world *w) {
        free(w->names);
        free(w->starts);
        free(w->owners);
        free(w->zeros);
        *w = (struct world){0};
}
