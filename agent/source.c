/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/source.h"

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "device/device.h"
#include "format/dtype.h"
#include "format/host_state.h"
#include "format/layout.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#define SOURCE_ARENA_BYTES_MAX (8 * GiB)
#define SOURCE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
/* A slice is so short that whoever rings meanwhile hardly waits; the kernel maps the pages of
 * smaller tensors in few faults. */
#define POPULATE_SLICE_BYTES (8 * MiB)
#define POPULATE_TENSOR_BYTES_MIN (256 * KiB)

void source_init(struct source *s) {
        *s = (struct source){0};
        arena_init(&s->arena, SOURCE_ARENA_BYTES_MAX);
}

static void unseal(struct source *s) {
        if (s->host)
                (void) munmap((void *) (uintptr_t) s->host, s->host_bytes);
        s->host = NULL;
        s->seal = 0;
        s->tensors = NULL;
        s->tensor_count = 0;
        s->mapped_tensor = 0;
        s->mapped_bytes = 0;
        arena_clear(&s->arena);
}

void source_done(struct source *s) {
        unseal(s);
        for (uint32_t i = 0; i < s->slab_count; i++)
                if (s->slabs[i])
                        (void) munmap(s->slabs[i], s->slab_bytes[i]);
                else
                        (void) close(s->slab_fds[i]);
        arena_done(&s->arena);
        *s = (struct source){0};
}

static int keep_handle(struct source *s, uint32_t index, int fd, uint64_t bytes,
                       struct cairn_error *reterr) {
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (copy < 0)
                return error_set_errno(reterr, errno, "take slab", "handle");
        s->slabs[index] = NULL;
        s->slab_fds[index] = copy;
        s->slab_bytes[index] = bytes;
        s->slab_count++;
        return 0;
}

int source_add_slab(struct source *s, uint32_t index, int fd, uint64_t bytes, uint32_t kind,
                    struct cairn_error *reterr) {
        uint64_t actual;
        if (index != s->slab_count || index >= SLAB_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "take slab", "",
                                 "slab %u is not the next one, %u is", index, s->slab_count);
        if (kind == DEVICE_HANDLE_CUDA_VMM)
                return keep_handle(s, index, fd, bytes, reterr);
        if (kind != DEVICE_HANDLE_MEMFD)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "take slab", "",
                                 "memory of kind %u cannot be copied by this version", kind);
        TRY(wire_memfd_check(fd, SOURCE_SEALS, bytes, bytes, &actual, reterr));
        void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return error_set_errno(reterr, errno, "map slab", "memfd");
        s->slabs[index] = base;
        s->slab_fds[index] = -1;
        s->slab_bytes[index] = bytes;
        s->slab_count++;
        return 0;
}

/* Take the inventory's bytes over, then parse: their owner may change them at any time. */
static int read_inventory(struct source *s, int fd, struct cairn_error *reterr) {
        uint64_t bytes;
        TRY(wire_memfd_check(fd, SOURCE_SEALS, 1, INVENTORY_BYTES_MAX, &bytes, reterr));
        void *copy = malloc(bytes);
        if (!copy || !arena_adopt(&s->arena, copy, bytes)) {
                free(copy);
                return error_set_errno(reterr, ENOMEM, "read inventory", "");
        }
        TRY(io_read_exact(&io_system, fd, copy, bytes, 0, "inventory", reterr));
        return file_read(copy, bytes, FILE_INVENTORY, "inventory", &s->arena, &s->inventory,
                         reterr);
}

/* The trainer and this process count the same slabs. */
static int check_slabs(const struct source *s, struct cairn_error *reterr) {
        const Cairn__Format__InventoryHead *head = s->inventory.inventory;
        if (head->slab_count > s->slab_count)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "seal", "inventory",
                                 "it names %u slabs, %u were handed over", head->slab_count,
                                 s->slab_count);
        for (uint32_t i = 0; i < head->slab_count; i++)
                if (head->slab_bytes[i] != s->slab_bytes[i])
                        return error_set(reterr, CAIRN_ERR_MISMATCH, "seal", "inventory",
                                         "slab %u has another size", i);
        return 0;
}

static int map_host(struct source *s, int fd, struct cairn_error *reterr) {
        uint64_t wanted = host_state_bytes(s->inventory.inventory->host_state_bytes), bytes;
        TRY(wire_memfd_check(fd, SOURCE_SEALS, wanted, HOST_STATE_BYTES_MAX * 4, &bytes, reterr));
        void *host = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (host == MAP_FAILED)
                return error_set_errno(reterr, errno, "map host state", "memfd");
        s->host = host;
        s->host_bytes = bytes;
        s->payload_bytes = s->inventory.inventory->host_state_bytes;
        return host_state_check(host, bytes, reterr);
}

static int misplaced(const Cairn__Format__Tensor *t, struct cairn_error *reterr) {
        char name[128];
        return error_set(reterr, CAIRN_ERR_API, "place tensor",
                         text_escape(name, sizeof name, (const char *) t->name.data, t->name.len),
                         "it does not lie within a slab that was handed over");
}

/* Where the bytes of an owned tensor are. */
static int place(struct source *s, Cairn__Format__Tensor *t, const Cairn__Format__Placement *p,
                 struct source_tensor *ret, struct cairn_error *reterr) {
        const struct dtype_info *runtime = dtype_info(t->runtime_dtype),
                                *stored = dtype_info(t->stored_dtype);
        bool shadowed = t->mutates == CAIRN_ANYTIME;
        uint32_t slab = shadowed ? p->shadow_slab : p->slab;
        uint64_t at = shadowed ? p->shadow_offset : p->offset, bytes, end;
        uint64_t elements = t->extents[0]->bytes / stored->bytes;
        bool elsewhere = !shadowed && p->elsewhere;
        if (!mul_checked(elements, runtime->bytes, &bytes) ||
            (!elsewhere &&
             (!add_checked(at, bytes, &end) || slab >= s->slab_count || end > s->slab_bytes[slab])))
                return misplaced(t, reterr);
        *ret = (struct source_tensor){
                .record = t,
                .live = elsewhere || !s->slabs[slab] ? NULL : s->slabs[slab] + at,
                .slab = elsewhere ? UINT32_MAX : slab,
                .slab_offset = at,
                .live_bytes = bytes,
                .elements = elements,
                .offset = t->extents[0]->offset,
                .room_bytes = bytes > t->extents[0]->bytes ? bytes : t->extents[0]->bytes};
        return 0;
}

static int place_all(struct source *s, struct cairn_error *reterr) {
        const struct file_content *c = &s->inventory;
        s->tensors = arena_alloc(&s->arena, (c->tensor_count + 1) * sizeof *s->tensors, 8);
        if (!s->tensors)
                return error_set_errno(reterr, ENOMEM, "place tensors", "");
        s->tensor_bytes = 0;
        s->is_live = true;
        for (size_t i = 0; i < c->tensor_count; i++) {
                if (c->tensors[i]->n_extents == 0)
                        continue; /* empty, tied, or another rank's */
                TRY(place(s, c->tensors[i], c->placements[i], &s->tensors[s->tensor_count],
                          reterr));
                s->is_live = s->is_live && s->tensors[s->tensor_count].live;
                s->tensor_bytes += s->tensors[s->tensor_count++].live_bytes;
        }
        return 0;
}

bool source_populate(struct source *s) {
        uint64_t left = POPULATE_SLICE_BYTES;
        if (!s->is_live)
                return false;
        while (s->mapped_tensor < s->tensor_count && left > 0) {
                const struct source_tensor *t = &s->tensors[s->mapped_tensor];
                const unsigned char *from = t->live + s->mapped_bytes;
                uint64_t part = t->live_bytes - s->mapped_bytes;
                part = part < left ? part : left;
                if (t->live_bytes >= POPULATE_TENSOR_BYTES_MIN) {
                        uint64_t before = (uintptr_t) from % DATA_BLOCK_BYTES;
                        /* Where the kernel cannot, the copy maps them. */
                        (void) madvise((void *) (uintptr_t) (from - before), part + before,
                                       MADV_POPULATE_READ);
                        left -= part;
                }
                s->mapped_bytes += part;
                if (s->mapped_bytes < t->live_bytes)
                        break;
                s->mapped_tensor++;
                s->mapped_bytes = 0;
        }
        return s->mapped_tensor < s->tensor_count;
}

int source_seal(struct source *s, uint32_t rank, uint64_t seal, int inventory_fd, int host_fd,
                struct cairn_error *reterr) {
        unseal(s);
        int r = read_inventory(s, inventory_fd, reterr);
        if (r == 0 && s->inventory.inventory->seal != seal)
                r = error_set(reterr, CAIRN_ERR_MISMATCH, "seal", "inventory",
                              "it is of another seal than announced");
        if (r == 0)
                r = check_slabs(s, reterr);
        if (r == 0)
                r = layout_assign(&s->inventory, rank, &s->arena, &s->image_bytes, reterr);
        if (r == 0)
                r = map_host(s, host_fd, reterr);
        if (r == 0)
                r = place_all(s, reterr);
        if (r == 0)
                s->seal = seal;
        else
                unseal(s);
        return r;
}
