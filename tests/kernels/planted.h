/* SPDX-License-Identifier: Apache-2.0
 *
 * planted.h - kernels with one mistake each, and the like without it, to test the simulator.
 */
#ifndef CAIRN_TESTS_KERNELS_PLANTED_H
#define CAIRN_TESTS_KERNELS_PLANTED_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum planted {
        PLANTED_NOTHING_REVERSE,  /* out[i] = in[255 - i], through shared memory */
        PLANTED_NOTHING_COUNT,    /* out[0] += each in[i], by atomics of all blocks */
        PLANTED_NOTHING_EXCHANGE, /* out[i] = in[i ^ 5] + in[i + 3] of the warp */
        PLANTED_NOTHING_WARP,     /* as reverse, within warps, with __syncwarp */
        PLANTED_NOTHING_DYNAMIC,  /* as reverse, in memory of the launch */
        PLANTED_SHARED_RACE,      /* reverse without its barrier */
        PLANTED_WARP_RACE,
        PLANTED_GLOBAL_RACE,  /* threads add to out[0] as if alone */
        PLANTED_READ_RACE,    /* all read out[0], then one writes it */
        PLANTED_BLOCK_RACE,   /* one thread of each block writes out[0] */
        PLANTED_ATOMIC_RACE,  /* atomics and a plain read of one word */
        PLANTED_DIVERGENT,    /* half of the threads come to the barrier */
        PLANTED_TWO_BARRIERS, /* each half to its own */
        PLANTED_EARLY_END,    /* one has ended before the barrier */
        PLANTED_HALF_WARP,    /* half of a warp exchanges, under a mask of all */
        PLANTED_NOT_IN_MASK,
        PLANTED_BEHIND,      /* one element behind an allocation */
        PLANTED_SHARED_OVER, /* one element behind a shared array */
        PLANTED_UNWRITTEN,   /* shared memory is read first */
        PLANTED_STALE,       /* ... and held what the block before left */
        PLANTED_MISALIGNED,
        PLANTED_TOO_MUCH, /* 49 KiB of shared memory */
        PLANTED_TRAP,
        PLANTED_COUNT,
};

/* 256 threads a block; in and out have `count` floats, a multiple of 256. A cudaError_t. */
int planted_launch(enum planted what, void *stream, float *out, const float *in, size_t count);

#ifdef __cplusplus
}
#endif

#endif
