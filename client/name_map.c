/* SPDX-License-Identifier: Apache-2.0 */
#include "client/name_map.h"
#include "format/crc32c.h"
#include <stdlib.h>
#include <string.h>

void name_map_done(struct name_map *m) {
        free(m->slots);
        *m = (struct name_map){0};
}

/* The slot that holds the name, or the empty one where it would go. */
static struct name_map_slot *name_map_slot(const struct name_map *m, const void *name, size_t bytes,
                                           uint32_t hash) {
        /* CRCs of names that differ in a digit lie side by side; the product spreads them. */
        size_t first = (size_t) ((hash * UINT64_C(0x9e3779b97f4a7c15)) >> 32);
        for (size_t i = first & (m->capacity - 1);; i = (i + 1) & (m->capacity - 1)) {
                struct name_map_slot *s = &m->slots[i];
                if (!s->name)
                        return s;
                if (s->hash == hash && s->bytes == bytes && memcmp(s->name, name, bytes) == 0)
                        return s;
        }
}

bool name_map_find(const struct name_map *m, const void *name, size_t bytes, uint32_t *ret) {
        if (m->count == 0)
                return false;
        const struct name_map_slot *s = name_map_slot(m, name, bytes, crc32c(0, name, bytes));
        if (!s->name)
                return false;
        if (ret)
                *ret = s->value;
        return true;
}

static int name_map_grow(struct name_map *m) {
        struct name_map larger = {.capacity = m->capacity ? m->capacity * 2 : 64,
                                  .count = m->count};
        larger.slots = calloc(larger.capacity, sizeof *larger.slots);
        if (!larger.slots)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < m->capacity; i++) {
                const struct name_map_slot *s = &m->slots[i];
                if (s->name)
                        *name_map_slot(&larger, s->name, s->bytes, s->hash) = *s;
        }
        free(m->slots);
        *m = larger;
        return 0;
}

int name_map_add(struct name_map *m, const char *name, size_t bytes, uint32_t value) {
        /* Two thirds full at most, or the walks get long. */
        if (m->count * 3 >= m->capacity * 2)
                TRY(name_map_grow(m));
        uint32_t hash = crc32c(0, name, bytes);
        struct name_map_slot *s = name_map_slot(m, name, bytes, hash);
        if (s->name)
                return CAIRN_ERR_EXISTS;
        *s = (struct name_map_slot){.name = name, .bytes = bytes, .hash = hash, .value = value};
        m->count++;
        return 0;
}
