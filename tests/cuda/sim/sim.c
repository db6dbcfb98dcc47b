/* SPDX-License-Identifier: Apache-2.0
 *
 * Fibers, blocks, barriers, exchanges within a warp, shared memory, atomics.
 */
#include "tests/cuda/sim/sim.h"
#include "device/cuda_abi.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define POISON(address, bytes) ASAN_POISON_MEMORY_REGION(address, bytes)
#define UNPOISON(address, bytes) ASAN_UNPOISON_MEMORY_REGION(address, bytes)
#else
#define POISON(address, bytes) ((void) (address), (void) (bytes))
#define UNPOISON(address, bytes) ((void) (address), (void) (bytes))
#endif

enum {
        STACK_BYTES = 128 * 1024,
        GUARD_BYTES = 4096,
        SITES_MAX = 32,
        GAP = 64, /* between two shared arrays */
        BLOCKS_MAX = 1 << 22,
};

struct fiber {
        void *context[5]; /* of __builtin_setjmp */
        ucontext_t start;
        const void *stack;
        size_t stack_bytes;
        void *fake_stack; /* the sanitizer's */
        bool started;
};

enum thread_state { TO_START, READY, AT_BARRIER, IN_EXCHANGE, ENDED };
struct thread {
        enum thread_state state;
        struct fiber *fiber;
        struct sim_index index;
        unsigned number; /* in the block */
        unsigned barriers, warp_barriers;
        const char *where;
        enum sim_exchange kind;
        unsigned mask, argument;
        uint64_t value, result;
};

struct site {
        const void *key;
        unsigned char *memory;
        size_t bytes;
};

static struct sim {
        pthread_mutex_t lock;
        const struct sim_call *call;
        uint64_t random, launches, switches;
        int failure;
        char complaint[512];
        struct fiber scheduler, fibers[SIM_THREADS_MAX];
        struct fiber *idle[SIM_THREADS_MAX], *running;
        struct thread threads[SIM_THREADS_MAX], *now, *first_at_barrier;
        unsigned order[SIM_THREADS_MAX], ready[SIM_THREADS_MAX];
        unsigned idle_count, thread_count, next, ready_count, ended, at_barrier;
        unsigned in_exchange[SIM_THREADS_MAX / SIM_WARP]; /* bit: lane */
        struct site sites[SITES_MAX];
        unsigned site_count;
        size_t arena_used, shared_bytes;
} sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct sim_place sim_place;
_Alignas(1024) unsigned char sim_arena[SIM_ARENA_BYTES];

const char *sim_complaint(void) {
        return sim.complaint;
}

uint64_t sim_switches(void) {
        return sim.switches;
}

void sim_lock(void) {
        (void) pthread_mutex_lock(&sim.lock);
}

void sim_unlock(void) {
        (void) pthread_mutex_unlock(&sim.lock);
}

/* ---- chance ---- */

static uint64_t chance(void) {
        sim.random ^= sim.random << 13;
        sim.random ^= sim.random >> 7;
        sim.random ^= sim.random << 17;
        return sim.random * 0x2545F4914F6CDD1Du;
}

static void shuffle(unsigned *order, unsigned count) {
        for (unsigned i = 0; i < count; i++) {
                unsigned other = (unsigned) (chance() >> 32) % (i + 1);
                order[i] = i;
                order[i] = order[other];
                order[other] = i;
        }
}

/* ---- fibers ---- */

/* The compiler's own jumps: no signal mask is asked for, and the sanitizer, which is told of each
 * switch, does not look for a stack to clear. */
__attribute__((noinline, no_sanitize("address"))) static void jump(void **context) {
        __builtin_longjmp(context, 1);
}

__attribute__((noinline, no_sanitize("address"))) static void switch_to(struct fiber *from,
                                                                        struct fiber *to) {
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
        if (__builtin_setjmp(from->context) == 0) {
                if (to->started)
                        jump(to->context);
                to->started = true;
                (void) setcontext(&to->start);
                abort();
        }
#ifdef __SANITIZE_ADDRESS__
        /* Whoever comes back to a fiber is the scheduler, on the stack of whichever thread. */
        __sanitizer_finish_switch_fiber(from->fake_stack,
                                        from == &sim.scheduler ? NULL : &sim.scheduler.stack,
                                        from == &sim.scheduler ? NULL : &sim.scheduler.stack_bytes);
#endif
}

static void take_up(struct thread *t) {
        sim.now = t;
        sim_place.thread = t->index;
        sim_access_segment(t->number, t->barriers, t->warp_barriers);
}

static void yield(struct thread *t) {
        sim.switches++;
        switch_to(t->fiber, &sim.scheduler);
        take_up(t);
}

/* Runs threads to their ends, one after another; one that has to wait keeps the fiber. */
static void fiber_main(void) {
        struct fiber *self = sim.running;
#ifdef __SANITIZE_ADDRESS__
        __sanitizer_finish_switch_fiber(NULL, &sim.scheduler.stack, &sim.scheduler.stack_bytes);
#endif
        for (;;) {
                do {
                        struct thread *t = &sim.threads[sim.order[sim.next++]];
                        t->fiber = self;
                        t->state = READY;
                        take_up(t);
                        sim.call->run(sim.call->closure);
                        t->state = ENDED;
                        sim.ended++;
                } while (sim.next < sim.thread_count && sim.ready_count == 0);
                sim.idle[sim.idle_count++] = self;
                switch_to(self, &sim.scheduler);
        }
}

/* As they were never begun: at first, and when a failure left threads in the middle. */
static void fibers_renew(void) {
        sim.idle_count = 0;
        for (unsigned i = 0; i < SIM_THREADS_MAX; i++) {
                struct fiber *f = &sim.fibers[SIM_THREADS_MAX - 1 - i];
                f->started = false;
                f->fake_stack = NULL;
                UNPOISON(f->stack, f->stack_bytes);
                (void) getcontext(&f->start);
                f->start.uc_stack.ss_sp = (void *) f->stack;
                f->start.uc_stack.ss_size = f->stack_bytes;
                f->start.uc_link = NULL;
                makecontext(&f->start, fiber_main, 0);
                sim.idle[sim.idle_count++] = f;
        }
}

static void fibers_make(void) {
        size_t each = STACK_BYTES + GUARD_BYTES;
        unsigned char *stacks = mmap(NULL, each * SIM_THREADS_MAX, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED)
                abort();
        for (unsigned i = 0; i < SIM_THREADS_MAX; i++) {
                (void) mprotect(stacks + i * each, GUARD_BYTES, PROT_NONE);
                sim.fibers[i].stack = stacks + i * each + GUARD_BYTES;
                sim.fibers[i].stack_bytes = STACK_BYTES;
        }
        sim.scheduler.started = true;
        fibers_renew();
}

/* ---- mistakes ---- */

static void note_failure(int result, const char *format, va_list values) {
        int used = 0;
        sim.failure = result;
        if (sim.now)
                used = snprintf(sim.complaint, sizeof sim.complaint,
                                "%s, block (%u, %u, %u), thread (%u, %u, %u): ", sim.call->name,
                                sim_place.block.x, sim_place.block.y, sim_place.block.z,
                                sim.now->index.x, sim.now->index.y, sim.now->index.z);
        else
                used = snprintf(sim.complaint, sizeof sim.complaint, "%s: ", sim.call->name);
        if (used >= 0 && (size_t) used < sizeof sim.complaint)
                (void) vsnprintf(sim.complaint + used, sizeof sim.complaint - (size_t) used, format,
                                 values);
        (void) fprintf(stderr, "kernel simulator: %s\n", sim.complaint);
}

void sim_fail(int result, const char *format, ...) {
        va_list values;
        va_start(values, format);
        note_failure(result, format, values);
        va_end(values);
        sim_access_end();
        switch_to(sim.running, &sim.scheduler);
        abort();
}

__attribute__((format(printf, 1, 2))) static void fail_launch(const char *format, ...) {
        va_list values;
        va_start(values, format);
        sim.now = NULL;
        note_failure(CUDA_LAUNCH_FAILED, format, values);
        va_end(values);
}

void sim_trap(const char *where) {
        sim_fail(CUDA_LAUNCH_FAILED, "%s: an assertion failed", where);
}

static const char *const kinds[] = {
        [SIM_SYNC] = "__syncwarp",       [SIM_FROM] = "__shfl_sync",
        [SIM_XOR] = "__shfl_xor_sync",   [SIM_UP] = "__shfl_up_sync",
        [SIM_DOWN] = "__shfl_down_sync", [SIM_BALLOT] = "__ballot_sync",
};

/* Nobody can go on. */
static void fail_stuck(void) {
        for (unsigned i = 0; i < sim.thread_count; i++) {
                const struct thread *t = &sim.threads[i];
                if (t->state != AT_BARRIER && t->state != IN_EXCHANGE)
                        continue;
                fail_launch("%s: thread %u of block (%u, %u, %u) waits in %s for others that never "
                            "come; of %u threads %u have ended and %u are at a barrier",
                            t->where, t->number, sim_place.block.x, sim_place.block.y,
                            sim_place.block.z,
                            t->state == AT_BARRIER ? "__syncthreads" : kinds[t->kind],
                            sim.thread_count, sim.ended, sim.at_barrier);
                return;
        }
}

/* ---- barriers and exchanges ---- */

/* Places are the same text in one file. */
static bool is_elsewhere(const struct thread *t, const char *where) {
        return t->where != where && strcmp(t->where, where) != 0;
}

static void make_ready(struct thread *t) {
        t->state = READY;
        sim.ready[sim.ready_count++] = t->number;
}

void sim_barrier(const char *where) {
        struct thread *t = sim.now;
        t->where = where;
        if (sim.at_barrier == 0)
                sim.first_at_barrier = t;
        else if (is_elsewhere(sim.first_at_barrier, where))
                sim_fail(CUDA_LAUNCH_FAILED, "is in __syncthreads at %s, another at %s", where,
                         sim.first_at_barrier->where);
        t->state = AT_BARRIER;
        t->barriers++;
        if (++sim.at_barrier == sim.thread_count) {
                sim.at_barrier = 0;
                for (unsigned i = 0; i < sim.thread_count; i++)
                        make_ready(&sim.threads[i]);
        }
        yield(t);
}

static uint64_t result_of(const struct thread *warp, unsigned members, const struct thread *t) {
        unsigned lane = t->number % SIM_WARP, from = SIM_WARP;
        uint64_t votes = 0;
        switch (t->kind) {
        case SIM_SYNC:
                break;
        case SIM_BALLOT:
                for (unsigned i = 0; i < SIM_WARP; i++)
                        if ((members >> i & 1) && warp[i].value != 0)
                                votes |= 1u << i;
                return votes;
        case SIM_FROM:
                from = t->argument % SIM_WARP;
                break;
        case SIM_XOR:
                from = lane ^ t->argument;
                break;
        case SIM_UP:
                from = lane < t->argument ? lane : lane - t->argument;
                break;
        case SIM_DOWN:
                from = lane + t->argument >= SIM_WARP ? lane : lane + t->argument;
                break;
        }
        /* Whoever takes no part gives anything. */
        return from < SIM_WARP && (members >> from & 1) ? warp[from].value : chance() | 0x7fc0ffc0u;
}

/* With the first of `waiting` that does something else. */
static void fail_if_apart(const struct thread *t, const struct thread *warp, unsigned waiting) {
        for (unsigned left = waiting; left; left &= left - 1) {
                const struct thread *other = &warp[__builtin_ctz(left)];
                if (other->kind != t->kind || other->mask != t->mask ||
                    is_elsewhere(other, t->where))
                        sim_fail(CUDA_LAUNCH_FAILED,
                                 "is in %s (%#x) at %s, lane %d in %s (%#x) at %s", kinds[t->kind],
                                 t->mask, t->where, __builtin_ctz(left), kinds[other->kind],
                                 other->mask, other->where);
        }
}

uint64_t sim_exchange(enum sim_exchange kind, unsigned mask, uint64_t value, unsigned argument,
                      const char *where) {
        struct thread *t = sim.now, *warp = &sim.threads[t->number / SIM_WARP * SIM_WARP];
        unsigned lane = t->number % SIM_WARP, first = t->number - lane;
        unsigned *waiting = &sim.in_exchange[t->number / SIM_WARP];
        unsigned lanes = sim.thread_count - first < SIM_WARP ? sim.thread_count - first : SIM_WARP;
        unsigned members = lanes == SIM_WARP ? mask : mask & ((1u << lanes) - 1);
        if (!(mask >> lane & 1))
                sim_fail(CUDA_LAUNCH_FAILED, "%s: is in %s and not in its mask %#x", where,
                         kinds[kind], mask);
        t->kind = kind;
        t->mask = mask;
        t->value = value;
        t->argument = argument;
        t->where = where;
        t->state = IN_EXCHANGE;
        /* One of them as each comes, so that a mistake shows early; all once all are there. */
        unsigned others = *waiting & members;
        fail_if_apart(t, warp, others & -others);
        *waiting |= 1u << lane;
        if ((*waiting & members) == members) {
                fail_if_apart(t, warp, others);
                *waiting &= ~members;
                for (unsigned i = 0; i < lanes; i++)
                        if (members >> i & 1) {
                                warp[i].result = result_of(warp, members, &warp[i]);
                                warp[i].warp_barriers += kind == SIM_SYNC;
                        }
                for (unsigned i = 0; i < lanes; i++)
                        if (members >> i & 1)
                                make_ready(&warp[i]);
        }
        yield(t);
        return t->result;
}

/* ---- shared memory ---- */

static void shared_spoil(const struct site *s) {
        for (size_t i = 0; i < s->bytes; i++)
                s->memory[i] = (unsigned char) (chance() >> 56);
        sim_access_shared(s->memory, s->bytes);
}

static void shared_begin_launch(size_t dynamic_bytes) {
        UNPOISON(sim_arena, SIM_ARENA_BYTES);
        POISON(sim_arena, SIM_ARENA_BYTES);
        sim.site_count = 0;
        sim.arena_used = GAP;
        sim.shared_bytes = dynamic_bytes;
}

void *sim_shared(const void *site, size_t bytes) {
        for (unsigned i = 0; i < sim.site_count; i++)
                if (sim.sites[i].key == site)
                        return sim.sites[i].memory;
        /* The launch's own is asked for without a size; it counts from the start. */
        if (!site)
                bytes = sim.shared_bytes;
        else
                sim.shared_bytes += bytes;
        if (sim.shared_bytes > SIM_SHARED_BYTES || sim.site_count == SITES_MAX ||
            sim.arena_used + bytes + GAP > SIM_ARENA_BYTES)
                sim_fail(CUDA_LAUNCH_OUT_OF_RESOURCES, "%zu bytes of shared memory, %d are there",
                         sim.shared_bytes, SIM_SHARED_BYTES);
        struct site *s = &sim.sites[sim.site_count++];
        s->key = site;
        s->memory = sim_arena + sim.arena_used;
        s->bytes = bytes;
        sim.arena_used += (bytes + 2 * GAP - 1) / GAP * GAP;
        UNPOISON(s->memory, bytes);
        shared_spoil(s);
        return s->memory;
}

/* ---- atomics ---- */

uint64_t sim_atomic(enum sim_atomic kind, void *address, unsigned bytes, uint64_t value,
                    uint64_t expected) {
        uint64_t before = 0, after;
        sim_access_atomic(address, bytes);
        memcpy(&before, address, bytes); /* numbers here are little-endian, as there */
        switch (kind) {
        case SIM_ADD:
                after = before + value;
                break;
        case SIM_MIN:
                after = before < value ? before : value;
                break;
        case SIM_MAX:
                after = before > value ? before : value;
                break;
        case SIM_OR:
                after = before | value;
                break;
        case SIM_STORE:
                after = value;
                break;
        case SIM_STORE_IF:
                after = before == expected ? value : before;
                break;
        default:
                abort();
        }
        memcpy(address, &after, bytes);
        return before;
}

/* ---- a launch ---- */

static void threads_begin(const unsigned block[3]) {
        sim.thread_count = block[0] * block[1] * block[2];
        for (unsigned i = 0; i < sim.thread_count; i++)
                sim.threads[i] = (struct thread){
                        .number = i,
                        .index = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]},
                };
        shuffle(sim.order, sim.thread_count);
        sim.next = sim.ready_count = sim.ended = sim.at_barrier = 0;
        memset(sim.in_exchange, 0, sizeof(sim.in_exchange));
}

static void run_block(const unsigned block[3]) {
        threads_begin(block);
        sim_access_block();
        for (unsigned i = 0; i < sim.site_count; i++)
                shared_spoil(&sim.sites[i]);
        while (sim.ended < sim.thread_count && sim.failure == CUDA_OK) {
                unsigned able = sim.thread_count - sim.next + sim.ready_count;
                if (able == 0) {
                        fail_stuck();
                        return;
                }
                unsigned choice = (unsigned) (chance() >> 32) % able;
                struct fiber *f;
                if (choice < sim.ready_count) {
                        f = sim.threads[sim.ready[choice]].fiber;
                        sim.ready[choice] = sim.ready[--sim.ready_count];
                } else {
                        f = sim.idle[--sim.idle_count];
                }
                sim.running = f;
                switch_to(&sim.scheduler, f);
        }
}

static void run_grid(const unsigned grid[3], const unsigned block[3]) {
        size_t count = (size_t) grid[0] * grid[1] * grid[2];
        unsigned *order = count <= BLOCKS_MAX ? malloc(count * sizeof *order) : NULL;
        if (!order) {
                fail_launch("%zu blocks are more than can be simulated", count);
                return;
        }
        shuffle(order, (unsigned) count);
        for (size_t i = 0; i < count && sim.failure == CUDA_OK; i++) {
                unsigned b = order[i];
                sim_place.block = (struct sim_index){b % grid[0], b / grid[0] % grid[1],
                                                     b / grid[0] / grid[1]};
                run_block(block);
        }
        free(order);
}

static uint64_t number(const char *name, uint64_t without) {
        const char *text = getenv(name);
        return text && text[0] ? strtoull(text, NULL, 10) : without;
}

int sim_run(const struct sim_call *call, const unsigned grid[3], const unsigned block[3],
            size_t shared_bytes, void (*memory)(void (*each)(void *address, size_t bytes))) {
        sim_lock();
        if (!sim.fibers[0].stack)
                fibers_make();
        sim.call = call;
        sim.now = NULL;
        sim.failure = CUDA_OK;
        sim.random = number("CAIRN_SIM_SEED", 1) * 0x9E3779B97F4A7C15u + ++sim.launches;
        sim_place.block_size = (struct sim_index){block[0], block[1], block[2]};
        sim_place.grid_size = (struct sim_index){grid[0], grid[1], grid[2]};
        shared_begin_launch(shared_bytes);
        bool watched = number("CAIRN_SIM_ACCESSES", 1) != 0;
        sim_access_launch(watched);
        if (watched && memory)
                memory(sim_access_mapped);
        run_grid(grid, block);
        sim_access_end();
        if (sim.failure != CUDA_OK)
                fibers_renew();
        int result = sim.failure;
        sim_unlock();
        return result;
}
