/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_sim.cuh - the part of CUDA's language that Cairn's kernels use (docs/DEVICE-CODE.md), as
 * C++17 on the simulator (sim.h). Included by kernels/device.cuh where nvcc does not compile. What
 * is not here does not compile in the tests either, float atomics among it.
 */
#ifndef CAIRN_TESTS_CUDA_SIM_CUH
#define CAIRN_TESTS_CUDA_SIM_CUH

#include "tests/cuda/sim/cuda_runtime_api.h"
#include "tests/cuda/sim/sim.h"
#include <math.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
        unsigned x, y, z;
        dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {
        }
};

#define threadIdx sim_place.thread
#define blockIdx sim_place.block
#define blockDim sim_place.block_size
#define gridDim sim_place.grid_size
#define warpSize 32

/* ---- shared memory ---- */

#define GPU_SHARED(type, name, count) \
        static char name##_site;      \
        type(&name)[count] =          \
                *static_cast<type(*)[count]>(sim_shared(&name##_site, sizeof(type[count])))
#define GPU_SHARED_OF_LAUNCH(type, name) type *name = static_cast<type *>(sim_shared(nullptr, 0))

/* ---- barriers, exchanges ---- */

#define SIM_TEXT_OF(line) #line
#define SIM_TEXT(line) SIM_TEXT_OF(line)
#define SIM_HERE __FILE__ ":" SIM_TEXT(__LINE__)

#define __syncthreads() sim_barrier(SIM_HERE)
#define __syncwarp(...) sim_syncwarp(SIM_HERE, ##__VA_ARGS__)
#define __ballot_sync(mask, value) \
        static_cast<unsigned>(sim_exchange(SIM_BALLOT, mask, (value) ? 1 : 0, 0, SIM_HERE))
#define __any_sync(mask, value) (__ballot_sync(mask, value) != 0)
#define __all_sync(mask, value) (__ballot_sync(mask, !(value)) == 0)
#define __shfl_sync(mask, value, lane) sim_lane(SIM_FROM, mask, value, lane, SIM_HERE)
#define __shfl_xor_sync(mask, value, lanes) sim_lane(SIM_XOR, mask, value, lanes, SIM_HERE)
#define __shfl_up_sync(mask, value, lanes) sim_lane(SIM_UP, mask, value, lanes, SIM_HERE)
#define __shfl_down_sync(mask, value, lanes) sim_lane(SIM_DOWN, mask, value, lanes, SIM_HERE)
#define __trap() sim_trap(SIM_HERE)

inline void sim_syncwarp(const char *where, unsigned mask = ~0u) {
        (void) sim_exchange(SIM_SYNC, mask, 0, 0, where);
}

template <class T>
inline T sim_lane(enum sim_exchange kind, unsigned mask, T value, unsigned argument,
                  const char *where) {
        static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange 4 or 8 bytes");
        uint64_t bits = 0;
        memcpy(&bits, &value, sizeof value);
        bits = sim_exchange(kind, mask, bits, argument, where);
        memcpy(&value, &bits, sizeof value);
        return value;
}

/* ---- atomics: of integers ---- */

#define SIM_ATOMIC(name, kind)                                                                  \
        inline unsigned name(unsigned *address, unsigned value) {                               \
                return static_cast<unsigned>(sim_atomic(kind, address, 4, value, 0));           \
        }                                                                                       \
        inline unsigned long long name(unsigned long long *address, unsigned long long value) { \
                return sim_atomic(kind, address, 8, value, 0);                                  \
        }
SIM_ATOMIC(atomicAdd, SIM_ADD)
SIM_ATOMIC(atomicMin, SIM_MIN)
SIM_ATOMIC(atomicMax, SIM_MAX)
SIM_ATOMIC(atomicOr, SIM_OR)
SIM_ATOMIC(atomicExch, SIM_STORE)
#undef SIM_ATOMIC
inline unsigned long long atomicCAS(unsigned long long *address, unsigned long long expected,
                                    unsigned long long value) {
        return sim_atomic(SIM_STORE_IF, address, 8, value, expected);
}

/* ---- bits ---- */

inline unsigned __float_as_uint(float x) {
        unsigned bits;
        memcpy(&bits, &x, sizeof bits);
        return bits;
}
inline float __uint_as_float(unsigned bits) {
        float x;
        memcpy(&x, &bits, sizeof x);
        return x;
}
inline long long __double_as_longlong(double x) {
        long long bits;
        memcpy(&bits, &x, sizeof bits);
        return bits;
}
inline double __longlong_as_double(long long bits) {
        double x;
        memcpy(&x, &bits, sizeof x);
        return x;
}

/* ---- launches ---- */

template <class T> struct sim_same { typedef T type; };

template <class... P>
inline int gpu_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                      size_t shared_bytes, void *stream, typename sim_same<P>::type... arguments) {
        auto body = [kernel, arguments...] { kernel(arguments...); };
        typedef decltype(body) Body;
        struct sim_call call = {
                name, [](const void *closure) { (*static_cast<const Body *>(closure))(); }, {0}};
        static_assert(sizeof body <= sizeof call.closure, "too many arguments");
        static_assert(__is_trivially_copyable(Body), "arguments are plain data");
        memcpy(call.closure, &body, sizeof body);
        unsigned grid_sizes[] = {grid.x, grid.y, grid.z};
        unsigned block_sizes[] = {block.x, block.y, block.z};
        return sim_queue(&call, grid_sizes, block_sizes, shared_bytes, stream);
}

#endif
