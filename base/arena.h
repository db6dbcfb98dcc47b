/* SPDX-License-Identifier: Apache-2.0
 *
 * arena.h - bump allocation with a hard limit; freed as a whole.
 *
 *     struct arena a;
 *     arena_init(&a, 64 * MiB);
 *     p = arena_alloc(&a, bytes, alignment);   // zeroed; NULL when the limit is reached
 *     arena_done(&a);
 *
 * Owned by the caller, one thread. Grows in blocks (malloc), never beyond bytes_max. arena_seal
 * makes any later allocation a programmer error.
 */
#ifndef CAIRN_ARENA_H
#define CAIRN_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena_block;
struct arena {
        struct arena_block *head;
        uint64_t bytes_used;
        uint64_t bytes_max;
        bool sealed;
};

void arena_init(struct arena *a, uint64_t bytes_max);
void arena_done(struct arena *a);
void arena_clear(struct arena *a); /* frees all blocks, keeps the limit */
void arena_seal(struct arena *a);
void *arena_alloc(struct arena *a, size_t bytes, size_t alignment);
char *arena_strndup(struct arena *a, const char *s, size_t bytes);
/* Takes over memory of malloc: it counts, and is freed, like the arena's own. False: it is beyond
 * the limit or there is no memory; it stays the caller's. */
bool arena_adopt(struct arena *a, void *memory, size_t bytes);

#endif
