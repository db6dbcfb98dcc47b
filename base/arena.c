/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (64 * KiB)

struct arena_block {
        struct arena_block *next;
        void *adopted; /* NULL, or all that the block stands for */
        size_t bytes, bytes_used;
        unsigned char data[];
};

void arena_init(struct arena *a, uint64_t bytes_max) {
        *a = (struct arena){.bytes_max = bytes_max};
}

void arena_clear(struct arena *a) {
        for (struct arena_block *block = a->head, *next; block; block = next) {
                next = block->next;
                free(block->adopted);
                free(block);
        }
        arena_init(a, a->bytes_max);
}

void arena_done(struct arena *a) {
        if (a)
                arena_clear(a);
}

void arena_seal(struct arena *a) {
        a->sealed = true;
}

/* From the head block, NULL if it has no room. */
static void *take(struct arena_block *block, size_t bytes, size_t alignment) {
        uintptr_t at = (uintptr_t) block->data + block->bytes_used;
        size_t padding = (size_t) (-at & (alignment - 1));
        size_t room = block->bytes - block->bytes_used;

        if (padding > room || bytes > room - padding)
                return NULL;
        block->bytes_used += padding + bytes;
        return (unsigned char *) at + padding;
}

/* Whole blocks count against the limit, since they are what the process pays. calloc'ed memory is
 * handed out once, so it is still zero. */
static bool add_block(struct arena *a, uint64_t bytes_min) {
        uint64_t left = a->bytes_max - a->bytes_used;
        uint64_t bytes = bytes_min > BLOCK_BYTES ? bytes_min : BLOCK_BYTES;

        if (bytes_min > left || bytes_min > SIZE_MAX - sizeof(struct arena_block))
                return false;
        if (bytes > left)
                bytes = left;
        struct arena_block *block = calloc(1, sizeof *block + (size_t) bytes);
        if (!block)
                return false;
        block->bytes = (size_t) bytes;
        block->next = a->head;
        a->head = block;
        a->bytes_used += bytes;
        return true;
}

void *arena_alloc(struct arena *a, size_t bytes, size_t alignment) {
        uint64_t bytes_min;

        CAIRN_ASSERT(!a->sealed);
        CAIRN_ASSERT(alignment > 0 && (alignment & (alignment - 1)) == 0);
        if (bytes == 0)
                bytes = 1; /* so that NULL always means the limit */
        void *p = a->head ? take(a->head, bytes, alignment) : NULL;
        if (p)
                return p;
        /* A block's data starts aligned for pointers; only more than that needs padding. */
        size_t padding = alignment > _Alignof(struct arena_block) ? alignment - 1 : 0;
        if (!add_checked(bytes, padding, &bytes_min) || !add_block(a, bytes_min))
                return NULL;
        return take(a->head, bytes, alignment);
}

bool arena_adopt(struct arena *a, void *memory, size_t bytes) {
        CAIRN_ASSERT(!a->sealed);
        struct arena_block *block =
                bytes <= a->bytes_max - a->bytes_used ? calloc(1, sizeof *block) : NULL;
        if (!block)
                return false;
        block->adopted = memory;
        /* Behind the head, which may have room yet. */
        struct arena_block **at = a->head ? &a->head->next : &a->head;
        block->next = *at;
        *at = block;
        a->bytes_used += bytes;
        return true;
}

char *arena_strndup(struct arena *a, const char *s, size_t bytes) {
        size_t length = bytes ? strnlen(s, bytes) : 0; /* no bytes may have no address */
        char *copy = arena_alloc(a, length + 1, 1);
        if (copy && length)
                memcpy(copy, s, length);
        return copy;
}
