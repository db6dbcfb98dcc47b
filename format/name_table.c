/* SPDX-License-Identifier: Apache-2.0 */
#include "format/name_table.h"
#include "base/assert.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct name_slot {
        const ProtobufCBinaryData *name; /* NULL: free */
        uint32_t hash;
        uint32_t index;
};

int name_table_init(struct name_table *t, size_t count_max, struct cairn_error *reterr) {
        size_t slots = 16;

        while (slots < count_max * 2)
                slots *= 2;
        *t = (struct name_table){.slots = calloc(slots, sizeof *t->slots), .mask = slots - 1};
        if (!t->slots)
                return error_set(reterr, CAIRN_ERR_NOMEM, "allocate name table", "",
                                 "%zu bytes are not available", slots * sizeof *t->slots);
        /* A failure (no such call) leaves the table right and only its order predictable. */
        if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != (ssize_t) sizeof t->seed)
                t->seed = (uint64_t) (uintptr_t) t->slots;
        return 0;
}

void name_table_done(struct name_table *t) {
        if (!t)
                return;
        free(t->slots);
        *t = (struct name_table){0};
}

static uint64_t mix(uint64_t hash, uint64_t word) {
        unsigned __int128 product =
                (unsigned __int128) (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
        return (uint64_t) product ^ (uint64_t) (product >> 64);
}

static uint64_t hash_name(const struct name_table *t, const ProtobufCBinaryData *name) {
        uint64_t hash = t->seed ^ name->len, word;
        size_t at = 0;

        for (; name->len - at >= 8; at += 8) {
                memcpy(&word, name->data + at, 8);
                hash = mix(hash, word);
        }
        word = 0;
        if (name->len > at)
                memcpy(&word, name->data + at, name->len - at);
        return mix(mix(hash, word), t->seed);
}

/* The slot that holds the name, or the free one where it belongs. */
static struct name_slot *seek(const struct name_table *t, const ProtobufCBinaryData *name,
                              uint32_t *ret_hash) {
        uint64_t hash = hash_name(t, name);

        *ret_hash = (uint32_t) (hash >> 32);
        for (size_t i = (size_t) hash & t->mask;; i = (i + 1) & t->mask) {
                struct name_slot *slot = &t->slots[i];
                if (!slot->name)
                        return slot;
                if (slot->hash == *ret_hash && slot->name->len == name->len &&
                    memcmp(slot->name->data, name->data, name->len) == 0)
                        return slot;
        }
}

ssize_t name_table_add(struct name_table *t, const ProtobufCBinaryData *name, size_t index) {
        uint32_t hash;
        struct name_slot *slot = seek(t, name, &hash);

        CAIRN_ASSERT(name->len > 0 && index <= UINT32_MAX);
        if (slot->name)
                return slot->index;
        *slot = (struct name_slot){.name = name, .hash = hash, .index = (uint32_t) index};
        return -1;
}

ssize_t name_table_find(const struct name_table *t, const ProtobufCBinaryData *name) {
        uint32_t hash;
        const struct name_slot *slot = seek(t, name, &hash);

        return slot->name ? (ssize_t) slot->index : -1;
}
