/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - layout_merge (layout.h): the manifests of all ranks become the index of the checkpoint.
 */
#include "base/bytes.h"
#include "base/log.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "format/name_table.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef Cairn__Format__Tensor Tensor;

struct merge {
        struct file_content *const *manifests;
        uint32_t world;
        struct arena *arena;
        struct cairn_error *reterr;
        struct name_table names;
        Tensor **tensors;  /* merged records, in the order of first appearance */
        uint32_t *extents; /* how many each will have */
        uint32_t *ids;     /* of the manifests' tensors, rank by rank: index in `tensors` */
        size_t id_count;
        size_t count, capacity;
};

static void *allocate(struct merge *m, size_t count, size_t bytes) {
        uint64_t total;

        if (!mul_checked(count, bytes, &total) || total > SIZE_MAX)
                return NULL;
        return arena_alloc(m->arena, (size_t) total, _Alignof(max_align_t));
}

static int no_memory(struct merge *m) {
        return error_set(m->reterr, CAIRN_ERR_NOMEM, "merge manifests", "index",
                         "there is no memory for %zu tensors", m->capacity);
}

static int disagree(struct merge *m, const Tensor *t, uint32_t rank, const char *what) {
        char name[160];

        return error_set(m->reterr, CAIRN_ERR_CORRUPT, "merge manifests",
                         text_escape(name, sizeof name, (const char *) t->name.data, t->name.len),
                         "rank %" PRIu32 " has another %s than an earlier rank", rank, what);
}

/* ---- heads ---- */

static bool same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b) {
        return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

static int check_heads(struct merge *m) {
        const Cairn__Format__Head *first = m->manifests[0]->head;

        for (uint32_t rank = 0; rank < m->world; rank++) {
                const Cairn__Format__Head *h = m->manifests[rank]->head;
                const char *what = !same_bytes(&h->run, &first->run)      ? "run"
                                   : h->generation != first->generation   ? "generation"
                                   : h->step != first->step               ? "step"
                                   : h->attempt != first->attempt         ? "attempt"
                                   : h->world != m->world                 ? "number of ranks"
                                   : h->rank != rank                      ? "rank"
                                   : m->manifests[rank]->state_count != 1 ? "number of host states"
                                                                          : NULL;
                if (what)
                        return error_set(m->reterr, CAIRN_ERR_CORRUPT, "merge manifests",
                                         "manifests",
                                         "the manifest of rank %" PRIu32
                                         " is of another %s (step %" PRId64 ", first %" PRId64 ")",
                                         rank, what, h->step, first->step);
        }
        return 0;
}

/* The group's head: what is common, the sums, and the worst of the endings. */
static Cairn__Format__Head *merge_head(struct merge *m) {
        Cairn__Format__Head *head = allocate(m, 1, sizeof *head);

        if (!head)
                return NULL;
        *head = *m->manifests[0]->head;
        head->rank = 0;
        head->data_uuid = (ProtobufCBinaryData){0};
        head->data_bytes = 0;
        head->tensor_count = m->count;
        head->tensor_bytes = 0;
        head->non_finite_count = 0;
        for (uint32_t rank = 0; rank < m->world; rank++) {
                const Cairn__Format__Head *h = m->manifests[rank]->head;
                bool worse = h->ending &&
                             (!head->ending || (h->ending->suspect && !head->ending->suspect) ||
                              (h->ending->kind && !head->ending->kind));
                if (worse)
                        head->ending = h->ending;
                head->tensor_bytes += h->tensor_bytes; /* each below 2^46, at most 2^16 of them */
                head->non_finite_count += h->non_finite_count;
                if (h->time_ns > head->time_ns)
                        head->time_ns = h->time_ns;
        }
        return head;
}

/* ---- tensors ---- */

static bool same_shape(const Tensor *a, const Tensor *b) {
        return a->n_shape == b->n_shape &&
               (a->n_shape == 0 || memcmp(a->shape, b->shape, a->n_shape * sizeof *a->shape) == 0);
}

/* Whoever wrote bytes says how they are stored: the other replicas only say what was asked for. */
static int join(struct merge *m, Tensor *merged, bool merged_has_bytes, const Tensor *t,
                uint32_t rank) {
        bool both = merged_has_bytes && t->n_extents > 0;
        const char *what =
                merged->role != t->role                           ? "role"
                : merged->runtime_dtype != t->runtime_dtype       ? "type"
                : !same_shape(merged, t)                          ? "shape"
                : merged->mutates != t->mutates                   ? "time of change"
                : merged->replicated != t->replicated             ? "replication"
                : !same_bytes(&merged->alias_of, &t->alias_of)    ? "tied tensor"
                : both && merged->stored_dtype != t->stored_dtype ? "stored type"
                : merged->has_true_step && t->has_true_step && merged->true_step != t->true_step
                        ? "true step"
                        : NULL;
        if (what)
                return disagree(m, t, rank, what);
        if (t->n_extents > 0 && !merged_has_bytes) {
                merged->stored_dtype = t->stored_dtype;
                merged->encoding = t->encoding;
        } else if (t->n_extents > 0 && t->encoding && merged->encoding &&
                   t->encoding != merged->encoding) {
                Cairn__Format__Encoding *sum = allocate(m, 1, sizeof *sum);
                if (!sum)
                        return no_memory(m);
                *sum = *merged->encoding;
                sum->overflow_count += t->encoding->overflow_count;
                sum->underflow_count += t->encoding->underflow_count;
                if (t->encoding->error_abs_max > sum->error_abs_max)
                        sum->error_abs_max = t->encoding->error_abs_max;
                sum->fell_back |= t->encoding->fell_back;
                merged->encoding = sum;
        }
        if (t->has_true_step && !merged->has_true_step) {
                merged->has_true_step = true;
                merged->true_step = t->true_step;
        }
        return 0;
}

static int add_tensor(struct merge *m, const Tensor *t, uint32_t rank) {
        ssize_t at = name_table_add(&m->names, &t->name, m->count);

        m->ids[m->id_count++] = (uint32_t) (at >= 0 ? (size_t) at : m->count);
        if (at >= 0) {
                TRY(join(m, m->tensors[at], m->extents[at] > 0, t, rank));
                m->extents[at] += (uint32_t) t->n_extents;
                return 0;
        }
        Tensor *merged = allocate(m, 1, sizeof *merged);
        if (!merged)
                return no_memory(m);
        *merged = *t;
        merged->shard = NULL; /* extents say it */
        merged->extents = NULL;
        merged->n_extents = 0;
        m->extents[m->count] = (uint32_t) t->n_extents;
        m->tensors[m->count++] = merged;
        return 0;
}

/* Second pass: now that the number of extents is known, put them in, by rank. */
static int add_extents(struct merge *m) {
        for (size_t i = 0; i < m->count; i++) {
                if (m->extents[i] == 0)
                        continue;
                m->tensors[i]->extents =
                        allocate(m, m->extents[i], sizeof(Cairn__Format__Extent *));
                if (!m->tensors[i]->extents)
                        return no_memory(m);
        }
        size_t n = 0;
        for (uint32_t rank = 0; rank < m->world; rank++)
                for (size_t i = 0; i < m->manifests[rank]->tensor_count; i++) {
                        const Tensor *t = m->manifests[rank]->tensors[i];
                        Tensor *merged = m->tensors[m->ids[n++]];
                        if (t->n_extents == 0)
                                continue;
                        memcpy(merged->extents + merged->n_extents, t->extents,
                               t->n_extents * sizeof(Cairn__Format__Extent *));
                        merged->n_extents += t->n_extents;
                }
        return 0;
}

/* Names are long, share long beginnings and lie apart in memory, so they are compared eight bytes
 * at a time and by groups: each level reads every name once. */
struct keyed {
        uint64_t key; /* big-endian, zeros behind the end: names hold no zero byte */
        Tensor *tensor;
};

static int compare_keys(const void *a, const void *b) {
        const struct keyed *x = a, *y = b;
        return (x->key > y->key) - (x->key < y->key);
}

static uint64_t key_at(const ProtobufCBinaryData *name, size_t depth) {
        uint64_t word = 0;

        if (depth < name->len)
                memcpy(&word, name->data + depth, name->len - depth < 8 ? name->len - depth : 8);
        return be64toh(word);
}

static void sort_from(struct keyed *array, size_t count, size_t depth) {
        for (bool all_equal = count > 1; all_equal; depth += 8) {
                for (size_t i = 0; i < count; i++)
                        array[i].key = key_at(&array[i].tensor->name, depth);
                qsort(array, count, sizeof *array, compare_keys);
                /* Equal to the end: names of an unchecked caller that are not unique. */
                all_equal = array[0].key == array[count - 1].key && (array[0].key & 0xff) != 0;
        }
        for (size_t begin = 0, end; begin < count; begin = end) {
                for (end = begin + 1; end < count && array[end].key == array[begin].key; end++)
                        ;
                if (end - begin > 1 && end - begin < count)
                        sort_from(array + begin, end - begin, depth);
        }
}

static int sort_tensors(struct merge *m) {
        struct keyed *array = calloc(m->count ? m->count : 1, sizeof *array);

        if (!array)
                return no_memory(m);
        for (size_t i = 0; i < m->count; i++)
                array[i].tensor = m->tensors[i];
        sort_from(array, m->count, 0);
        for (size_t i = 0; i < m->count; i++)
                m->tensors[i] = array[i].tensor;
        free(array);
        return 0;
}

static int merge_tensors(struct merge *m) {
        for (uint32_t rank = 0; rank < m->world; rank++)
                m->capacity += m->manifests[rank]->tensor_count;
        m->tensors = allocate(m, m->capacity, sizeof(Tensor *));
        m->extents = allocate(m, m->capacity, sizeof *m->extents);
        m->ids = allocate(m, m->capacity, sizeof *m->ids);
        if (!m->tensors || !m->extents || !m->ids)
                return no_memory(m);
        TRY(name_table_init(&m->names, m->capacity, m->reterr));
        for (uint32_t rank = 0; rank < m->world; rank++)
                for (size_t i = 0; i < m->manifests[rank]->tensor_count; i++)
                        TRY(add_tensor(m, m->manifests[rank]->tensors[i], rank));
        TRY(add_extents(m));
        return sort_tensors(m);
}

/* ---- the rest ---- */

static int merge_lists(struct merge *m, struct file_content *index) {
        size_t chunks = 0, n = 0;

        for (uint32_t rank = 0; rank < m->world; rank++)
                chunks += m->manifests[rank]->chunk_crcs_count;
        index->states = allocate(m, m->world, sizeof(void *));
        index->chunk_crcs = allocate(m, chunks, sizeof(void *));
        if (!index->states || !index->chunk_crcs)
                return no_memory(m);
        index->state_count = m->world;
        index->chunk_crcs_count = chunks;
        for (uint32_t rank = 0; rank < m->world; rank++) {
                const struct file_content *manifest = m->manifests[rank];
                index->states[rank] = manifest->states[0];
                for (size_t i = 0; i < manifest->chunk_crcs_count; i++)
                        index->chunk_crcs[n++] = manifest->chunk_crcs[i];
        }
        return 0;
}

int layout_merge(struct file_content *const *manifests, uint32_t world, struct arena *arena,
                 struct file_content *ret_index, struct cairn_error *reterr) {
        struct merge m = {manifests, world, arena, reterr, .capacity = 0};
        struct file_content index = {.kind = FILE_INDEX};

        if (world == 0 || world > RANK_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "merge manifests", "index",
                                 "%" PRIu32 " ranks are not 1 to %d", world, RANK_COUNT_MAX);
        TRY(check_heads(&m));
        int r = merge_tensors(&m);
        name_table_done(&m.names);
        TRY(r);
        index.tensors = m.tensors;
        index.tensor_count = m.count;
        index.head = merge_head(&m);
        if (!index.head)
                return no_memory(&m);
        TRY(merge_lists(&m, &index));
        TRY(layout_check_coverage(&index, reterr));
        *ret_index = index;
        return 0;
}
