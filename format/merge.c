/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c - layout_merge (layout.h): the manifests of all ranks become the index of the checkpoint.
 */
#include "base/bytes.h"
#include "base/log.h"
#include "format/check.h"
#include "format/dtype.h"
#include "format/layout.h"
#include "format/sort.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef Cairn__Format__Tensor Tensor;

struct merge {
        struct file_content *const *manifests;
        uint32_t world;
        struct arena *arena;
        struct cairn_error *reterr;
        Tensor **tensors; /* all manifests' records by name and rank; then the merged ones */
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

static uint32_t rank_of(const struct merge *m, const Tensor *t) {
        for (uint32_t rank = 0; rank < m->world; rank++)
                for (size_t i = 0; i < m->manifests[rank]->tensor_count; i++)
                        if (m->manifests[rank]->tensors[i] == t)
                                return rank;
        return 0;
}

static int disagree(struct merge *m, const Tensor *t, const char *what) {
        char name[160];

        return error_set(m->reterr, CAIRN_ERR_CORRUPT, "merge manifests",
                         text_escape(name, sizeof name, (const char *) t->name.data, t->name.len),
                         "rank %" PRIu32 " has another %s than an earlier rank", rank_of(m, t),
                         what);
}

/* ---- heads ---- */

static int check_heads(struct merge *m) {
        const Cairn__Format__Head *first = m->manifests[0]->head;

        for (uint32_t rank = 0; rank < m->world; rank++) {
                const Cairn__Format__Head *h = m->manifests[rank]->head;
                const char *what = !bytes_equal(&h->run, &first->run)     ? "run"
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
        head->replicated_digest = head->replicated_count = 0;
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
static int join(struct merge *m, Tensor *merged, bool merged_has_bytes, const Tensor *t) {
        bool both = merged_has_bytes && t->n_extents > 0;
        const char *what =
                merged->role != t->role                           ? "role"
                : merged->runtime_dtype != t->runtime_dtype       ? "type"
                : !same_shape(merged, t)                          ? "shape"
                : merged->mutates != t->mutates                   ? "time of change"
                : merged->replicated != t->replicated             ? "replication"
                : !bytes_equal(&merged->alias_of, &t->alias_of)   ? "tied tensor"
                : both && merged->stored_dtype != t->stored_dtype ? "stored type"
                : merged->has_true_step && t->has_true_step && merged->true_step != t->true_step
                        ? "true step"
                        : NULL;
        if (what)
                return disagree(m, t, what);
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

/* The records of one name, in the order of their ranks, become one; a single one that is as an
 * index has it stays what it is. */
static int merge_group(struct merge *m, Tensor *const *group, size_t count, Tensor **ret) {
        if (count == 1 && !group[0]->shard) {
                *ret = group[0];
                return 0;
        }
        size_t extents = 0;
        for (size_t i = 0; i < count; i++)
                extents += group[i]->n_extents;
        Tensor *merged = allocate(m, 1, sizeof *merged);
        Cairn__Format__Extent **list = allocate(m, extents + 1, sizeof *list);
        if (!merged || !list)
                return no_memory(m);
        *merged = *group[0];
        merged->shard = NULL; /* extents say it */
        merged->extents = list;
        merged->n_extents = 0;
        for (size_t i = 0; i < count; i++) {
                const Tensor *t = group[i];
                if (i > 0)
                        TRY(join(m, merged, merged->n_extents > 0, t));
                if (t->n_extents > 0)
                        memcpy(list + merged->n_extents, t->extents, t->n_extents * sizeof *list);
                merged->n_extents += t->n_extents;
        }
        *ret = merged;
        return 0;
}

static bool same_name(const Tensor *a, const Tensor *b) {
        return bytes_equal(&a->name, &b->name);
}

static int merge_tensors(struct merge *m) {
        size_t n = 0;

        for (uint32_t rank = 0; rank < m->world; rank++)
                m->capacity += m->manifests[rank]->tensor_count;
        m->tensors = allocate(m, m->capacity + 1, sizeof(Tensor *));
        if (!m->tensors)
                return no_memory(m);
        for (uint32_t rank = 0; rank < m->world; rank++) {
                const struct file_content *manifest = m->manifests[rank];
                if (manifest->tensor_count)
                        memcpy(m->tensors + n, manifest->tensors,
                               manifest->tensor_count * sizeof(Tensor *));
                n += manifest->tensor_count;
        }
        TRY(sort_tensors(m->tensors, n, m->reterr)); /* stable: ranks stay in their order */
        for (size_t from = 0, to; from < n; from = to) {
                for (to = from + 1; to < n && same_name(m->tensors[from], m->tensors[to]); to++)
                        ;
                TRY(merge_group(m, m->tensors + from, to - from, &m->tensors[m->count]));
                m->count++;
        }
        return 0;
}

/* A manifest leaves out what others wrote (layout_in_manifest): instead of the records themselves
 * it says what they are together. */
static int check_replicated(struct merge *m) {
        const Cairn__Format__Head *first = m->manifests[0]->head;
        uint64_t count, digest = layout_digest_replicated(m->tensors, m->count, &count);

        for (uint32_t rank = 1; rank < m->world; rank++) {
                const Cairn__Format__Head *h = m->manifests[rank]->head;
                if (h->replicated_count != first->replicated_count ||
                    h->replicated_digest != first->replicated_digest)
                        return error_set(m->reterr, CAIRN_ERR_CORRUPT, "merge manifests",
                                         "manifests",
                                         "rank %" PRIu32 " has registered other replicated tensors "
                                         "than rank 0: %" PRIu64 " of them, %" PRIu64 " there",
                                         rank, h->replicated_count, first->replicated_count);
        }
        if (first->replicated_count == 0 ||
            (count == first->replicated_count && digest == first->replicated_digest))
                return 0;
        return error_set(m->reterr, CAIRN_ERR_CORRUPT, "merge manifests", "manifests",
                         "the ranks have registered %" PRIu64 " replicated tensors, their "
                         "manifests have %" PRIu64 " or other ones",
                         first->replicated_count, count);
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
        TRY(merge_tensors(&m));
        TRY(check_replicated(&m));
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
