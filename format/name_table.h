/* SPDX-License-Identifier: Apache-2.0
 *
 * name_table.h - a hash table from names to indices, for the checks of the format: near-linear at a
 * million names, with a seed of its own, so that a hostile file cannot make names collide.
 *
 *     name_table_init(&t, count_max, reterr);
 *     name_table_add(&t, name, index) -> the index under which the name was there before, or -1
 *     name_table_find(&t, name)       -> its index, or -1
 *     name_table_done(&t);
 *
 * Names are borrowed until name_table_done. One thread.
 */
#ifndef CAIRN_NAME_TABLE_H
#define CAIRN_NAME_TABLE_H

#include "base/status.h"
#include <protobuf-c/protobuf-c.h>
#include <sys/types.h>

struct name_slot;
struct name_table {
        struct name_slot *slots;
        size_t mask; /* slot count - 1; at most half of the slots are taken */
        uint64_t seed;
};

int name_table_init(struct name_table *t, size_t count_max, struct cairn_error *reterr);
void name_table_done(struct name_table *t);
ssize_t name_table_add(struct name_table *t, const ProtobufCBinaryData *name, size_t index);
ssize_t name_table_find(const struct name_table *t, const ProtobufCBinaryData *name);

#endif
