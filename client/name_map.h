/* SPDX-License-Identifier: Apache-2.0
 *
 * name_map.h - name -> number, for 100,000 tensors. Open addressing; names are borrowed and must
 * outlive the map. Zeroed is empty. Owned by the caller, one thread at a time.
 */
#ifndef CAIRN_CLIENT_NAME_MAP_H
#define CAIRN_CLIENT_NAME_MAP_H

#include "base/status.h"
#include <stdbool.h>

struct name_map_slot {
        const char *name; /* NULL: empty */
        size_t bytes;
        uint32_t hash, value;
};
struct name_map {
        struct name_map_slot *slots;
        size_t capacity; /* power of two */
        size_t count;
};

void name_map_done(struct name_map *m);
bool name_map_find(const struct name_map *m, const void *name, size_t bytes, uint32_t *ret);
/* NOMEM, or EXISTS (the map is as it was). */
int name_map_add(struct name_map *m, const char *name, size_t bytes, uint32_t value);

#endif
