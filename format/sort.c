/* SPDX-License-Identifier: Apache-2.0 */
#include "format/sort.h"
#include "base/cleanup.h"

#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef Cairn__Format__Tensor Tensor;

/* So few are sorted faster by insertion than by counting. */
#define FEW 24

static void sort_few(struct sort_item *items, size_t count) {
        for (size_t i = 1; i < count; i++) {
                struct sort_item moved = items[i];
                size_t at = i;
                for (; at > 0 && items[at - 1].key > moved.key; at--)
                        items[at] = items[at - 1];
                items[at] = moved;
        }
}

static void count_bytes(const struct sort_item *items, size_t count, unsigned shift,
                        size_t *ret_starts) {
        size_t counts[256] = {0}, sum = 0;

        for (size_t i = 0; i < count; i++)
                counts[items[i].key >> shift & 0xff]++;
        for (size_t value = 0; value < 256; value++) {
                ret_starts[value] = sum;
                sum += counts[value];
        }
}

/* Byte by byte, the lowest first: each pass keeps the order of the one before it among equals. A
 * byte that all keys share needs no pass. */
void sort_items(struct sort_item *items, struct sort_item *spare, size_t count) {
        struct sort_item *from = items, *to = spare;
        uint64_t differing = 0;
        size_t starts[256];

        if (count <= FEW) {
                sort_few(items, count);
                return;
        }
        for (size_t i = 1; i < count; i++)
                differing |= items[i].key ^ items[0].key;
        for (unsigned shift = 0; shift < 64; shift += 8) {
                if ((differing >> shift & 0xff) == 0)
                        continue;
                count_bytes(from, count, shift, starts);
                for (size_t i = 0; i < count; i++)
                        to[starts[from[i].key >> shift & 0xff]++] = from[i];
                struct sort_item *swap = from;
                from = to;
                to = swap;
        }
        if (from != items)
                memcpy(items, from, count * sizeof *items);
}

/* ---- names ---- */

static const ProtobufCBinaryData *name_of(const struct sort_item *i) {
        return &((const Tensor *) i->item)->name;
}

/* Big-endian, zeros behind the end: names hold no zero byte. */
static uint64_t key_at(const ProtobufCBinaryData *name, size_t depth) {
        uint64_t word = 0;

        if (depth < name->len)
                memcpy(&word, name->data + depth, name->len - depth < 8 ? name->len - depth : 8);
        return be64toh(word);
}

static bool is_before(const struct sort_item *a, const struct sort_item *b, size_t depth) {
        for (;; depth += 8) {
                uint64_t x = key_at(name_of(a), depth), y = key_at(name_of(b), depth);
                if (x != y)
                        return x < y;
                if ((x & 0xff) == 0) /* both end here */
                        return false;
        }
}

static void sort_few_names(struct sort_item *items, size_t count, size_t depth) {
        for (size_t i = 1; i < count; i++) {
                struct sort_item moved = items[i];
                size_t at = i;
                for (; at > 0 && is_before(&moved, &items[at - 1], depth); at--)
                        items[at] = items[at - 1];
                items[at] = moved;
        }
}

/* Names are long, share long beginnings and lie apart in memory, so they are compared eight bytes
 * at a time and by groups: each level reads every name once. */
static void sort_names(struct sort_item *items, struct sort_item *spare, size_t count,
                       size_t depth) {
        if (count <= FEW) {
                sort_few_names(items, count, depth);
                return;
        }
        for (bool all_equal = true; all_equal; depth += 8) {
                for (size_t i = 0; i < count; i++)
                        items[i].key = key_at(name_of(&items[i]), depth);
                sort_items(items, spare, count);
                all_equal = items[0].key == items[count - 1].key;
                if (all_equal && (items[0].key & 0xff) == 0)
                        return; /* the same name */
        }
        for (size_t begin = 0, end; begin < count; begin = end) {
                for (end = begin + 1; end < count && items[end].key == items[begin].key; end++)
                        ;
                if (end - begin > 1)
                        sort_names(items + begin, spare, end - begin, depth);
        }
}

int sort_tensors(Tensor **tensors, size_t count, struct cairn_error *reterr) {
        _cleanup_free_ struct sort_item *items = calloc(2 * count + 1, sizeof *items);

        if (!items)
                return error_set(reterr, CAIRN_ERR_NOMEM, "sort tensors", "",
                                 "there is no memory for %zu names", count);
        for (size_t i = 0; i < count; i++)
                items[i].item = tensors[i];
        sort_names(items, items + count, count, 0);
        for (size_t i = 0; i < count; i++)
                tensors[i] = (Tensor *) (uintptr_t) items[i].item;
        return 0;
}
