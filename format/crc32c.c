/* SPDX-License-Identifier: Apache-2.0 */
#include "format/crc32c.h"
#include "base/bytes.h"

#include <stdbool.h>
#include <string.h>

#define POLYNOMIAL UINT32_C(0x82f63b78) /* x^32 + ... + 1, bit 0 is x^31 */

/* ---- portable: slicing by 8 ---- */

/* Table k maps a byte to what it adds to the CRC when k more bytes follow in its group of eight.
 * Each is linear, so that eight constants (of the bytes 1, 2, 4 ... 128) make its 256 entries at
 * compile time. */
#define ENTRY(i, b0, b1, b2, b3, b4, b5, b6, b7)                                             \
        (((i) &1 ? b0 : 0u) ^ ((i) &2 ? b1 : 0u) ^ ((i) &4 ? b2 : 0u) ^ ((i) &8 ? b3 : 0u) ^ \
         ((i) &16 ? b4 : 0u) ^ ((i) &32 ? b5 : 0u) ^ ((i) &64 ? b6 : 0u) ^ ((i) &128 ? b7 : 0u))
#define ENTRIES_4(i, ...)                                                                \
        ENTRY(i, __VA_ARGS__), ENTRY((i) + 1, __VA_ARGS__), ENTRY((i) + 2, __VA_ARGS__), \
                ENTRY((i) + 3, __VA_ARGS__)
#define ENTRIES_16(i, ...)                                          \
        ENTRIES_4(i, __VA_ARGS__), ENTRIES_4((i) + 4, __VA_ARGS__), \
                ENTRIES_4((i) + 8, __VA_ARGS__), ENTRIES_4((i) + 12, __VA_ARGS__)
#define ENTRIES_64(i, ...)                                             \
        ENTRIES_16(i, __VA_ARGS__), ENTRIES_16((i) + 16, __VA_ARGS__), \
                ENTRIES_16((i) + 32, __VA_ARGS__), ENTRIES_16((i) + 48, __VA_ARGS__)
#define TABLE(...)                                                                 \
        {                                                                          \
                ENTRIES_64(0, __VA_ARGS__), ENTRIES_64(64, __VA_ARGS__),           \
                        ENTRIES_64(128, __VA_ARGS__), ENTRIES_64(192, __VA_ARGS__) \
        }

/* clang-format off */
static const uint32_t tables[8][256] = {
        TABLE(0xf26b8303u, 0xe13b70f7u, 0xc79a971fu, 0x8ad958cfu,
              0x105ec76fu, 0x20bd8edeu, 0x417b1dbcu, 0x82f63b78u),
        TABLE(0x13a29877u, 0x274530eeu, 0x4e8a61dcu, 0x9d14c3b8u,
              0x3fc5f181u, 0x7f8be302u, 0xff17c604u, 0xfbc3faf9u),
        TABLE(0xa541927eu, 0x4f6f520du, 0x9edea41au, 0x38513ec5u,
              0x70a27d8au, 0xe144fb14u, 0xc76580d9u, 0x8b277743u),
        TABLE(0xdd45aab8u, 0xbf672381u, 0x7b2231f3u, 0xf64463e6u,
              0xe964b13du, 0xd725148bu, 0xaba65fe7u, 0x52a0c93fu),
        TABLE(0x38116facu, 0x7022df58u, 0xe045beb0u, 0xc5670b91u,
              0x8f2261d3u, 0x1ba8b557u, 0x37516aaeu, 0x6ea2d55cu),
        TABLE(0xef306b19u, 0xdb8ca0c3u, 0xb2f53777u, 0x6006181fu,
              0xc00c303eu, 0x85f4168du, 0x0e045bebu, 0x1c08b7d6u),
        TABLE(0x68032cc8u, 0xd0065990u, 0xa5e0c5d1u, 0x4e2dfd53u,
              0x9c5bfaa6u, 0x3d5b83bdu, 0x7ab7077au, 0xf56e0ef4u),
        TABLE(0x493c7d27u, 0x9278fa4eu, 0x211d826du, 0x423b04dau,
              0x847609b4u, 0x0d006599u, 0x1a00cb32u, 0x34019664u),
};
/* clang-format on */

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t bytes) {
        const unsigned char *p = data;
        uint32_t state = ~crc;

        for (; bytes >= 8; bytes -= 8, p += 8) {
                uint64_t w = load_le64(p) ^ state;
                state = tables[7][w & 0xff] ^ tables[6][w >> 8 & 0xff] ^ tables[5][w >> 16 & 0xff] ^
                        tables[4][w >> 24 & 0xff] ^ tables[3][w >> 32 & 0xff] ^
                        tables[2][w >> 40 & 0xff] ^ tables[1][w >> 48 & 0xff] ^ tables[0][w >> 56];
        }
        for (; bytes > 0; bytes--, p++)
                state = state >> 8 ^ tables[0][(state ^ *p) & 0xff];
        return ~state;
}

/* ---- combination ---- */

/* Product of two polynomials modulo the CRC's; bit 31 is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b) {
        uint32_t product = 0;

        for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
                if (a & bit)
                        product ^= b;
                b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
        }
        return product;
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b) {
        uint32_t power = UINT32_C(1) << 23; /* x^8: one byte more */

        for (; bytes_b; bytes_b >>= 1) {
                if (bytes_b & 1)
                        crc_a = multiply(power, crc_a);
                power = multiply(power, power);
        }
        return crc_a ^ crc_b;
}

/* ---- x86-64: three streams of the CRC instruction ---- */

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>

#define TARGET __attribute__((target("sse4.2,pclmul")))
#define TARGET_INLINE __attribute__((target("sse4.2,pclmul"), always_inline)) static inline

/* Caches are of no use to a copy that is larger than they are. */
#define STREAM_BYTES_MIN ((size_t) 512 * 1024)

/* Bytes of a stream, and the powers of x that join three of them. */
#define LONG 4096
#define LONG_FAR 0x54a86326u
#define LONG_NEAR 0x82f89c77u
#define SHORT 128
#define SHORT_FAR 0xb9e02b86u
#define SHORT_NEAR 0x0d3b6092u

/* How far ahead of a stream to ask for its lines: three streams at once are more than the hardware
 * follows by itself. */
#define PREFETCH_BYTES (3 * LONG)

TARGET_INLINE uint64_t step(uint64_t state, const unsigned char *source) {
        uint64_t w;
        memcpy(&w, source, sizeof w);
        return _mm_crc32_u64(state, w);
}

/* Target is 64-byte aligned, bytes a multiple of 64. */
TARGET_INLINE void copy_streamed(unsigned char *target, const unsigned char *source, size_t bytes) {
        for (size_t i = 0; i < bytes; i += 64)
                for (size_t k = i; k < i + 64; k += 16)
                        _mm_stream_si128((__m128i *) (void *) (target + k),
                                         _mm_loadu_si128((const void *) (source + k)));
}

/* A block of 3 * stream_bytes. The instruction has a latency of three and starts once a cycle, so
 * three independent streams keep it busy. They are joined by multiplying the earlier two by the
 * power of x that the later bytes stand for: a carry-less product, reduced by one more CRC
 * instruction, which itself multiplies by x^33. So far = x^(16 * stream_bytes - 33) and
 * near = x^(8 * stream_bytes - 33). Meanwhile the block `behind` is copied, if there is one. */
TARGET_INLINE uint64_t three_streams(uint64_t state, const unsigned char *source,
                                     size_t stream_bytes, uint32_t far, uint32_t near,
                                     unsigned char *behind_target, const unsigned char *behind) {
        uint64_t a = state, b = 0, c = 0;

        for (size_t i = 0; i < stream_bytes; i += 64) {
                const unsigned char *pa = source + i, *pb = pa + stream_bytes;
                const unsigned char *pc = pb + stream_bytes;
                if (stream_bytes == LONG) {
                        __builtin_prefetch(pa + PREFETCH_BYTES);
                        __builtin_prefetch(pb + PREFETCH_BYTES);
                        __builtin_prefetch(pc + PREFETCH_BYTES);
                }
                if (behind)
                        copy_streamed(behind_target + 3 * i, behind + 3 * i, 192);
                for (size_t k = 0; k < 64; k += 8) {
                        a = step(a, pa + k);
                        b = step(b, pb + k);
                        c = step(c, pc + k);
                }
        }
        __m128i first = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long) a),
                                             _mm_cvtsi64_si128((long long) far), 0);
        __m128i second = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long) b),
                                              _mm_cvtsi64_si128((long long) near), 0);
        uint64_t joined = (uint64_t) _mm_cvtsi128_si64(_mm_xor_si128(first, second));
        return _mm_crc32_u64(0, joined) ^ c;
}

TARGET static uint64_t run(uint64_t state, const unsigned char *source, size_t bytes) {
        for (; bytes >= 3 * LONG; bytes -= 3 * LONG, source += 3 * LONG)
                state = three_streams(state, source, LONG, LONG_FAR, LONG_NEAR, NULL, NULL);
        for (; bytes >= 3 * SHORT; bytes -= 3 * SHORT, source += 3 * SHORT)
                state = three_streams(state, source, SHORT, SHORT_FAR, SHORT_NEAR, NULL, NULL);
        for (; bytes >= 8; bytes -= 8, source += 8)
                state = step(state, source);
        for (; bytes > 0; bytes--, source++)
                state = _mm_crc32_u8((uint32_t) state, *source);
        return state;
}

TARGET static uint32_t fast(uint32_t crc, const unsigned char *data, size_t bytes) {
        return ~(uint32_t) run((uint32_t) ~crc, data, bytes);
}

/* Smaller copies go block by block: memcpy reads what the checksum has just brought into the cache.
 */
TARGET static uint64_t copy_cached(uint64_t state, unsigned char *target,
                                   const unsigned char *source, size_t bytes) {
        for (; bytes > 3 * LONG; bytes -= 3 * LONG, target += 3 * LONG, source += 3 * LONG) {
                state = three_streams(state, source, LONG, LONG_FAR, LONG_NEAR, NULL, NULL);
                memcpy(target, source, 3 * LONG);
        }
        state = run(state, source, bytes);
        memcpy(target, source, bytes);
        return state;
}

/* Large ones store past the caches, one block behind the checksum, so that loads, checksum and
 * stores overlap. Stores from inside the three streams would fill lines a page apart at once, which
 * write-combining buffers do badly. */
TARGET static uint64_t copy_large(uint64_t state, unsigned char *target,
                                  const unsigned char *source, size_t bytes) {
        size_t head = (size_t) (-(uintptr_t) target & 63); /* streaming stores want whole lines */
        size_t behind = 0;

        state = copy_cached(state, target, source, head);
        target += head, source += head, bytes -= head;
        for (; bytes >= 3 * LONG; bytes -= 3 * LONG, target += 3 * LONG, source += 3 * LONG) {
                state = three_streams(state, source, LONG, LONG_FAR, LONG_NEAR, target - behind,
                                      behind ? source - behind : NULL);
                behind = 3 * LONG;
        }
        copy_streamed(target - behind, source - behind, behind);
        _mm_sfence();
        return copy_cached(state, target, source, bytes);
}

TARGET static uint32_t fast_copy(uint32_t crc, unsigned char *target, const unsigned char *source,
                                 size_t bytes) {
        uint64_t state = (uint32_t) ~crc;

        return ~(uint32_t) (bytes < STREAM_BYTES_MIN ? copy_cached(state, target, source, bytes)
                                                     : copy_large(state, target, source, bytes));
}

static bool has_fast(void) {
        return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}
#else
static uint32_t fast(uint32_t crc, const unsigned char *data, size_t bytes) {
        return crc32c_portable(crc, data, bytes);
}

static uint32_t fast_copy(uint32_t crc, unsigned char *target, const unsigned char *source,
                          size_t bytes) {
        memcpy(target, source, bytes);
        return crc32c_portable(crc, target, bytes);
}

static bool has_fast(void) {
        return false;
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes) {
        if (bytes == 0)
                return crc;
        return has_fast() ? fast(crc, data, bytes) : crc32c_portable(crc, data, bytes);
}

uint32_t crc32c_copy(uint32_t crc, void *target, const void *source, size_t bytes) {
        if (bytes == 0)
                return crc;
        if (has_fast())
                return fast_copy(crc, target, source, bytes);
        memcpy(target, source, bytes);
        return crc32c_portable(crc, target, bytes);
}
