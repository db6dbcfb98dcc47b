/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slab.h"
#include "base/bytes.h"
#include <inttypes.h>

#define SLAB_BYTES_FIRST (16 * MiB)

void slabs_init(struct slabs *s, struct device *device) {
        s->device = device;
        s->count = 0;
}

void slabs_done(struct slabs *s) {
        while (s->count > 0)
                s->device->ops->release(s->device, &s->items[--s->count].memory);
}

static int slabs_grow(struct slabs *s, uint64_t bytes, struct cairn_error *reterr) {
        if (s->count == SLAB_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_NOMEM, "allocate tensor memory", "",
                                 "all %d slabs are in use: allocate fewer, larger pieces",
                                 SLAB_COUNT_MAX);
        uint64_t target = SLAB_BYTES_FIRST;
        if (s->count > 0 && s->items[s->count - 1].memory.bytes <= SLAB_BYTES_MAX / 2)
                target = 2 * s->items[s->count - 1].memory.bytes;
        if (target < bytes)
                target = bytes;
        struct slab *slab = &s->items[s->count];
        *slab = (struct slab){.memory = DEVICE_MEMORY_INIT};
        TRY(s->device->ops->allocate(s->device, target, &slab->memory, reterr));
        s->count++;
        return 0;
}

int slabs_allocate(struct slabs *s, uint64_t bytes, void **ret, struct slab_place *ret_place,
                   struct cairn_error *reterr) {
        /* A request of nothing still gets an address of its own. */
        uint64_t rounded;
        if (!align_up_checked(bytes ? bytes : 1, TENSOR_ALIGNMENT, &rounded) ||
            rounded > SLAB_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "allocate tensor memory", "",
                                 "%" PRIu64 " bytes are more than %" PRIu64, bytes, SLAB_BYTES_MAX);
        struct slab *slab = s->count ? &s->items[s->count - 1] : NULL;
        if (!slab || rounded > slab->memory.bytes - slab->used) {
                TRY(slabs_grow(s, rounded, reterr));
                slab = &s->items[s->count - 1];
        }
        *ret = (char *) slab->memory.address + slab->used;
        if (ret_place)
                *ret_place = (struct slab_place){.slab = s->count - 1, .offset = slab->used};
        slab->used += rounded;
        return 0;
}

bool slabs_find(const struct slabs *s, const void *data, uint64_t bytes, struct slab_place *ret) {
        uintptr_t address = (uintptr_t) data;
        /* From the newest: tensors are usually registered as they are allocated. */
        for (uint32_t i = s->count; i-- > 0;) {
                const struct slab *slab = &s->items[i];
                uintptr_t base = (uintptr_t) slab->memory.address;
                if (address < base || address - base > slab->used ||
                    bytes > slab->used - (address - base))
                        continue;
                *ret = (struct slab_place){.slab = i, .offset = address - base};
                return true;
        }
        return false;
}

bool slabs_touch(const struct slabs *s, const void *data, uint64_t bytes) {
        uintptr_t address = (uintptr_t) data;
        for (uint32_t i = 0; i < s->count; i++) {
                const struct device_memory *m = &s->items[i].memory;
                uintptr_t base = (uintptr_t) m->address;
                if (address < base ? base - address < bytes : address - base < m->bytes)
                        return true;
        }
        return false;
}
