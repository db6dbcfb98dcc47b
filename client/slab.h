/* SPDX-License-Identifier: Apache-2.0
 *
 * slab.h - sub-allocation from a few exportable handles. Slabs double in size, so that
 * SLAB_COUNT_MAX are enough for everything, and a request that does not fit the newest slab opens
 * the next: the same calls in the same order give the same places, so that alignment repeats after
 * a restore. Nothing is freed before the end.
 *
 * Owned by the handle, one thread at a time. Descriptors stay the slabs'; duplicate them to send.
 */
#ifndef CAIRN_CLIENT_SLAB_H
#define CAIRN_CLIENT_SLAB_H

#include "base/limits.h"
#include "device/device.h"

struct slab {
        struct device_memory memory;
        uint64_t used;
};
struct slabs {
        struct device *device;
        struct slab items[SLAB_COUNT_MAX];
        uint32_t count;
};
struct slab_place {
        uint32_t slab;
        uint64_t offset;
};

void slabs_init(struct slabs *s, struct device *device);
void slabs_done(struct slabs *s);
/* Zeroed, TENSOR_ALIGNMENT aligned. */
int slabs_allocate(struct slabs *s, uint64_t bytes, void **ret, struct slab_place *ret_place,
                   struct cairn_error *reterr);
/* Where [data, data + bytes) lies; false if no one slab holds it. */
bool slabs_find(const struct slabs *s, const void *data, uint64_t bytes, struct slab_place *ret);
/* Some of it lies in a slab. */
bool slabs_touch(const struct slabs *s, const void *data, uint64_t bytes);

#endif
