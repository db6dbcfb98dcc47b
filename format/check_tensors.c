/* SPDX-License-Identifier: Apache-2.0
 *
 * check_tensors.c - what must hold for the tensor records of a file before anything uses them (B09,
 * B60).
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "format/check.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "format/name_table.h"
#include "format/sort.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef Cairn__Format__Tensor Tensor;
typedef Cairn__Format__Extent Extent;
typedef Cairn__Format__Shard Shard;

const char *shard_elements(const Tensor *t, const Shard *shard, uint64_t *ret_elements) {
        uint64_t whole, bytes, elements = 1;

        if (!shape_bytes(t->shape, t->n_shape, CAIRN_U8, &whole, &bytes))
                return "the product of its shape does not fit in 64 bits";
        if (!shard) {
                *ret_elements = whole;
                return NULL;
        }
        if (shard->flat) {
                if (shard->n_offsets || shard->n_extents)
                        return "its flat range also has a block";
                if (shard->flat_count > whole || shard->flat_start > whole - shard->flat_count)
                        return "its flat range ends behind the tensor";
                *ret_elements = shard->flat_count;
                return NULL;
        }
        if (shard->n_offsets != t->n_shape || shard->n_extents != t->n_shape)
                return "its block has another number of dimensions";
        for (size_t i = 0; i < t->n_shape; i++)
                if (shard->extents[i] > t->shape[i] ||
                    shard->offsets[i] > t->shape[i] - shard->extents[i])
                        return "its block ends behind the tensor";
        for (size_t i = 0; i < t->n_shape; i++) /* cannot overflow: at most the whole or 0 */
                elements = whole == 0 ? 0 : elements * shard->extents[i];
        *ret_elements = elements;
        return NULL;
}

#define FAIL(c, i, ...)                                                                           \
        check_fail((c), CAIRN_ERR_CORRUPT, SECTION_TENSORS, (i), &(c)->content->tensors[i]->name, \
                   __VA_ARGS__)

static int check_types(const struct check *c, const Tensor *t, size_t i) {
        struct cairn_error why;

        if (!role_name(t->role))
                return check_fail(c, CAIRN_ERR_UNSUPPORTED, SECTION_TENSORS, i, &t->name,
                                  "role %" PRIu32 " is not known to this version", t->role);
        if (!dtype_info(t->runtime_dtype) || !dtype_info(t->stored_dtype))
                return check_fail(c, CAIRN_ERR_UNSUPPORTED, SECTION_TENSORS, i, &t->name,
                                  "type %" PRIu32 " (stored as %" PRIu32
                                  ") is not known to this version",
                                  t->runtime_dtype, t->stored_dtype);
        if (dtype_check_stored(t->role, t->runtime_dtype, t->stored_dtype, NULL) == 0)
                return 0;
        (void) dtype_check_stored(t->role, t->runtime_dtype, t->stored_dtype, &why);
        return FAIL(c, i, "%s", why.message);
}

static int check_codes(const struct check *c, const Tensor *t, size_t i) {
        TRY(check_types(c, t, i));
        if (t->device_class > 1)
                return FAIL(c, i, "device class %" PRIu32 " is unknown", t->device_class);
        if (t->mutates > CAIRN_ANYTIME)
                return FAIL(c, i, "time of change %" PRIu32 " is unknown", t->mutates);
        if (t->has_true_step &&
            (t->role != CAIRN_STEP || t->true_step < 0 || t->true_step > STEP_MAX))
                return FAIL(c, i, "true step %" PRId64 " is out of range or not of a step tensor",
                            t->true_step);
        if (!t->has_true_step && t->true_step != 0)
                return FAIL(c, i, "true step %" PRId64 " is not marked as present", t->true_step);
        const Cairn__Format__Encoding *e = t->encoding;
        if (e && e->asked_dtype && !dtype_info(e->asked_dtype))
                return check_fail(c, CAIRN_ERR_UNSUPPORTED, SECTION_TENSORS, i, &t->name,
                                  "type %" PRIu32 " is not known to this version", e->asked_dtype);
        if (e && !(e->error_abs_max >= 0))
                return FAIL(c, i, "the error bound of its encoding is negative or no number");
        return 0;
}

static int check_shape(const struct check *c, const Tensor *t, size_t i, uint64_t *ret_elements) {
        const struct dtype_info *runtime = dtype_info(t->runtime_dtype);
        const struct dtype_info *stored = dtype_info(t->stored_dtype);
        uint32_t wider = runtime->bytes > stored->bytes ? t->runtime_dtype : t->stored_dtype;
        uint64_t elements, bytes;

        if (t->n_shape > CAIRN_RANK_MAX)
                return FAIL(c, i, "%zu dimensions are more than %d", t->n_shape, CAIRN_RANK_MAX);
        if (!shape_bytes(t->shape, t->n_shape, wider, ret_elements, &bytes))
                return FAIL(c, i,
                            "the product of its shape and element size does not fit in 64 "
                            "bits");
        if (t->shard) {
                const char *why = shard_elements(t, t->shard, &elements);
                if (why)
                        return FAIL(c, i, "%s", why);
                if (c->content->kind == FILE_INDEX)
                        return FAIL(c, i, "an index records parts by extents, not as one shard");
        }
        return 0;
}

static int check_extent(const struct check *c, const Tensor *t, const Extent *e, uint64_t elements,
                        size_t i) {
        const Cairn__Format__Head *head = c->content->head;
        uint32_t element_bytes = dtype_info(t->stored_dtype)->bytes;
        uint64_t data_bytes = DATA_BYTES_MAX, bytes, end;

        if (c->content->kind == FILE_MANIFEST) {
                data_bytes = head->data_bytes;
                if (e->rank != head->rank)
                        return FAIL(c, i,
                                    "an extent is in the file of rank %" PRIu32
                                    ", the manifest is of rank %" PRIu32,
                                    e->rank, head->rank);
        }
        if (c->content->kind == FILE_INDEX && e->rank >= head->world)
                return FAIL(c, i,
                            "an extent is in the file of rank %" PRIu32 ", there are %" PRIu32
                            " ranks",
                            e->rank, head->world);
        const char *why = e->shard ? shard_elements(t, e->shard, &elements) : NULL;
        if (why)
                return FAIL(c, i, "%s", why);
        if (!mul_checked(elements, element_bytes, &bytes) || bytes != e->bytes)
                return FAIL(c, i,
                            "its extent has %" PRIu64 " bytes, but shape and stored type "
                            "make %" PRIu64 " elements of %" PRIu32 " bytes",
                            e->bytes, elements, element_bytes);
        if (e->bytes == 0)
                return FAIL(c, i, "it has an extent without bytes");
        if (e->offset < DATA_BLOCK_BYTES || e->offset % TENSOR_ALIGNMENT != 0)
                return FAIL(c, i, "offset %" PRIu64 " lies in the header or is not aligned",
                            e->offset);
        if (!add_checked(e->offset, e->bytes, &end) || end > data_bytes)
                return FAIL(c, i,
                            "offset %" PRIu64 " and %" PRIu64
                            " bytes end behind the data file's %" PRIu64,
                            e->offset, e->bytes, data_bytes);
        return 0;
}

/* What the extents make together, as far as one pass over the records shows it. */
struct totals {
        uint64_t bytes;
        size_t extents;
        const Extent *last;
        bool apart; /* each begins behind the end of the one before it */
};

static int check_tensor(const struct check *c, size_t i, struct totals *totals) {
        const Tensor *t = c->content->tensors[i];
        const char *why = check_text(&t->name, TENSOR_NAME_BYTES_MAX, false);
        uint64_t elements;

        if (why)
                return FAIL(c, i, "its name %s", why);
        TRY(check_codes(c, t, i));
        TRY(check_shape(c, t, i, &elements));
        if (t->alias_of.len > 0 && t->n_extents > 0)
                return FAIL(c, i, "a tied tensor has bytes of its own");
        for (size_t k = 0; k < t->n_extents; k++) {
                const Extent *e = t->extents[k], *last = totals->last;
                TRY(check_extent(c, t, e, elements, i));
                if (!add_checked(totals->bytes, e->bytes, &totals->bytes))
                        return FAIL(c, i, "the sum of all bytes does not fit in 64 bits");
                if (last && (e->rank < last->rank ||
                             (e->rank == last->rank && e->offset < last->offset + last->bytes)))
                        totals->apart = false;
                totals->last = e;
                totals->extents++;
        }
        return 0;
}

/* ---- names ---- */

static int check_alias(const struct check *c, const struct name_table *names, size_t i) {
        const struct file_content *content = c->content;
        const Tensor *t = content->tensors[i];
        ssize_t at = names ? name_table_find(names, &t->alias_of)
                           : layout_find(content, t->alias_of.data, t->alias_of.len);

        if (at < 0)
                return FAIL(c, i, "it is tied to a tensor that does not exist");
        const Tensor *base = content->tensors[at];
        if (base->alias_of.len > 0)
                return FAIL(c, i, "it is tied to a tensor that is tied itself");
        /* The stored type is the base's alone: it may have fallen back. */
        if (base->runtime_dtype != t->runtime_dtype || base->n_shape != t->n_shape ||
            (t->n_shape && memcmp(base->shape, t->shape, t->n_shape * sizeof *t->shape) != 0))
                return FAIL(c, i, "it is tied to a tensor of another shape or type");
        return 0;
}

static int check_aliases(const struct check *c, const struct name_table *names) {
        for (size_t i = 0; i < c->content->tensor_count; i++)
                if (c->content->tensors[i]->alias_of.len > 0)
                        TRY(check_alias(c, names, i));
        return 0;
}

static int compare_names(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b) {
        size_t shorter = a->len < b->len ? a->len : b->len;
        int order = memcmp(a->data, b->data, shorter);

        return order ? order : (a->len > b->len) - (a->len < b->len);
}

static int check_names(const struct check *c) {
        const struct file_content *content = c->content;
        struct name_table names;
        ssize_t same = -1;

        if (content->kind == FILE_INDEX) { /* strictly ascending: unique without a table */
                for (size_t i = 1; i < content->tensor_count; i++)
                        if (compare_names(&content->tensors[i - 1]->name,
                                          &content->tensors[i]->name) >= 0)
                                return FAIL(c, i,
                                            "the tensors of an index are not sorted by "
                                            "unique names");
                return check_aliases(c, NULL);
        }
        int r = name_table_init(&names, content->tensors, content->tensor_count, &same, c->reterr);
        if (r == 0)
                r = same >= 0 ? FAIL(c, (size_t) same, "another tensor has this name")
                              : check_aliases(c, &names);
        name_table_done(&names);
        return r;
}

/* ---- overlaps ---- */

/* NOLINTNEXTLINE(misc-redundant-expression): the limits may change */
static_assert(DATA_BYTES_MAX <= UINT64_C(1) << 46 && RANK_COUNT_MAX - 1 <= UINT16_MAX,
              "a rank and an offset fit one key");

static size_t owner_of(const struct check *c, const Extent *e) {
        for (size_t i = 0; i < c->content->tensor_count; i++)
                for (size_t k = 0; k < c->content->tensors[i]->n_extents; k++)
                        if (c->content->tensors[i]->extents[k] == e)
                                return i;
        return 0;
}

/* Extents that are not in the order of their files: those of an index are in that of names. */
static int check_overlaps(const struct check *c, size_t count) {
        _cleanup_free_ struct sort_item *items = calloc(2 * count, sizeof *items);
        size_t n = 0;

        if (!items)
                return error_set(c->reterr, CAIRN_ERR_NOMEM, "check overlaps", c->object,
                                 "%zu bytes are not available", 2 * count * sizeof *items);
        for (size_t i = 0; i < c->content->tensor_count; i++)
                for (size_t k = 0; k < c->content->tensors[i]->n_extents; k++) {
                        const Extent *e = c->content->tensors[i]->extents[k];
                        items[n++] = (struct sort_item){(uint64_t) e->rank << 46 | e->offset, e};
                }
        sort_items(items, items + count, count);
        for (n = 1; n < count; n++) {
                const Extent *before = items[n - 1].item, *e = items[n].item;
                uint64_t end = before->offset + before->bytes;
                if (before->rank == e->rank && e->offset < end)
                        return FAIL(c, owner_of(c, e),
                                    "its bytes at %" PRIu64 " of rank %" PRIu32
                                    " overlap those of another tensor, which end at %" PRIu64,
                                    e->offset, e->rank, end);
        }
        return 0;
}

static int check_totals(const struct check *c, const struct totals *totals) {
        const struct file_content *content = c->content;
        const Cairn__Format__Head *head = content->head;

        if (content->kind == FILE_INVENTORY)
                return 0;
        if (head->tensor_count != content->tensor_count || head->tensor_bytes != totals->bytes)
                return check_fail(c, CAIRN_ERR_CORRUPT, SECTION_HEAD, 0, NULL,
                                  "it announces %" PRIu64 " tensors of %" PRIu64
                                  " bytes, there are %zu of %" PRIu64,
                                  head->tensor_count, head->tensor_bytes, content->tensor_count,
                                  totals->bytes);
        return 0;
}

int check_tensors(const struct check *c) {
        struct totals totals = {.apart = true};

        if (c->content->tensor_count > TENSOR_COUNT_MAX * (c->content->kind == FILE_INDEX ? 64 : 1))
                return check_fail(c, CAIRN_ERR_CORRUPT, SECTION_TENSORS, 0, NULL,
                                  "%zu tensors are more than Cairn takes",
                                  c->content->tensor_count);
        for (size_t i = 0; i < c->content->tensor_count; i++)
                TRY(check_tensor(c, i, &totals));
        TRY(check_names(c));
        TRY(check_totals(c, &totals));
        return totals.apart ? 0 : check_overlaps(c, totals.extents);
}
