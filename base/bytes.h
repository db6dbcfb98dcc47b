/* SPDX-License-Identifier: Apache-2.0
 *
 * bytes.h - little-endian loads and stores, overflow-checked arithmetic, alignment.
 * The *_checked functions return false on overflow and leave *ret untouched.
 */
#ifndef CAIRN_BYTES_H
#define CAIRN_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t load_le32(const void *p) {
        uint32_t v;
        memcpy(&v, p, sizeof v);
        return le32toh(v);
}
static inline uint64_t load_le64(const void *p) {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        return le64toh(v);
}
static inline void store_le32(void *p, uint32_t v) {
        v = htole32(v);
        memcpy(p, &v, sizeof v);
}
static inline void store_le64(void *p, uint64_t v) {
        v = htole64(v);
        memcpy(p, &v, sizeof v);
}

static inline bool add_checked(uint64_t a, uint64_t b, uint64_t *ret) {
        uint64_t sum;
        if (__builtin_add_overflow(a, b, &sum))
                return false;
        *ret = sum;
        return true;
}
static inline bool mul_checked(uint64_t a, uint64_t b, uint64_t *ret) {
        uint64_t product;
        if (__builtin_mul_overflow(a, b, &product))
                return false;
        *ret = product;
        return true;
}
/* Round up to a power of two. */
static inline bool align_up_checked(uint64_t v, uint64_t alignment, uint64_t *ret) {
        uint64_t sum;
        if (!add_checked(v, alignment - 1, &sum))
                return false;
        *ret = sum & ~(alignment - 1);
        return true;
}

#endif
