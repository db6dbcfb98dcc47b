/* SPDX-License-Identifier: Apache-2.0 */
#include "format/layout.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "format/check.h"
#include "format/dtype.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Cairn__Format__Tensor Tensor;
typedef Cairn__Format__Extent Extent;
typedef Cairn__Format__Shard Shard;

static int fail(struct cairn_error *reterr, int status, const char *operation, const Tensor *t,
                const char *message, ...) __attribute__((format(printf, 5, 6)));

static int fail(struct cairn_error *reterr, int status, const char *operation, const Tensor *t,
                const char *message, ...) {
        char object[256], text[512];
        va_list arguments;

        va_start(arguments, message);
        (void) vsnprintf(text, sizeof text, message, arguments);
        va_end(arguments);
        return error_set(
                reterr, status, operation,
                text_escape(object, sizeof object, (const char *) t->name.data, t->name.len), "%s",
                text);
}

/* ---- a rank's data image ---- */

int layout_assign(struct file_content *inventory, uint32_t rank, struct arena *arena,
                  uint64_t *ret_image_bytes, struct cairn_error *reterr) {
        const char *operation = "lay out data";
        uint64_t at = DATA_BLOCK_BYTES, elements, bytes, room;
        size_t count = inventory->tensor_count;
        Extent *extents = NULL, **pointers = NULL;

        if (arena) {
                extents = arena_alloc(arena, count * sizeof *extents, _Alignof(Extent));
                pointers = arena_alloc(arena, count * sizeof *pointers, _Alignof(Extent *));
                if (!extents || !pointers)
                        return error_set(reterr, CAIRN_ERR_NOMEM, operation, "inventory",
                                         "there is no memory for %zu extents", count);
        }
        if (inventory->placement_count != inventory->tensor_count)
                return error_set(reterr, CAIRN_ERR_API, operation, "inventory",
                                 "%zu placements for %zu tensors", inventory->placement_count,
                                 inventory->tensor_count);
        for (size_t i = 0; i < inventory->tensor_count; i++) {
                Tensor *t = inventory->tensors[i];
                t->n_extents = 0;
                t->extents = NULL;
                if (!inventory->placements[i]->owned || t->alias_of.len > 0)
                        continue;
                const char *why = shard_elements(t, t->shard, &elements);
                if (why)
                        return fail(reterr, CAIRN_ERR_API, operation, t, "%s", why);
                const struct dtype_info *stored = dtype_info(t->stored_dtype);
                const struct dtype_info *runtime = dtype_info(t->runtime_dtype);
                /* Room for the runtime type: a lossy form that over- or underflows falls back. */
                if (!stored || !runtime || !mul_checked(elements, stored->bytes, &bytes) ||
                    !mul_checked(elements,
                                 runtime->bytes > stored->bytes ? runtime->bytes : stored->bytes,
                                 &room))
                        return fail(reterr, CAIRN_ERR_API, operation, t,
                                    "unknown type or a size that does not fit in 64 bits");
                if (bytes == 0)
                        continue;
                if (arena) {
                        cairn__format__extent__init(extents);
                        extents->rank = rank;
                        extents->offset = at;
                        extents->bytes = bytes;
                        extents->shard = t->shard;
                        *pointers = extents++;
                        t->extents = pointers++;
                        t->n_extents = 1;
                }
                if (!add_checked(at, room, &at) || !align_up_checked(at, TENSOR_ALIGNMENT, &at) ||
                    at > DATA_BYTES_MAX)
                        return fail(reterr, CAIRN_ERR_NOMEM, operation, t,
                                    "the data file of rank %" PRIu32 " would be too large", rank);
        }
        if (!align_up_checked(at, DATA_BLOCK_BYTES, &at) || at > DATA_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_NOMEM, operation, "inventory",
                                 "the data file would be too large");
        *ret_image_bytes = at;
        return 0;
}

/* ---- owners of replicated tensors ---- */

struct candidate {
        uint64_t bytes;
        const char *name; /* NULL: the index decides */
        size_t index;
};

/* Largest first; equal ones by name, so that the order of the input does not matter. */
static int compare_candidates(const void *a, const void *b) {
        const struct candidate *x = a, *y = b;

        if (x->bytes != y->bytes)
                return x->bytes > y->bytes ? -1 : 1;
        int order = x->name && y->name ? strcmp(x->name, y->name) : 0;
        return order ? order : (x->index > y->index) - (x->index < y->index);
}

struct load {
        uint64_t bytes;
        uint32_t rank;
};

static bool load_less(const struct load *a, const struct load *b) {
        return a->bytes != b->bytes ? a->bytes < b->bytes : a->rank < b->rank;
}

/* Restore the heap (least load first) after its root grew. */
static void sift_down(struct load *heap, uint32_t count) {
        struct load moved = heap[0];
        size_t at = 0;

        for (size_t child; (child = 2 * at + 1) < count; at = child) {
                if (child + 1 < count && load_less(&heap[child + 1], &heap[child]))
                        child++;
                if (!load_less(&heap[child], &moved))
                        break;
                heap[at] = heap[child];
        }
        heap[at] = moved;
}

int layout_elect_owners(const uint64_t *bytes, const char *const *names, size_t count,
                        uint32_t world, uint32_t *owners, struct cairn_error *reterr) {
        const char *operation = "elect owners";

        if (world == 0 || world > RANK_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, "tensors",
                                 "%" PRIu32 " ranks are not 1 to %d", world, RANK_COUNT_MAX);
        uint64_t bytes_needed;
        if (!mul_checked(count, sizeof(struct candidate), &bytes_needed) ||
            !add_checked(bytes_needed, world * sizeof(struct load), &bytes_needed))
                bytes_needed = SIZE_MAX;
        _cleanup_free_ struct candidate *order = calloc(1, (size_t) bytes_needed);
        if (!order)
                return error_set(reterr, CAIRN_ERR_NOMEM, operation, "tensors",
                                 "there is no memory for %zu candidates", count);
        struct load *heap = (void *) (order + count); /* behind them in the same block */
        for (size_t i = 0; i < count; i++)
                order[i] = (struct candidate){bytes[i], names ? names[i] : NULL, i};
        for (uint32_t rank = 0; rank < world; rank++)
                heap[rank].rank = rank; /* equal loads in the order of ranks are a heap */
        qsort(order, count, sizeof *order, compare_candidates);
        for (size_t i = 0; i < count; i++) {
                owners[order[i].index] = heap[0].rank;
                if (!add_checked(heap[0].bytes, order[i].bytes, &heap[0].bytes))
                        return error_set(reterr, CAIRN_ERR_API, operation, "tensors",
                                         "the sum of all bytes does not fit in 64 bits");
                sift_down(heap, world);
        }
        return 0;
}

/* ---- what a manifest has ---- */

bool layout_in_manifest(const Tensor *t, uint32_t rank) {
        bool holds_nothing = t->shard && t->shard->flat && t->shard->flat_count == 0;
        for (size_t i = 0; i < t->n_shape; i++)
                holds_nothing = holds_nothing && t->shape[i] > 0;
        return rank == 0 || t->n_extents > 0 || !(t->replicated || holds_nothing);
}

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) {
        for (const unsigned char *b = bytes; count > 0; count--)
                hash = (hash ^ *b++) * UINT64_C(0x100000001b3);
        return hash;
}

static uint64_t hash_number(uint64_t hash, uint64_t number) {
        unsigned char bytes[8];
        store_le64(bytes, number);
        return hash_bytes(hash, bytes, sizeof bytes);
}

uint64_t layout_digest_replicated(Tensor *const *tensors, size_t count, uint64_t *ret_count) {
        uint64_t sum = 0;
        *ret_count = 0;
        for (size_t i = 0; i < count; i++) {
                const Tensor *t = tensors[i];
                if (!t->replicated)
                        continue;
                uint64_t hash = hash_number(UINT64_C(0xcbf29ce484222325), t->name.len);
                hash = hash_bytes(hash, t->name.data, t->name.len);
                hash = hash_number(hash, t->role);
                hash = hash_number(hash, t->runtime_dtype);
                hash = hash_number(hash, t->mutates);
                hash = hash_number(hash, t->has_true_step ? (uint64_t) t->true_step : 0);
                hash = hash_number(hash, t->alias_of.len);
                hash = hash_bytes(hash, t->alias_of.data, t->alias_of.len);
                hash = hash_number(hash, t->n_shape);
                for (size_t d = 0; d < t->n_shape; d++)
                        hash = hash_number(hash, t->shape[d]);
                sum += hash;
                ++*ret_count;
        }
        return sum;
}

/* ---- coverage ---- */

static const char *coverage_operation = "check coverage";

static int compare_flat(const void *a, const void *b) {
        const Shard *x = (*(Extent *const *) a)->shard, *y = (*(Extent *const *) b)->shard;
        return (x->flat_start > y->flat_start) - (x->flat_start < y->flat_start);
}

static int check_flat(const Tensor *t, uint64_t elements, struct cairn_error *reterr) {
        _cleanup_free_ Extent **sorted = calloc(t->n_extents, sizeof(void *));
        uint64_t next = 0;

        if (!sorted)
                return fail(reterr, CAIRN_ERR_NOMEM, coverage_operation, t,
                            "there is no memory for %zu parts", t->n_extents);
        memcpy(sorted, t->extents, t->n_extents * sizeof(void *));
        qsort(sorted, t->n_extents, sizeof(void *), compare_flat);
        for (size_t i = 0; i < t->n_extents; i++) {
                const Shard *s = sorted[i]->shard;
                if (s->flat_start != next)
                        return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                                    "elements %" PRIu64 " to %" PRIu64 " are covered %s",
                                    s->flat_start < next ? s->flat_start : next,
                                    s->flat_start < next ? next : s->flat_start,
                                    s->flat_start < next ? "twice" : "by no rank");
                next += s->flat_count; /* inside the tensor, so that it cannot overflow */
        }
        if (next != elements)
                return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                            "elements %" PRIu64 " to %" PRIu64 " are covered by no rank", next,
                            elements);
        return 0;
}

/* Blocks cover a box exactly once if and only if their signed corners cancel but for those of the
 * box: the mixed derivative of "how often is this point covered" is a sum of point masses at the
 * corners, and a function that vanishes far outside is zero if that derivative is. Linear in the
 * number of blocks, where comparing pairs is quadratic. Dimensions that no block splits are left
 * out. */
struct corner {
        uint64_t at[4];
        int64_t sign;
};
#define CORNER_DIMENSIONS_MAX 4

static int compare_corners(const void *a, const void *b) {
        const struct corner *x = a, *y = b;

        for (size_t i = 0; i < CORNER_DIMENSIONS_MAX; i++)
                if (x->at[i] != y->at[i])
                        return x->at[i] < y->at[i] ? -1 : 1;
        return 0;
}

static void add_corners(struct corner *corners, size_t *n, const size_t *split, size_t split_count,
                        const uint64_t *offsets, const uint64_t *extents, int64_t sign) {
        for (size_t mask = 0; mask < (size_t) 1 << split_count; mask++) {
                struct corner c = {.sign = sign};
                for (size_t k = 0; k < split_count; k++) {
                        bool far = mask >> k & 1;
                        c.at[k] = (offsets ? offsets[split[k]] : 0) + (far ? extents[split[k]] : 0);
                        if (far)
                                c.sign = -c.sign;
                }
                corners[(*n)++] = c;
        }
}

static int check_corners(const Tensor *t, const size_t *split, size_t split_count,
                         bool *ret_exact) {
        size_t capacity = (t->n_extents + 1) << split_count, n = 0;
        _cleanup_free_ struct corner *corners = calloc(capacity, sizeof *corners);

        if (!corners)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < t->n_extents; i++) {
                const Shard *s = t->extents[i]->shard;
                add_corners(corners, &n, split, split_count, s->offsets, s->extents, 1);
        }
        add_corners(corners, &n, split, split_count, NULL, t->shape, -1);
        qsort(corners, n, sizeof *corners, compare_corners);
        *ret_exact = true;
        int64_t sum = 0;
        for (size_t i = 0; i < n; i++) {
                sum += corners[i].sign;
                if (i + 1 == n || compare_corners(&corners[i], &corners[i + 1]) != 0) {
                        *ret_exact &= sum == 0;
                        sum = 0;
                }
        }
        return 0;
}

static bool blocks_overlap(const Shard *a, const Shard *b) {
        for (size_t i = 0; i < a->n_offsets; i++)
                if (a->offsets[i] >= b->offsets[i] + b->extents[i] ||
                    b->offsets[i] >= a->offsets[i] + a->extents[i])
                        return false;
        return true;
}

/* More split dimensions than anybody uses: no memory, but pairs. */
static bool any_overlap(const Tensor *t) {
        for (size_t i = 1; i < t->n_extents; i++)
                for (size_t k = 0; k < i; k++)
                        if (blocks_overlap(t->extents[i]->shard, t->extents[k]->shard))
                                return true;
        return false;
}

static int check_blocks(const Tensor *t, uint64_t elements, struct cairn_error *reterr) {
        size_t split[CAIRN_RANK_MAX], split_count = 0;
        uint64_t covered = 0, part;
        bool exact = false;

        for (size_t d = 0; d < t->n_shape; d++)
                for (size_t i = 0; i < t->n_extents; i++)
                        if (t->extents[i]->shard->extents[d] != t->shape[d]) {
                                split[split_count++] = d;
                                break;
                        }
        for (size_t i = 0; i < t->n_extents; i++)
                if (shard_elements(t, t->extents[i]->shard, &part) ||
                    !add_checked(covered, part, &covered))
                        return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                                    "its parts cover too many elements");
        if (split_count > CORNER_DIMENSIONS_MAX)
                exact = !any_overlap(t);
        else if (check_corners(t, split, split_count, &exact) < 0)
                return fail(reterr, CAIRN_ERR_NOMEM, coverage_operation, t,
                            "there is no memory for %zu parts", t->n_extents);
        if (covered != elements)
                return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                            "%zu blocks cover %" PRIu64 " elements of %" PRIu64, t->n_extents,
                            covered, elements);
        return exact ? 0
                     : fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                            "%zu blocks overlap and leave gaps", t->n_extents);
}

static int check_tensor_coverage(const Tensor *t, struct cairn_error *reterr) {
        uint64_t elements;
        size_t whole = 0, flat = 0;

        const char *why = shard_elements(t, NULL, &elements);
        if (why)
                return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t, "%s", why);
        if (t->alias_of.len > 0 || elements == 0)
                return t->n_extents == 0 ? 0
                                         : fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                                                "a tied or empty tensor has bytes");
        if (t->n_extents == 1 && !t->extents[0]->shard)
                return 0;
        for (size_t i = 0; i < t->n_extents; i++) {
                const Shard *s = t->extents[i]->shard;
                whole += !s;
                flat += s && s->flat;
                if ((why = shard_elements(t, s, &(uint64_t){0})))
                        return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t, "%s", why);
        }
        if (t->n_extents == 0)
                return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                            "no rank has written it");
        if (whole > 1 && whole == t->n_extents && t->replicated)
                return 0; /* a copy on each node */
        if (whole > 1 && whole == t->n_extents)
                return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                            "%zu ranks have written the whole tensor: what all ranks hold alike is "
                            "registered `replicated`, a part of it `sharded`",
                            whole);
        if (whole > 0 || (flat > 0 && flat < t->n_extents))
                return fail(reterr, CAIRN_ERR_CORRUPT, coverage_operation, t,
                            "its parts are of different forms (%zu whole, %zu flat, %zu blocks)",
                            whole, flat, t->n_extents - whole - flat);
        return flat ? check_flat(t, elements, reterr) : check_blocks(t, elements, reterr);
}

int layout_check_coverage(const struct file_content *index, struct cairn_error *reterr) {
        for (size_t i = 0; i < index->tensor_count; i++)
                TRY(check_tensor_coverage(index->tensors[i], reterr));
        return 0;
}

/* ---- lookup ---- */

Extent *const *layout_extents(const Tensor *t, struct layout_ranks ranks, size_t *ret_count) {
        *ret_count = t->n_extents;
        if (t->n_extents < 2 || t->extents[0]->shard)
                return t->extents;
        *ret_count = 1;
        for (size_t i = 0; i < t->n_extents; i++)
                if (t->extents[i]->rank - ranks.first < ranks.count) /* wraps below the first */
                        return &t->extents[i];
        return t->extents;
}

ptrdiff_t layout_find(const struct file_content *index, const void *name, size_t name_bytes) {
        size_t low = 0, high = index->tensor_count;

        while (low < high) {
                size_t middle = low + (high - low) / 2;
                const ProtobufCBinaryData *at = &index->tensors[middle]->name;
                size_t shorter = at->len < name_bytes ? at->len : name_bytes;
                int order = shorter ? memcmp(at->data, name, shorter) : 0;
                if (order == 0 && at->len == name_bytes)
                        return (ptrdiff_t) middle;
                if (order < 0 || (order == 0 && at->len < name_bytes))
                        low = middle + 1;
                else
                        high = middle;
        }
        return -1;
}
