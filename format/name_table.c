/* SPDX-License-Identifier: Apache-2.0 */
#include "format/name_table.h"
#include "format/check.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Eight bytes, because the table of a hundred thousand names lives in the second cache. */
struct name_slot {
        uint32_t hash;
        uint32_t item; /* index + 1; 0: free */
};
/* Slots of so many names are asked for before the first one is looked at. */
#define BATCH 16

#define NAME_OFFSET offsetof(Cairn__Format__Tensor, name)
static_assert(NAME_OFFSET == offsetof(Cairn__Format__StateValue, name), "one place for both");

static const ProtobufCBinaryData *name_of(const struct name_table *t, size_t index) {
        return (const void *) ((const char *) t->records[index] + NAME_OFFSET);
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
                              uint64_t hash) {
        for (size_t i = (size_t) hash & t->mask;; i = (i + 1) & t->mask) {
                struct name_slot *slot = &t->slots[i];
                if (slot->item == 0)
                        return slot;
                if (slot->hash != (uint32_t) (hash >> 32))
                        continue;
                const ProtobufCBinaryData *other = name_of(t, slot->item - 1);
                if (bytes_equal(other, name))
                        return slot;
        }
}

static ssize_t add_all(struct name_table *t, size_t count) {
        uint64_t hashes[BATCH];

        for (size_t i = 0; i < count; i++) {
                if (i % BATCH == 0)
                        for (size_t k = 0; k < BATCH && i + k < count; k++) {
                                hashes[k] = hash_name(t, name_of(t, i + k));
                                __builtin_prefetch(&t->slots[hashes[k] & t->mask], 1);
                        }
                struct name_slot *slot = seek(t, name_of(t, i), hashes[i % BATCH]);
                if (slot->item)
                        return (ssize_t) i;
                *slot = (struct name_slot){(uint32_t) (hashes[i % BATCH] >> 32), (uint32_t) i + 1};
        }
        return -1;
}

int name_table_init(struct name_table *t, const void *records, size_t count, ssize_t *ret_same,
                    struct cairn_error *reterr) {
        size_t slots = 16;

        while (slots < count * 2)
                slots *= 2;
        *t = (struct name_table){
                .slots = calloc(slots, sizeof *t->slots), .mask = slots - 1, .records = records};
        if (!t->slots || count >= UINT32_MAX)
                return error_set(reterr, CAIRN_ERR_NOMEM, "allocate name table", "",
                                 "%zu bytes are not available", slots * sizeof *t->slots);
        /* A failure (no such call) leaves the table right and only its order predictable. */
        if (getrandom(&t->seed, sizeof t->seed, GRND_NONBLOCK) != (ssize_t) sizeof t->seed)
                t->seed = (uint64_t) (uintptr_t) t->slots;
        *ret_same = add_all(t, count);
        return 0;
}

void name_table_done(struct name_table *t) {
        if (!t)
                return;
        free(t->slots);
        *t = (struct name_table){0};
}

ssize_t name_table_find(const struct name_table *t, const ProtobufCBinaryData *name) {
        return (ssize_t) seek(t, name, hash_name(t, name))->item - 1;
}
