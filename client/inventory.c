/* SPDX-License-Identifier: Apache-2.0 */
#include "client/inventory.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#define INVENTORY_ARENA_BYTES_MAX (64 * GiB)
#define INVENTORY_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)
#define HOST_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static ProtobufCBinaryData borrow(const char *s, size_t bytes) {
        return (ProtobufCBinaryData){bytes, (uint8_t *) (uintptr_t) s};
}

static int no_room(struct cairn_error *reterr) {
        return error_set(reterr, CAIRN_ERR_NOMEM, "seal", "inventory",
                         "memory for the inventory is missing");
}

/* ---- owners of replicated tensors ---- */

struct candidate {
        const struct tensor *tensor;
        size_t index;
};

static int compare_names(const void *a, const void *b) {
        const struct tensor *x = ((const struct candidate *) a)->tensor;
        const struct tensor *y = ((const struct candidate *) b)->tensor;
        size_t bytes = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
        int order = memcmp(x->name, y->name, bytes);
        return order ? order : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

static int elect(struct registry *r, struct candidate *candidates, size_t count, uint32_t rank,
                 struct layout_ranks writers, struct arena *arena, struct cairn_error *reterr) {
        uint64_t *bytes = arena_alloc(arena, (count + 1) * sizeof *bytes, 8);
        const char **names = arena_alloc(arena, (count + 1) * sizeof *names, 8);
        uint32_t *owners = arena_alloc(arena, (count + 1) * sizeof *owners, 8);
        if (!bytes || !names || !owners)
                return no_room(reterr);
        /* The election is the same on every rank because the order is. */
        qsort(candidates, count, sizeof *candidates, compare_names);
        for (size_t i = 0; i < count; i++) {
                bytes[i] = candidates[i].tensor->bytes;
                names[i] = candidates[i].tensor->name;
        }
        TRY(layout_elect_owners(bytes, names, count, writers.count, owners, reterr));
        for (size_t i = 0; i < count; i++)
                r->tensors[candidates[i].index].owned = writers.first + owners[i] == rank;
        return 0;
}

static int assign_owners(struct registry *r, uint32_t rank, struct layout_ranks writers,
                         struct arena *arena, struct cairn_error *reterr) {
        struct candidate *candidates =
                arena_alloc(arena, (r->tensor_count + 1) * sizeof *candidates, 8);
        size_t count = 0;
        if (!candidates)
                return no_room(reterr);
        for (size_t i = 0; i < r->tensor_count; i++) {
                struct tensor *t = &r->tensors[i];
                t->owned = t->alias_of < 0;
                if (t->replicated && t->alias_of < 0 && writers.count > 1)
                        candidates[count++] = (struct candidate){.tensor = t, .index = i};
        }
        return count ? elect(r, candidates, count, rank, writers, arena, reterr) : 0;
}

/* ---- records ---- */

static int fill_shard(Cairn__Format__Tensor *record, const struct tensor *t, struct arena *arena) {
        if (!t->sharded)
                return 0;
        Cairn__Format__Shard *shard = arena_alloc(arena, sizeof *shard, 8);
        if (!shard)
                return CAIRN_ERR_NOMEM;
        cairn__format__shard__init(shard);
        shard->flat = 1;
        shard->flat_start = t->first;
        shard->flat_count = t->count;
        record->shard = shard;
        return 0;
}

static int fill_tensors(const struct registry *r, const struct slabs *slabs, struct arena *arena,
                        struct file_content *content) {
        size_t count = r->tensor_count;
        Cairn__Format__Tensor *records = arena_alloc(arena, (count + 1) * sizeof *records, 8);
        Cairn__Format__Placement *places = arena_alloc(arena, (count + 1) * sizeof *places, 8);
        content->tensors = arena_alloc(arena, (count + 1) * sizeof *content->tensors, 8);
        content->placements = arena_alloc(arena, (count + 1) * sizeof *content->placements, 8);
        if (!records || !places || !content->tensors || !content->placements)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < count; i++) {
                const struct tensor *t = &r->tensors[i];
                Cairn__Format__Tensor *record = content->tensors[i] = &records[i];
                Cairn__Format__Placement *place = content->placements[i] = &places[i];
                cairn__format__tensor__init(record);
                record->name = borrow(t->name, t->name_bytes);
                record->role = t->role;
                record->runtime_dtype = t->dtype;
                record->stored_dtype = t->stored_dtype;
                record->n_shape = t->rank;
                record->shape = (uint64_t *) (uintptr_t) t->shape;
                record->device_class = slabs->device->ops->class;
                record->mutates = t->mutates;
                record->replicated = t->replicated;
                if (t->alias_of >= 0) {
                        const struct tensor *root = &r->tensors[t->alias_of];
                        record->alias_of = borrow(root->name, root->name_bytes);
                }
                TRY(fill_shard(record, t, arena));
                cairn__format__placement__init(place);
                place->slab = t->place.slab;
                place->offset = t->place.offset;
                place->shadow_slab = t->shadow_place.slab;
                place->shadow_offset = t->shadow_place.offset;
                place->owned = t->owned;
                place->elsewhere = t->elsewhere;
        }
        content->tensor_count = content->placement_count = count;
        return 0;
}

static int fill_texts(const struct registry *r, struct arena *arena,
                      Cairn__Format__InventoryHead *head) {
        size_t count = r->description_count;
        Cairn__Format__Text *texts = arena_alloc(arena, (count + 1) * sizeof *texts, 8);
        head->texts = arena_alloc(arena, (count + 1) * sizeof *head->texts, 8);
        if (!texts || !head->texts)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < count; i++) {
                const struct description *d = &r->descriptions[i];
                cairn__format__text__init(&texts[i]);
                texts[i].key = borrow(d->key, strlen(d->key));
                texts[i].value = borrow(d->value, strlen(d->value));
                head->texts[i] = &texts[i];
        }
        head->n_texts = count;
        return 0;
}

static int fill_layout(struct registry *r, struct arena *arena, Cairn__Format__InventoryHead *head,
                       uint64_t *ret_payload_bytes, struct cairn_error *reterr) {
        size_t count = r->value_count;
        struct host_value *values = arena_alloc(arena, (count + 1) * sizeof *values, 8);
        Cairn__Format__StateValue *records = arena_alloc(arena, (count + 1) * sizeof *records, 8);
        head->layout = arena_alloc(arena, (count + 1) * sizeof *head->layout, 8);
        if (!values || !records || !head->layout)
                return no_room(reterr);
        for (size_t i = 0; i < count; i++)
                values[i] = (struct host_value){.name = r->values[i].name,
                                                .type = r->values[i].type,
                                                .capacity = r->values[i].capacity};
        TRY(host_state_layout(values, count, ret_payload_bytes, reterr));
        for (size_t i = 0; i < count; i++) {
                r->values[i].offset = values[i].offset;
                cairn__format__state_value__init(&records[i]);
                records[i].name = borrow(values[i].name, strlen(values[i].name));
                records[i].type = values[i].type;
                records[i].capacity = values[i].capacity;
                head->layout[i] = &records[i];
        }
        head->n_layout = count;
        return 0;
}

/* ---- memfds ---- */

static int write_memfd(const char *name, const void *bytes, size_t count, int *ret_fd,
                       struct cairn_error *reterr) {
        _cleanup_close_ int fd = -1;
        TRY(wire_memfd_create(name, count, &fd, reterr));
        TRY(io_write_all(&io_system, fd, bytes, count, 0, name, reterr));
        TRY(wire_memfd_seal(fd, INVENTORY_SEALS, reterr));
        *ret_fd = TAKE_FD(fd);
        return 0;
}

static int make_host_state(struct inventory *i, struct cairn_error *reterr) {
        _cleanup_close_ int fd = -1;
        uint64_t bytes = host_state_bytes(i->payload_bytes);
        TRY(wire_memfd_create("cairn-host-state", bytes, &fd, reterr));
        TRY(wire_memfd_seal(fd, HOST_SEALS, reterr));
        void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (host == MAP_FAILED)
                return error_set_errno(reterr, errno, "map host state", "memfd");
        i->host = host;
        i->host_bytes = bytes;
        i->host_fd = TAKE_FD(fd);
        if (madvise(host, bytes, MADV_DONTFORK) < 0)
                return error_set_errno(reterr, errno, "keep host state from children", "memfd");
        host_state_init(host, i->payload_bytes);
        return 0;
}

static bool is_pushed(const struct registry *r, const struct slabs *slabs) {
        return r->elsewhere_count > 0 || slabs->device->ops->class != DEVICE_CLASS_HOST;
}

static int name_device(const struct slabs *slabs, struct inventory *i,
                       Cairn__Format__InventoryHead *head, struct cairn_error *reterr) {
        if (slabs->device->ops->class != DEVICE_CLASS_CUDA)
                return 0;
        TRY(device_cuda_uuid(slabs->device, i->device_uuid, reterr));
        i->device_uuid_bytes = sizeof i->device_uuid;
        head->device_uuid = (ProtobufCBinaryData){i->device_uuid_bytes, i->device_uuid};
        return 0;
}

static int build(struct registry *r, const struct slabs *slabs, uint64_t seal, uint32_t rank,
                 struct layout_ranks writers, struct arena *arena, struct inventory *i,
                 struct cairn_error *reterr) {
        Cairn__Format__InventoryHead head = CAIRN__FORMAT__INVENTORY_HEAD__INIT;
        struct file_content content = {.kind = FILE_INVENTORY, .inventory = &head};
        uint64_t slab_bytes[SLAB_COUNT_MAX];
        _cleanup_free_ void *bytes = NULL;
        size_t count;

        TRY(name_device(slabs, i, &head, reterr));
        TRY(assign_owners(r, rank, writers, arena, reterr));
        if (fill_tensors(r, slabs, arena, &content) < 0 || fill_texts(r, arena, &head) < 0)
                return no_room(reterr);
        TRY(fill_layout(r, arena, &head, &i->payload_bytes, reterr));
        for (uint32_t s = 0; s < slabs->count; s++)
                slab_bytes[s] = slabs->items[s].memory.bytes;
        head.seal = seal;
        head.tensor_count = r->tensor_count;
        head.host_state_bytes = i->payload_bytes;
        head.slab_count = slabs->count;
        head.slab_bytes = slab_bytes;
        head.n_slab_bytes = slabs->count;
        TRY(file_write(&content, &bytes, &count, reterr));
        if (count > INVENTORY_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_NOMEM, "seal", "inventory",
                                 "%zu bytes are more than %" PRIu64 ": shorten the names", count,
                                 INVENTORY_BYTES_MAX);
        i->file_bytes = count;
        TRY(write_memfd("cairn-inventory", bytes, count, &i->fd, reterr));
        if (is_pushed(r, slabs))
                TRY(push_plan_make(r, &content, rank, arena, &i->plan, &i->image_bytes, reterr));
        else
                TRY(layout_assign(&content, rank, NULL, &i->image_bytes, reterr));
        return make_host_state(i, reterr);
}

int inventory_build(struct registry *r, const struct slabs *slabs, uint64_t seal, uint32_t rank,
                    struct layout_ranks writers, struct inventory *ret,
                    struct cairn_error *reterr) {
        struct arena arena;
        struct inventory i = INVENTORY_INIT;
        arena_init(&arena, INVENTORY_ARENA_BYTES_MAX);
        int status = build(r, slabs, seal, rank, writers, &arena, &i, reterr);
        arena_done(&arena);
        if (status < 0) {
                inventory_done(&i);
                return status;
        }
        *ret = i;
        return 0;
}

void inventory_done(struct inventory *i) {
        if (i->host)
                (void) munmap(i->host, i->host_bytes);
        push_plan_free(i->plan);
        cleanup_close(&i->fd);
        cleanup_close(&i->host_fd);
        *i = (struct inventory) INVENTORY_INIT;
}

int inventory_pack_values(const struct registry *r, size_t value_count, void *payload,
                          struct cairn_error *reterr) {
        for (size_t i = 0; i < value_count; i++) {
                const struct value *v = &r->values[i];
                char *target = (char *) payload + v->offset;
                if (v->type != CAIRN_VALUE_BYTES) {
                        memcpy(target, v->data, 8);
                        continue;
                }
                uint64_t length = *v->length;
                if (length > v->capacity)
                        return error_set(reterr, CAIRN_ERR_API, "publish host values", v->name,
                                         "its %" PRIu64
                                         " bytes are more than its capacity of %" PRIu64,
                                         length, v->capacity);
                memcpy(target, &length, 8);
                memcpy(target + 8, v->data, length);
                /* Bytes beyond the length are zero: equal states have equal images. */
                memset(target + 8 + length, 0, ((v->capacity + 7) & ~UINT64_C(7)) - length);
        }
        return 0;
}
