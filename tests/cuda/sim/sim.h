/* SPDX-License-Identifier: Apache-2.0
 *
 * sim.h - runs kernels that were compiled as C++ (cuda_sim.cuh) on the processor: each thread of a
 * block is a fiber, blocks run one after another, blocks and threads in an order that changes with
 * each launch. Calls come by the emulated driver (runtime.c), one kernel of the process at a time.
 *
 * What is a mistake on a GPU, or works there by luck, ends the launch with a message on stderr and
 * an error that stays in the context:
 *
 *     CUDA_ILLEGAL_ADDRESS      memory outside of what was allocated, shared or of the device
 *     CUDA_MISALIGNED_ADDRESS
 *     CUDA_LAUNCH_FAILED        a barrier or an exchange that not all threads reach, or reach in
 *                               different places; two threads at one byte, one of them writing,
 *                               without a barrier between (a race); shared memory that is read
 *                               before the block wrote it
 *     CUDA_LAUNCH_OUT_OF_RESOURCES    more than 48 KiB of shared memory
 *
 * The accesses are told by the compiler: kernels are built with -fsanitize=thread, whose hooks are
 * here (access.c) instead of in a library. Under -fsanitize=address they are not; the sanitizer
 * knows the bounds then, and races and what was not written go unseen.
 *
 * Environment, read at each launch:
 *
 *     CAIRN_SIM_SEED=1        of the orders
 *     CAIRN_SIM_ACCESSES=0    accesses are not looked at: several times faster
 */
#ifndef CAIRN_TESTS_CUDA_SIM_H
#define CAIRN_TESTS_CUDA_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
        SIM_WARP = 32,
        SIM_THREADS_MAX = 1024,
        SIM_SHARED_BYTES = 48 * 1024,
        SIM_CLOSURE_BYTES = 256,
};

/* A kernel with its arguments, copied at the launch. */
struct sim_call {
        const char *name;
        void (*run)(const void *closure); /* as the thread that runs */
        unsigned long long closure[SIM_CLOSURE_BYTES / sizeof(unsigned long long)];
};
/* Queues it on the stream (runtime.c); a cudaError_t. */
int sim_queue(const struct sim_call *call, const unsigned grid[3], const unsigned block[3],
              size_t shared_bytes, void *stream);
/* On the stream's thread; an enum cuda_result. memory: calls what it is given for each piece of
 * device memory that a kernel may find; NULL: there is what sim_memory_add told. */
int sim_run(const struct sim_call *call, const unsigned grid[3], const unsigned block[3],
            size_t shared_bytes, void (*memory)(void (*each)(void *address, size_t bytes)));
/* What the last failed launch was told, without the end of the line. */
const char *sim_complaint(void);
/* How often threads of a launch were interrupted since the process began: to see that they were. */
uint64_t sim_switches(void);

/* ---- what kernels call ---- */

struct sim_index {
        unsigned x, y, z;
};
struct sim_place {
        struct sim_index thread, block, block_size, grid_size;
};
extern struct sim_place sim_place; /* of the thread that runs */

enum sim_exchange { SIM_SYNC, SIM_FROM, SIM_XOR, SIM_UP, SIM_DOWN, SIM_BALLOT };
void sim_barrier(const char *where);
uint64_t sim_exchange(enum sim_exchange kind, unsigned mask, uint64_t value, unsigned argument,
                      const char *where);
/* The same memory for all threads of a block that come by `site`; NULL: of the launch. */
void *sim_shared(const void *site, size_t bytes);
void sim_trap(const char *where);

enum sim_atomic { SIM_ADD, SIM_MIN, SIM_MAX, SIM_OR, SIM_STORE, SIM_STORE_IF };
/* The value before. `bytes` is 4 or 8; minima and maxima of unsigned values. */
uint64_t sim_atomic(enum sim_atomic kind, void *address, unsigned bytes, uint64_t value,
                    uint64_t expected);

/* ---- between the parts ---- */

/* Held while a kernel runs. */
void sim_lock(void);
void sim_unlock(void);

/* Device memory: bytes from `begin` may be used, the rest up to `mapped` may not. */
void sim_memory_add(void *begin, size_t bytes, size_t mapped);
void sim_memory_remove(void *begin);

/* access.c: the thread that runs begins a segment of its life, between barriers. */
void sim_access_launch(bool watched);
void sim_access_block(void);
void sim_access_segment(unsigned thread, unsigned barriers, unsigned warp_barriers);
void sim_access_end(void);
void sim_access_mapped(void *begin, size_t bytes);       /* known until the next launch */
void sim_access_shared(const void *begin, size_t bytes); /* allocated, not yet written */
void sim_access_atomic(const void *address, unsigned bytes);

/* Ends the launch; does not return. */
void sim_fail(int result, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
extern unsigned char sim_arena[]; /* of shared memory */
enum { SIM_ARENA_BYTES = 64 * 1024 };

#ifdef __cplusplus
}
#endif

#endif
