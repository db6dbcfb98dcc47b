/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/survey.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char operation[] = "start run";

struct survey {
        const struct survey_node *nodes;
        size_t node_count;
        struct run_scan merged;
};

/* ---- generations ---- */

static int compare_generations(const void *a, const void *b) {
        const struct scan_generation *x = a, *y = b;
        return (x->generation > y->generation) - (x->generation < y->generation);
}

/* The same generation on two nodes: whichever has its start says the parent. */
static void join_generation(struct scan_generation *known, const struct scan_generation *g) {
        bool better = g->error.status == 0 && (known->error.status < 0 || !known->started);
        if (better && (g->started || !known->started))
                *known = *g;
        known->started |= g->started;
}

static int merge_generations(struct survey *s) {
        struct run_scan *m = &s->merged;
        size_t capacity = 1, kept = 0;

        for (size_t i = 0; i < s->node_count; i++)
                capacity += s->nodes[i].scan.generation_count;
        m->generations = calloc(capacity, sizeof *m->generations);
        if (!m->generations)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < s->node_count; i++) {
                const struct run_scan *scan = &s->nodes[i].scan;
                if (scan->generation_count)
                        memcpy(m->generations + m->generation_count, scan->generations,
                               scan->generation_count * sizeof *m->generations);
                m->generation_count += scan->generation_count;
                if (scan->generation_max > m->generation_max)
                        m->generation_max = scan->generation_max;
        }
        qsort(m->generations, m->generation_count, sizeof *m->generations, compare_generations);
        for (size_t i = 0; i < m->generation_count; i++)
                if (kept > 0 && m->generations[kept - 1].generation == m->generations[i].generation)
                        join_generation(&m->generations[kept - 1], &m->generations[i]);
                else
                        m->generations[kept++] = m->generations[i];
        m->generation_count = kept;
        return 0;
}

static uint64_t newest_started(const struct run_scan *scan) {
        for (size_t i = scan->generation_count; i-- > 0;)
                if (scan->generations[i].started)
                        return scan->generations[i].generation;
        return 0;
}

/* One node's word is enough, unless a later generation was started elsewhere. */
static void merge_finished(struct survey *s) {
        struct run_scan *m = &s->merged;

        for (size_t i = 0; i < s->node_count && !m->finished; i++) {
                const struct run_scan *scan = &s->nodes[i].scan;
                if (!scan->finished || newest_started(scan) != newest_started(m))
                        continue;
                m->finished = true;
                m->finished_step = scan->finished_step;
                memcpy(m->finished_reason, scan->finished_reason, sizeof m->finished_reason);
        }
}

/* ---- a node's part of a checkpoint ---- */

enum part { PART_NONE, PART_DAMAGED, PART_WHOLE, PART_COMMITTED };

static enum part part_of(const struct scan_checkpoint *c) {
        switch (c->validity) {
        case CHECKPOINT_ROLLABLE:
                return PART_WHOLE;
        case CHECKPOINT_FLAGGED:
                return c->is_attempt ? PART_WHOLE : PART_COMMITTED;
        case CHECKPOINT_DAMAGED:
                return PART_DAMAGED;
        default:
                return c->is_attempt ? PART_NONE : PART_COMMITTED;
        }
}

static bool is_same(const struct scan_checkpoint *a, const struct scan_checkpoint *b) {
        return a->generation == b->generation && a->step == b->step && a->attempt == b->attempt;
}

/* The best that a node has of it. A damaged record may not say the attempt. */
static enum part find_part(const struct survey_node *node, const struct scan_checkpoint *wanted,
                           const struct scan_checkpoint **ret) {
        enum part best = PART_NONE;

        *ret = NULL;
        for (size_t i = 0; i < node->scan.checkpoint_count; i++) {
                const struct scan_checkpoint *c = &node->scan.checkpoints[i];
                enum part part = part_of(c);
                bool same = is_same(c, wanted) ||
                            (part == PART_DAMAGED && !c->is_attempt &&
                             c->generation == wanted->generation && c->step == wanted->step);
                if (same && part > best) {
                        best = part;
                        *ret = c;
                }
        }
        return best;
}

static int lacks(const struct survey_node *node, enum part part, const struct scan_checkpoint *of,
                 struct scan_checkpoint *c) {
        char text[400];

        c->validity = CHECKPOINT_DAMAGED;
        c->is_attempt = false;
        if (part == PART_DAMAGED)
                return error_set(&c->error, CAIRN_ERR_CORRUPT, "read checkpoint", c->name,
                                 "node %s: %s", node->place.node,
                                 error_format(&of->error, text, sizeof text));
        return error_set(&c->error, CAIRN_ERR_CORRUPT, "read checkpoint", c->name,
                         "node %s does not hold its part, that of %" PRIu32
                         " ranks from rank %" PRIu32 " on",
                         node->place.node, node->place.ranks, node->place.first_rank);
}

/* What all nodes' parts of it are together. */
static void judge(const struct survey *s, struct scan_checkpoint *c) {
        const struct scan_checkpoint *of, *record = NULL;
        bool flagged = false, all_committed = true;

        c->bytes = 0;
        for (size_t i = 0; i < s->node_count; i++) {
                enum part part = find_part(&s->nodes[i], c, &of);
                if (part < PART_WHOLE) {
                        (void) lacks(&s->nodes[i], part, of, c);
                        return;
                }
                flagged |= of->validity == CHECKPOINT_FLAGGED;
                all_committed &= part == PART_COMMITTED;
                c->bytes = of->bytes > c->bytes ? of->bytes : c->bytes;
                c->time_ns = of->time_ns;
                if (part != PART_COMMITTED)
                        continue;
                if (record && record->record_crc32c != of->record_crc32c) {
                        c->validity = CHECKPOINT_DAMAGED;
                        c->is_attempt = false;
                        (void) error_set(&c->error, CAIRN_ERR_CORRUPT, "read checkpoint", c->name,
                                         "COMMIT of node %s is not that of the others",
                                         s->nodes[i].place.node);
                        return;
                }
                record = of;
        }
        c->is_attempt = !all_committed;
        c->validity = flagged         ? CHECKPOINT_FLAGGED
                      : all_committed ? CHECKPOINT_VALID
                                      : CHECKPOINT_ROLLABLE;
}

/* ---- checkpoints ---- */

static int compare_checkpoints(const void *a, const void *b) {
        const struct scan_checkpoint *x = a, *y = b;

        if (x->is_attempt != y->is_attempt)
                return x->is_attempt - y->is_attempt;
        if (x->generation != y->generation)
                return x->generation < y->generation ? -1 : 1;
        if (x->step != y->step)
                return x->step < y->step ? -1 : 1;
        return (x->attempt > y->attempt) - (x->attempt < y->attempt);
}

/* A committed one that is damaged everywhere is told, an attempt that nobody has whole is not. */
static bool counts(const struct scan_checkpoint *c) {
        return part_of(c) >= PART_WHOLE || (part_of(c) == PART_DAMAGED && !c->is_attempt);
}

static bool is_known(const struct run_scan *m, const struct scan_checkpoint *c) {
        for (size_t i = 0; i < m->checkpoint_count; i++) {
                const struct scan_checkpoint *k = &m->checkpoints[i];
                bool same_state = k->generation == c->generation && k->step == c->step;
                if (is_same(k, c) || (same_state && part_of(c) == PART_DAMAGED))
                        return true;
        }
        return false;
}

static void collect(struct survey *s, bool damaged) {
        struct run_scan *m = &s->merged;

        for (size_t i = 0; i < s->node_count; i++)
                for (size_t k = 0; k < s->nodes[i].scan.checkpoint_count; k++) {
                        const struct scan_checkpoint *c = &s->nodes[i].scan.checkpoints[k];
                        if (!counts(c) || (part_of(c) == PART_DAMAGED) != damaged || is_known(m, c))
                                continue;
                        struct scan_checkpoint *known = &m->checkpoints[m->checkpoint_count++];
                        *known = *c;
                        name_checkpoint(known->name, c->step, c->generation);
                        known->error = (struct cairn_error) CAIRN_ERROR_INIT;
                        known->on_lineage = scan_on_lineage(m, c->generation, c->step);
                }
}

static int merge_checkpoints(struct survey *s) {
        struct run_scan *m = &s->merged;
        size_t capacity = 1;

        for (size_t i = 0; i < s->node_count; i++)
                capacity += s->nodes[i].scan.checkpoint_count;
        m->checkpoints = calloc(capacity, sizeof *m->checkpoints);
        if (!m->checkpoints)
                return CAIRN_ERR_NOMEM;
        collect(s, false);
        collect(s, true);
        for (size_t i = 0; i < m->checkpoint_count; i++)
                judge(s, &m->checkpoints[i]);
        qsort(m->checkpoints, m->checkpoint_count, sizeof *m->checkpoints, compare_checkpoints);
        return 0;
}

/* ---- the nodes ---- */

static void list_nodes(const struct scan_node *nodes, size_t count, size_t stride, char *text,
                       size_t bytes) {
        size_t used = 0;

        for (size_t i = 0; i < count; i++) {
                const struct scan_node *n = (const void *) ((const char *) nodes + i * stride);
                int more = snprintf(text + used, bytes - used, "%s%s (%" PRIu32 " ranks)",
                                    used ? ", " : "", n->node, n->ranks);
                if (more < 0 || (size_t) more >= bytes - used)
                        return;
                used += (size_t) more;
        }
}

static bool same_nodes(const struct survey *s, const struct run_scan *known) {
        bool same = known->node_count == s->node_count;

        for (size_t i = 0; same && i < s->node_count; i++) {
                const struct scan_node *a = &known->nodes[i], *b = &s->nodes[i].place;
                same = strcmp(a->node, b->node) == 0 && a->first_rank == b->first_rank &&
                       a->ranks == b->ranks;
        }
        return same;
}

/* The newest generation that names its nodes: all of a run's have the same ones. */
static const struct run_scan *find_nodes(const struct survey *s) {
        const struct run_scan *best = NULL;

        for (size_t i = 0; i < s->node_count; i++) {
                const struct run_scan *scan = &s->nodes[i].scan;
                if (scan->node_count && (!best || newest_started(scan) > newest_started(best)))
                        best = scan;
        }
        return best;
}

static int check_nodes(const struct survey *s, const char *run, struct cairn_error *reterr) {
        const struct run_scan *known = find_nodes(s);
        char then[300] = "", now[300] = "";

        if (s->merged.checkpoint_count == 0 || !known || same_nodes(s, known))
                return 0;
        list_nodes(known->nodes, known->node_count, sizeof *known->nodes, then, sizeof then);
        list_nodes(&s->nodes->place, s->node_count, sizeof *s->nodes, now, sizeof now);
        return error_set(reterr, CAIRN_ERR_MISMATCH, operation, run,
                         "in node-local stores each node alone has its ranks' data: the run is one "
                         "of nodes %s, and here are %s; start it on the nodes that it began on "
                         "(--node, --nproc-per-node), or use a shared store for a run whose nodes "
                         "change",
                         then, now);
}

/* Two nodes on one machine that were given one directory, or a copy of a store. */
static int check_stores(const struct survey *s, const char *run, struct cairn_error *reterr) {
        for (size_t i = 0; i < s->node_count; i++) {
                const struct survey_node *a = &s->nodes[i];
                if (*a->scan.node && strcmp(a->scan.node, a->place.node) != 0)
                        return error_set(reterr, CAIRN_ERR_MISMATCH, operation, run,
                                         "the directory that node %s gives as its store is that of "
                                         "node %s",
                                         a->place.node, a->scan.node);
                for (size_t k = 0; k < i; k++)
                        if (memcmp(a->store_id, s->nodes[k].store_id, sizeof a->store_id) == 0)
                                return error_set(
                                        reterr, CAIRN_ERR_MISMATCH, operation, run,
                                        "nodes %s and %s have the same store, which was made "
                                        "node-local: give each its own (`cairn init --kind "
                                        "node-local`), or make a shared one",
                                        s->nodes[k].place.node, a->place.node);
        }
        return 0;
}

int survey_merge(const struct survey_node *nodes, size_t count, const char *run,
                 struct run_scan *ret, struct cairn_error *reterr) {
        struct survey s = {.nodes = nodes, .node_count = count};
        int r;

        TRY(check_stores(&s, run, reterr));
        if (merge_generations(&s) < 0 || merge_checkpoints(&s) < 0) {
                r = error_set(reterr, CAIRN_ERR_NOMEM, operation, run,
                              "there is no memory for what %zu nodes hold", count);
                goto fail;
        }
        merge_finished(&s);
        TRY_GOTO(check_nodes(&s, run, reterr), fail);
        *ret = s.merged;
        return 0;
fail:
        run_scan_done(&s.merged);
        return r;
}

int survey_holder(const struct survey_node *nodes, size_t count, const struct scan_checkpoint *c) {
        const struct scan_checkpoint *of;

        for (size_t i = 0; i < count; i++)
                if (find_part(&nodes[i], c, &of) == PART_COMMITTED)
                        return (int) i;
        return -1;
}
