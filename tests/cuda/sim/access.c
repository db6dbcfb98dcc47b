/* SPDX-License-Identifier: Apache-2.0
 *
 * Every read and write of a kernel, told by the hooks that -fsanitize=thread puts in: bounds,
 * alignment, shared memory that nobody wrote, races.
 *
 * Each byte of shared memory and of cudaMalloc's has a cell: who wrote it last, and two of those
 * who have read it since. Words of four bytes that were only used as such have one together.
 * A thread's life is a row of segments, divided by barriers; a cell names segments. An earlier
 * access is fine if it belongs to an earlier launch, to the same thread, or to the same block (or
 * warp) before a barrier that the thread has passed since; otherwise, with a write among the two,
 * it is a race. One of any number of readers is enough to see a race with a writer, unless that
 * reader is the writer: hence two.
 */
#include "device/cuda_abi.h"
#include "tests/cuda/sim/sim.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void) (address), (void) (bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void) (address), (void) (bytes))
#endif

#define ATOMIC 0x80000000u
#define DIVIDED 0xffffffffu      /* a word's write: its bytes have cells of their own */
#define SEGMENTS_MAX 0x40000000u /* then the cells begin anew */

struct cell {
        uint32_t write, read[2];
};
struct segment {
        unsigned thread, barriers, warp_barriers;
};
struct region {
        uintptr_t begin;
        size_t bytes, mapped;
        struct cell *words, *cells; /* of four bytes, of one; NULL: none was touched yet */
        bool of_launch;             /* not the runtime's: it may be gone by the next one */
};
enum access_kind { READ, WRITE, UPDATE };
static const char *const verbs[] = {"reads", "writes", "updates"};

static struct {
        struct region *regions; /* under sim_lock: they do not change while a kernel runs */
        size_t region_count, region_room, last;
        struct segment *segments; /* of this block, from block_first */
        size_t segment_room;
        uint32_t launch_first, block_first, current, next;
        struct segment now;
} seen = {.next = 1};

static _Thread_local bool watches __attribute__((tls_model("initial-exec")));
static struct cell arena_cells[SIM_ARENA_BYTES];
static bool arena_allocated[SIM_ARENA_BYTES];

/* ---- memory ---- */

static void *grown(void *array, size_t count, size_t *room, size_t each) {
        if (count < *room)
                return array;
        *room = *room ? 2 * *room : 64;
        array = realloc(array, *room * each);
        if (!array)
                abort();
        return array;
}

enum { WORD = 4 };

static struct cell *cells_new(size_t count) {
        void *cells = mmap(NULL, count * sizeof(struct cell), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (cells == MAP_FAILED)
                abort();
        return cells;
}

static size_t word_count(const struct region *r) {
        return (r->bytes + WORD - 1) / WORD;
}

static void cells_free(struct region *r) {
        if (r->words) {
                (void) munmap(r->words, word_count(r) * sizeof *r->words);
                (void) munmap(r->cells, word_count(r) * WORD * sizeof *r->cells);
        }
        r->words = r->cells = NULL;
}

static void region_add(struct region r) {
        seen.regions =
                grown(seen.regions, seen.region_count, &seen.region_room, sizeof *seen.regions);
        seen.regions[seen.region_count++] = r;
}

void sim_memory_add(void *begin, size_t bytes, size_t mapped) {
        sim_lock();
        region_add((struct region){.begin = (uintptr_t) begin, .bytes = bytes, .mapped = mapped});
        sim_unlock();
        ASAN_POISON_MEMORY_REGION((unsigned char *) begin + bytes, mapped - bytes);
}

void sim_memory_remove(void *begin) {
        sim_lock();
        for (size_t i = 0; i < seen.region_count; i++) {
                struct region *r = &seen.regions[i];
                if (r->begin != (uintptr_t) begin)
                        continue;
                ASAN_UNPOISON_MEMORY_REGION(begin, r->mapped);
                cells_free(r);
                *r = seen.regions[--seen.region_count];
                break;
        }
        seen.last = 0;
        sim_unlock();
}

static struct region *region_of(uintptr_t address) {
        if (seen.last < seen.region_count &&
            address - seen.regions[seen.last].begin < seen.regions[seen.last].mapped)
                return &seen.regions[seen.last];
        for (size_t i = 0; i < seen.region_count; i++)
                if (address - seen.regions[i].begin < seen.regions[i].mapped) {
                        seen.last = i;
                        return &seen.regions[i];
                }
        return NULL;
}

void sim_access_mapped(void *begin, size_t bytes) {
        if (region_of((uintptr_t) begin))
                return;
        region_add((struct region){
                .begin = (uintptr_t) begin, .bytes = bytes, .mapped = bytes, .of_launch = true});
}

static void forget_mapped(void) {
        size_t kept = 0;
        for (size_t i = 0; i < seen.region_count; i++)
                if (seen.regions[i].of_launch)
                        cells_free(&seen.regions[i]);
                else
                        seen.regions[kept++] = seen.regions[i];
        seen.region_count = kept;
        seen.last = 0;
}

/* ---- who runs ---- */

void sim_access_launch(bool watched) {
        forget_mapped();
        if (seen.next > SEGMENTS_MAX) {
                for (size_t i = 0; i < seen.region_count; i++)
                        cells_free(&seen.regions[i]);
                memset(arena_cells, 0, sizeof arena_cells);
                seen.next = 1;
        }
        seen.launch_first = seen.next;
        memset(arena_allocated, 0, sizeof arena_allocated);
        watches = watched;
}

void sim_access_block(void) {
        seen.block_first = seen.next;
}

void sim_access_segment(unsigned thread, unsigned barriers, unsigned warp_barriers) {
        size_t index = seen.next - seen.block_first;
        seen.segments = grown(seen.segments, index, &seen.segment_room, sizeof *seen.segments);
        seen.now = (struct segment){thread, barriers, warp_barriers};
        seen.segments[index] = seen.now;
        seen.current = seen.next++;
}

void sim_access_end(void) {
        watches = false;
}

void sim_access_shared(const void *begin, size_t bytes) {
        size_t at = (size_t) ((const unsigned char *) begin - sim_arena);
        memset(arena_allocated + at, true, bytes);
        memset(arena_cells + at, 0, bytes * sizeof *arena_cells);
}

/* ---- races ---- */

static bool is_before(uint32_t earlier) {
        if (earlier < seen.launch_first)
                return true;
        if (earlier < seen.block_first)
                return false;
        const struct segment *s = &seen.segments[earlier - seen.block_first];
        return s->thread == seen.now.thread || s->barriers < seen.now.barriers ||
               (s->thread / SIM_WARP == seen.now.thread / SIM_WARP &&
                s->warp_barriers < seen.now.warp_barriers);
}

__attribute__((noreturn)) static void fail_race(enum access_kind kind, const char *what,
                                                size_t offset, uint32_t earlier,
                                                const char *before) {
        if (earlier < seen.block_first)
                sim_fail(CUDA_LAUNCH_FAILED, "a race: %s byte %zu of %s, which another block %s",
                         verbs[kind], offset, what, before);
        sim_fail(CUDA_LAUNCH_FAILED,
                 "a race: %s byte %zu of %s, which thread %u of the block %s without a barrier "
                 "between",
                 verbs[kind], offset, what, seen.segments[earlier - seen.block_first].thread,
                 before);
}

static void note_read(struct cell *c, const char *what, size_t offset) {
        uint32_t write = c->write & ~ATOMIC;
        if (!is_before(write))
                fail_race(READ, what, offset, write, "wrote");
        if (c->read[0] == seen.current || is_before(c->read[0]))
                c->read[0] = seen.current;
        else
                c->read[1] = seen.current;
}

static void note_write(struct cell *c, enum access_kind kind, const char *what, size_t offset) {
        uint32_t write = c->write & ~ATOMIC;
        for (int i = 0; i < 2; i++)
                if (!is_before(c->read[i]))
                        fail_race(kind, what, offset, c->read[i], "read");
        if (!is_before(write) && !(kind == UPDATE && (c->write & ATOMIC)))
                fail_race(kind, what, offset, write, "wrote");
        *c = (struct cell){.write = seen.current | (kind == UPDATE ? ATOMIC : 0)};
}

static void note(struct cell *c, enum access_kind kind, const char *what, size_t offset) {
        if (kind == READ)
                note_read(c, what, offset);
        else
                note_write(c, kind, what, offset);
}

/* ---- accesses ---- */

static void access_shared(size_t at, size_t bytes, enum access_kind kind) {
        for (size_t i = at; i < at + bytes; i++) {
                if (i >= SIM_ARENA_BYTES || !arena_allocated[i])
                        sim_fail(CUDA_ILLEGAL_ADDRESS,
                                 "%s %zu bytes of shared memory outside of what was declared",
                                 verbs[kind], bytes);
                if (kind != WRITE && arena_cells[i].write == 0)
                        sim_fail(CUDA_LAUNCH_FAILED,
                                 "%s %zu bytes of shared memory that the block did not write",
                                 verbs[kind], bytes);
        }
        for (size_t i = at; i < at + bytes; i++)
                note(&arena_cells[i], kind, "shared memory", i);
}

/* The bytes of one word, or all of it. */
static void note_word(struct region *r, size_t offset, size_t bytes, enum access_kind kind) {
        struct cell *word = &r->words[offset / WORD];
        struct cell *cells = &r->cells[offset / WORD * WORD];
        if (bytes < WORD && word->write != DIVIDED) {
                for (size_t i = 0; i < WORD; i++)
                        cells[i] = *word;
                word->write = DIVIDED;
        }
        if (word->write != DIVIDED) {
                note(word, kind, "an allocation", offset);
                return;
        }
        for (size_t i = 0; i < bytes; i++)
                note(&cells[offset % WORD + i], kind, "an allocation", offset + i);
        if (bytes == WORD && kind != READ)
                *word = cells[0];
}

static void access_region(struct region *r, size_t offset, size_t bytes, enum access_kind kind) {
        if (offset >= r->bytes || bytes > r->bytes - offset)
                sim_fail(CUDA_ILLEGAL_ADDRESS, "%s %zu bytes at %zu of an allocation of %zu",
                         verbs[kind], bytes, offset, r->bytes);
        if (!r->words) {
                r->words = cells_new(word_count(r));
                r->cells = cells_new(word_count(r) * WORD);
        }
        for (size_t end = offset + bytes, next; offset < end; offset = next) {
                next = offset / WORD * WORD + WORD;
                next = next < end ? next : end;
                note_word(r, offset, next - offset, kind);
        }
}

/* Everything else is the fiber's stack, the arguments, constants. */
static void look_at(const void *address, size_t bytes, enum access_kind kind, bool aligned) {
        uintptr_t a = (uintptr_t) address;
        size_t in_arena = a - (uintptr_t) sim_arena;
        struct region *r = NULL;
        if (!watches || (in_arena >= SIM_ARENA_BYTES && !(r = region_of(a))))
                return;
        if (aligned && a % bytes != 0)
                sim_fail(CUDA_MISALIGNED_ADDRESS, "%s %zu bytes at the address %p", verbs[kind],
                         bytes, address);
        if (r)
                access_region(r, a - r->begin, bytes, kind);
        else
                access_shared(in_arena, bytes, kind);
}

void sim_access_atomic(const void *address, unsigned bytes) {
        look_at(address, bytes, UPDATE, true);
}

/* ---- what the compiler calls ---- */

#define HOOK(name, ...)                                                         \
        __attribute__((visibility("default"))) void __tsan_##name(__VA_ARGS__); \
        void __tsan_##name(__VA_ARGS__)
#define HOOKS_OF(bytes)                               \
        HOOK(read##bytes, void *address) {            \
                look_at(address, bytes, READ, true);  \
        }                                             \
        HOOK(write##bytes, void *address) {           \
                look_at(address, bytes, WRITE, true); \
        }
HOOKS_OF(1)
HOOKS_OF(2)
HOOKS_OF(4)
HOOKS_OF(8)
HOOKS_OF(16)
HOOK(read_range, void *address, long bytes) {
        look_at(address, (size_t) bytes, READ, false);
}
HOOK(write_range, void *address, long bytes) {
        look_at(address, (size_t) bytes, WRITE, false);
}
HOOK(init, void) {
}
HOOK(func_entry, void *caller) {
}
HOOK(func_exit, void *unused) {
}
