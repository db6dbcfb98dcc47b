/* SPDX-License-Identifier: Apache-2.0
 *
 * name_table.h - the names of a list of records as a hash table, for the checks of the format:
 * near-linear at a million names, with a seed of its own, so that a hostile file cannot make names
 * collide.
 *
 *     name_table_init(&t, records, count, &same, reterr);
 *     name_table_find(&t, name)       -> its index, or -1
 *     name_table_done(&t);
 *
 * Records (tensors or host values) and their names are borrowed until name_table_done. One thread.
 */
#ifndef CAIRN_NAME_TABLE_H
#define CAIRN_NAME_TABLE_H

#include "base/status.h"
#include "format/manifest.pb-c.h"
#include <sys/types.h>

struct name_slot;
struct name_table {
        struct name_slot *slots;
        size_t mask; /* slot count - 1; at most half of the slots are taken */
        uint64_t seed;
        const void *const *records;
};

/* records: Cairn__Format__Tensor or Cairn__Format__StateValue, with names that are not empty.
 * *ret_same is the index of the first one whose name stands before it, -1 if there is none; the
 * table is complete only then. */
int name_table_init(struct name_table *t, const void *records, size_t count, ssize_t *ret_same,
                    struct cairn_error *reterr);
void name_table_done(struct name_table *t);
ssize_t name_table_find(const struct name_table *t, const ProtobufCBinaryData *name);

#endif
