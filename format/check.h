/* SPDX-License-Identifier: Apache-2.0
 *
 * check.h - the semantic checks of unpacked messages, shared by file.c, check.c and
 * check_tensors.c; what a name must be is asked by registration as well. Errors name the section,
 * its offset in the file and the tensor.
 */
#ifndef CAIRN_CHECK_H
#define CAIRN_CHECK_H

#include "format/file.h"
#include <string.h>

/* Section types, in the order in which they stand in a file. On disk: never reused. */
enum section_type {
        SECTION_HEAD = 1,
        SECTION_INVENTORY_HEAD = 2,
        SECTION_PAGE_DIRECTORY = 3,
        SECTION_TENSORS = 4,
        SECTION_PLACEMENTS = 5,
        SECTION_STATE = 6,
        SECTION_CHUNK_CRCS = 7,
        SECTION_COMMIT = 8,
        SECTION_GENERATION = 9,
        SECTION_GENERATION_START = 10,
        SECTION_STORE = 11,
        SECTION_MARK = 12,
};
const char *section_name(uint32_t type);

/* Where a section stands and which of its kind's items it begins with (its own number of items
 * after the unpacking). */
struct section_place {
        uint32_t type;
        uint64_t offset; /* of the section's header */
        uint64_t bytes;  /* of the payload */
        size_t first_item, item_count;
};

struct check {
        const struct file_content *content;
        const char *object;
        const struct section_place *sections; /* NULL when writing */
        size_t section_count;
        struct cairn_error *reterr;
};

int check_content(const struct check *c);
int check_tensors(const struct check *c);

/* Fill the error for item `item` of a section type; `name` may be NULL. Returns status. */
int check_fail(const struct check *c, int status, enum section_type type, size_t item,
               const ProtobufCBinaryData *name, const char *message, ...)
        __attribute__((format(printf, 6, 7)));

/* Empty bytes have no address. */
static inline bool bytes_equal(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b) {
        return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}
static inline bool bytes_are(const ProtobufCBinaryData *bytes, const char *text) {
        size_t length = strlen(text);
        return bytes->len == length && (length == 0 || memcmp(bytes->data, text, length) == 0);
}

/* Non-empty, at most bytes_max, valid UTF-8 without NUL; returns what is wrong or NULL. */
const char *check_text(const ProtobufCBinaryData *text, size_t bytes_max, bool empty_allowed);

/* Elements of a part of a tensor (NULL: the whole); returns what is wrong or NULL. */
const char *shard_elements(const Cairn__Format__Tensor *t, const Cairn__Format__Shard *shard,
                           uint64_t *ret_elements);

#endif
