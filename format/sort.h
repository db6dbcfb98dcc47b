/* SPDX-License-Identifier: Apache-2.0
 *
 * sort.h - long lists in an order: things by a number, tensor records by name. Linear in the number
 * of things, where a sort by comparisons looks at each of a hundred thousand names seventeen times.
 * Stable; pure functions.
 */
#ifndef CAIRN_SORT_H
#define CAIRN_SORT_H

#include "base/status.h"
#include "format/manifest.pb-c.h"

struct sort_item {
        uint64_t key;
        const void *item;
};
/* Ascending. `spare` has room for as many. */
void sort_items(struct sort_item *items, struct sort_item *spare, size_t count);

/* By the bytes of their names, a name before those that it begins. */
int sort_tensors(Cairn__Format__Tensor **tensors, size_t count, struct cairn_error *reterr);

#endif
