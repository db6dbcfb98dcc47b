/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ranges.h"
#include "base/cleanup.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static uint64_t chunk_floor(uint64_t offset) {
        return offset / DATA_CHUNK_BYTES * DATA_CHUNK_BYTES;
}

/* ---- what INDEX knows of a file ---- */

struct files {
        const struct file_content *index;
        uint64_t *bytes; /* by rank: to the end of its last extent, in whole blocks */
};

/* The last chunk ends with the file, whose length follows from its extents. */
static int files_measure(struct files *f, struct cairn_error *reterr) {
        uint32_t world = f->index->head->world;
        if (f->bytes)
                return 0;
        f->bytes = calloc(world, sizeof *f->bytes);
        if (!f->bytes)
                return error_set_errno(reterr, ENOMEM, "plan restore", "");
        for (size_t i = 0; i < f->index->tensor_count; i++)
                for (size_t k = 0; k < f->index->tensors[i]->n_extents; k++) {
                        const Cairn__Format__Extent *e = f->index->tensors[i]->extents[k];
                        uint64_t end = (e->offset + e->bytes + DATA_BLOCK_BYTES - 1) /
                                       DATA_BLOCK_BYTES * DATA_BLOCK_BYTES;
                        if (e->rank < world && end > f->bytes[e->rank])
                                f->bytes[e->rank] = end;
                }
        return 0;
}

/* False: INDEX has no checksum of that chunk. */
static bool find_chunk(const struct files *f, uint32_t rank, uint64_t chunk, uint32_t *ret) {
        size_t low = 0, high = f->index->chunk_crcs_count;
        while (low < high) { /* the last record that begins at or before it */
                size_t middle = (low + high) / 2;
                const Cairn__Format__ChunkCrcs *c = f->index->chunk_crcs[middle];
                if (c->rank < rank || (c->rank == rank && c->first_chunk <= chunk))
                        low = middle + 1;
                else
                        high = middle;
        }
        if (low == 0)
                return false;
        const Cairn__Format__ChunkCrcs *c = f->index->chunk_crcs[low - 1];
        if (c->rank != rank || chunk - c->first_chunk >= c->n_crc32c)
                return false;
        *ret = c->crc32c[chunk - c->first_chunk];
        return true;
}

/* ---- whole extents or chunks ---- */

static int take_chunks(struct files *f, struct ranges_want *w, uint64_t begin, uint64_t end,
                       struct cairn_error *reterr) {
        TRY(files_measure(f, reterr));
        uint64_t stop = chunk_floor(end + DATA_CHUNK_BYTES - 1), file_bytes = f->bytes[w->rank];
        w->by_chunks = true;
        w->begin = chunk_floor(begin);
        w->stop = stop < file_bytes ? stop : file_bytes;
        return 0;
}

static bool has_chunks(const struct files *f, const struct ranges_want *w) {
        uint32_t crc;
        return f->index && w->rank < f->index->head->world &&
               find_chunk(f, w->rank, w->need_begin / DATA_CHUNK_BYTES, &crc) &&
               find_chunk(f, w->rank, (w->need_end - 1) / DATA_CHUNK_BYTES, &crc);
}

static int choose(struct files *f, struct ranges_want *w, struct cairn_error *reterr) {
        uint64_t chunks =
                chunk_floor(w->need_end + DATA_CHUNK_BYTES - 1) - chunk_floor(w->need_begin);
        w->begin = w->offset;
        w->stop = w->end;
        if (chunks < w->end - w->offset && has_chunks(f, w))
                return take_chunks(f, w, w->need_begin, w->need_end, reterr);
        return 0;
}

static int compare(const void *a, const void *b) {
        const struct ranges_want *x = *(struct ranges_want *const *) a,
                                 *y = *(struct ranges_want *const *) b;
        if (x->rank != y->rank)
                return x->rank < y->rank ? -1 : 1;
        return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Sorted wants first .. last-1 that overlap: all of them by chunks, or all the same extent.
 * *ret_changed: some were made wider, and may reach others now. */
static int settle_group(struct files *f, struct ranges_want **sorted, size_t first, size_t last,
                        bool *ret_changed, struct cairn_error *reterr) {
        bool any = false;
        for (size_t i = first; i < last; i++)
                any = any || sorted[i]->by_chunks;
        for (size_t i = first; i < last; i++) {
                struct ranges_want *w = sorted[i];
                if (any && !w->by_chunks) {
                        TRY(take_chunks(f, w, w->offset, w->end, reterr));
                        *ret_changed = true;
                } else if (!any &&
                           (w->begin != sorted[first]->begin || w->stop != sorted[first]->stop ||
                            w->crc32c != sorted[first]->crc32c))
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "plan restore", "",
                                         "extents of rank %" PRIu32 " at %" PRIu64 " and %" PRIu64
                                         " overlap",
                                         w->rank, sorted[first]->begin, w->begin);
        }
        return 0;
}

/* The end of the group of overlapping wants that begins at `first`. */
static size_t group_end(struct ranges_want *const *sorted, size_t count, size_t first,
                        uint64_t *ret_stop) {
        size_t last = first + 1;
        *ret_stop = sorted[first]->stop;
        for (; last < count && sorted[last]->rank == sorted[first]->rank &&
               sorted[last]->begin < *ret_stop;
             last++)
                if (sorted[last]->stop > *ret_stop)
                        *ret_stop = sorted[last]->stop;
        return last;
}

static int settle(struct files *f, struct ranges_want **sorted, size_t count,
                  struct cairn_error *reterr) {
        uint64_t stop;
        for (bool changed = true; changed;) {
                changed = false;
                qsort(sorted, count, sizeof(struct ranges_want *), compare);
                for (size_t first = 0, last; first < count; first = last) {
                        last = group_end(sorted, count, first, &stop);
                        TRY(settle_group(f, sorted, first, last, &changed, reterr));
                }
        }
        return 0;
}

/* ---- ranges ---- */

static int add_chunks(const struct files *f, const struct ranges_want *w, uint64_t stop,
                      struct plan_range *ranges, size_t *count, struct cairn_error *reterr) {
        for (uint64_t at = w->begin; at < stop; at += DATA_CHUNK_BYTES) {
                struct plan_range *r = &ranges[(*count)++];
                *r = (struct plan_range){.rank = w->rank,
                                         .file_offset = at,
                                         .bytes = stop - at < DATA_CHUNK_BYTES ? stop - at
                                                                               : DATA_CHUNK_BYTES};
                if (!find_chunk(f, w->rank, at / DATA_CHUNK_BYTES, &r->crc32c))
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "plan restore", "",
                                         "INDEX has no checksum of chunk %" PRIu64
                                         " of rank %" PRIu32,
                                         at / DATA_CHUNK_BYTES, w->rank);
        }
        return 0;
}

static size_t count_ranges(struct ranges_want *const *sorted, size_t count) {
        size_t ranges = 0;
        uint64_t stop;
        for (size_t first = 0, last; first < count; first = last) {
                last = group_end(sorted, count, first, &stop);
                ranges += sorted[first]->by_chunks
                                  ? (stop - sorted[first]->begin + DATA_CHUNK_BYTES - 1) /
                                            DATA_CHUNK_BYTES
                                  : 1;
        }
        return ranges;
}

static int emit(const struct files *f, struct ranges_want **sorted, size_t count,
                struct plan_range *ranges, size_t *ret_count, struct cairn_error *reterr) {
        uint64_t stop;
        *ret_count = 0;
        for (size_t first = 0, last; first < count; first = last) {
                const struct ranges_want *w = sorted[first];
                size_t range = *ret_count;
                last = group_end(sorted, count, first, &stop);
                if (w->by_chunks)
                        TRY(add_chunks(f, w, stop, ranges, ret_count, reterr));
                else
                        ranges[(*ret_count)++] = (struct plan_range){.rank = w->rank,
                                                                     .crc32c = w->crc32c,
                                                                     .file_offset = w->begin,
                                                                     .bytes = stop - w->begin};
                for (size_t i = first; i < last; i++)
                        sorted[i]->range = range;
        }
        return 0;
}

int ranges_make(struct ranges_want *wants, size_t count, const struct file_content *index,
                struct plan_range **ret, size_t *ret_count, struct cairn_error *reterr) {
        struct files f = {.index = index};
        int r = 0;
        *ret = NULL;
        *ret_count = 0;
        _cleanup_free_ struct ranges_want **sorted = calloc(count + 1, sizeof *sorted);
        if (!sorted)
                return error_set_errno(reterr, ENOMEM, "plan restore", "");
        for (size_t i = 0; i < count && r == 0; i++) {
                sorted[i] = &wants[i];
                r = choose(&f, &wants[i], reterr);
        }
        if (r == 0)
                r = settle(&f, sorted, count, reterr);
        if (r == 0) {
                *ret = calloc(count_ranges(sorted, count) + 1, sizeof **ret);
                r = *ret ? emit(&f, sorted, count, *ret, ret_count, reterr)
                         : error_set_errno(reterr, ENOMEM, "plan restore", "");
        }
        free(f.bytes);
        return r;
}
