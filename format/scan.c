/* SPDX-License-Identifier: Apache-2.0 */
#include "format/scan.h"
#include "base/cleanup.h"
#include "format/check.h"
#include "format/layout.h"
#include "format/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_ARENA_BYTES_MAX (16 * GiB)
#define SCAN_ROUNDS_MAX 5

/* ---- opening ---- */

static int visit_nothing(const char *name, void *argument) {
        return 1;
}

int store_read_marker(const struct io_ops *io, int dirfd, const char *path,
                      struct store_marker *ret, struct cairn_error *reterr) {
        _cleanup_(arena_done) struct arena arena;
        struct file_content content;
        struct cairn_error why = CAIRN_ERROR_INIT;

        arena_init(&arena, 1 * MiB);
        if (io->list(io->context, dirfd, visit_nothing, NULL) < 0)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, "list store", path,
                                 "the directory cannot be listed (%s)", strerror(errno));
        int r = file_load(io, dirfd, STORE_MARKER_NAME, FILE_STORE, &arena, &content, NULL, NULL,
                          &why);
        if (r == CAIRN_ERR_NOTFOUND)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "open store", path,
                                 "there is no " STORE_MARKER_NAME " in it: not a store, or not "
                                 "mounted; `cairn init` makes one");
        if (r == CAIRN_ERR_CORRUPT)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "open store", path,
                                 "its " STORE_MARKER_NAME " is not one of Cairn's: %s",
                                 why.message);
        if (r < 0 && reterr)
                *reterr = why;
        if (r == 0) {
                memcpy(ret->id, content.store->store_id.data, sizeof ret->id);
                ret->kind = content.store->kind;
        }
        return r;
}

int store_open(const struct io_ops *io, const char *path, int *ret_dirfd,
               struct cairn_error *reterr) {
        /* The path is the operator's own, links and all; only what is beneath it is not trusted. A
         * table of tests resolves it as it likes. */
        int fd = io == &io_system
                         ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                         : io->openat(io->context, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0 && errno == ENOTDIR)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "open store", path,
                                 "this is not a directory; a store is one, check --store");
        if (fd < 0)
                return error_set_errno(reterr, errno, "open store", path);
        struct store_marker marker;
        int r = store_read_marker(io, fd, path, &marker, reterr);
        if (r < 0) {
                (void) io->close(io->context, fd);
                return r;
        }
        *ret_dirfd = fd;
        return 0;
}

int run_open(const struct io_ops *io, int store_dirfd, const char *run, int *ret_dirfd,
             struct cairn_error *reterr) {
        TRY(name_check_run(run, reterr));
        int fd = io->openat(io->context, store_dirfd, run, O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0 && errno == ENOENT)
                return error_set(reterr, CAIRN_ERR_NOTFOUND, "open run", run,
                                 "the store has no run of this name");
        if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
                return error_set(reterr, CAIRN_ERR_CORRUPT, "open run", run,
                                 "this is no folder, or leads out of the store: not a run");
        if (fd < 0)
                return error_set_errno(reterr, errno, "open run", run);
        *ret_dirfd = fd;
        return 0;
}

/* ---- collecting names ---- */

struct scanning {
        const struct io_ops *io;
        int dirfd;
        const char *run;
        bool check_digests;
        struct run_scan scan;
        size_t generation_capacity, checkpoint_capacity;
        bool out_of_memory;
        bool something_went; /* between the listing and the look at it */
        struct cairn_error *reterr;
};

static void *grow(struct scanning *s, void *array, size_t count, size_t *capacity, size_t bytes) {
        if (count < *capacity)
                return array;
        size_t wanted = *capacity ? *capacity * 2 : 16;
        void *larger = reallocarray(array, wanted, bytes);
        if (!larger) {
                s->out_of_memory = true;
                return NULL;
        }
        *capacity = wanted;
        return larger;
}

/* The claim or its start, whichever the listing gives first. */
static void add_generation(struct scanning *s, uint64_t generation, bool is_start) {
        struct run_scan *scan = &s->scan;
        struct scan_generation *g = NULL;

        for (size_t i = 0; i < scan->generation_count && !g; i++)
                if (scan->generations[i].generation == generation)
                        g = &scan->generations[i];
        if (!g) {
                void *array = grow(s, scan->generations, scan->generation_count,
                                   &s->generation_capacity, sizeof *scan->generations);
                if (!array)
                        return;
                scan->generations = array;
                g = &scan->generations[scan->generation_count++];
                *g = (struct scan_generation){.generation = generation, .error = CAIRN_ERROR_INIT};
        }
        g->started |= is_start;
}

static struct scan_checkpoint *add_checkpoint(struct scanning *s, const char *name) {
        struct run_scan *scan = &s->scan;
        void *array = grow(s, scan->checkpoints, scan->checkpoint_count, &s->checkpoint_capacity,
                           sizeof *scan->checkpoints);
        if (!array)
                return NULL;
        scan->checkpoints = array;
        struct scan_checkpoint *c = &scan->checkpoints[scan->checkpoint_count++];
        *c = (struct scan_checkpoint){.step = -1, .error = CAIRN_ERROR_INIT};
        (void) snprintf(c->name, sizeof c->name, "%s", name);
        return c;
}

static int visit_entry(const char *name, void *argument) {
        struct scanning *s = argument;
        struct scan_checkpoint *c;
        uint64_t generation;
        uint32_t attempt;
        int64_t step;
        bool is_start;

        if (name_parse_generation(name, &generation, &is_start)) {
                if (generation > 0)
                        add_generation(s, generation, is_start);
        } else if (name_parse_checkpoint(name, &step, &generation)) {
                if ((c = add_checkpoint(s, name))) {
                        c->step = step;
                        c->generation = generation;
                }
        } else if (name_parse_pending(name, &generation, &attempt) ||
                   name_parse_stale(name, &generation, &attempt)) {
                if ((c = add_checkpoint(s, name))) {
                        c->generation = generation;
                        c->attempt = attempt;
                        c->is_attempt = true;
                }
        }
        return s->out_of_memory;
}

static int compare_generations(const void *a, const void *b) {
        const struct scan_generation *x = a, *y = b;
        return (x->generation > y->generation) - (x->generation < y->generation);
}

static int compare_checkpoints(const void *a, const void *b) {
        const struct scan_checkpoint *x = a, *y = b;

        if (x->is_attempt != y->is_attempt)
                return x->is_attempt - y->is_attempt;
        if (x->generation != y->generation)
                return x->generation < y->generation ? -1 : 1;
        if (x->is_attempt && x->attempt != y->attempt)
                return x->attempt < y->attempt ? -1 : 1;
        if (x->step != y->step)
                return x->step < y->step ? -1 : 1;
        return strcmp(x->name, y->name); /* one attempt fenced twice */
}

static int collect(struct scanning *s) {
        int r = s->io->list(s->io->context, s->dirfd, visit_entry, s);

        if (r < 0)
                return error_set_errno(s->reterr, errno, "list run", s->run);
        if (s->out_of_memory)
                return error_set_errno(s->reterr, ENOMEM, "list run", s->run);
        struct run_scan *scan = &s->scan;
        if (scan->generation_count > 0) {
                qsort(scan->generations, scan->generation_count, sizeof *scan->generations,
                      compare_generations);
                scan->generation_max = scan->generations[scan->generation_count - 1].generation;
        }
        if (scan->checkpoint_count > 0)
                qsort(scan->checkpoints, scan->checkpoint_count, sizeof *scan->checkpoints,
                      compare_checkpoints);
        return 0;
}

/* What damages one thing; the rest (permission, memory, a store that does not answer) makes the
 * whole scan worthless, since "nothing there" would be concluded from it. */
static bool is_damage(int status) {
        return status == CAIRN_ERR_CORRUPT || status == CAIRN_ERR_NOTFOUND ||
               status == CAIRN_ERR_UNSUPPORTED || status == CAIRN_ERR_MISMATCH ||
               status == CAIRN_ERR_IO || status == CAIRN_ERR_CANNOT_WRITE;
}

/* ---- generations ---- */

/* The nodes of a generation that names them; a later one's replace those of an earlier one. */
static int take_nodes(struct scanning *s, const Cairn__Format__Generation *g) {
        struct run_scan *scan = &s->scan;

        if (!*scan->node || g->n_members == 0)
                return 0;
        free(scan->nodes);
        scan->node_count = 0;
        scan->nodes = calloc(g->n_members, sizeof *scan->nodes);
        if (!scan->nodes)
                return error_set_errno(s->reterr, ENOMEM, "list run", s->run);
        for (size_t i = 0; i < g->n_members; i++) {
                const Cairn__Format__Member *m = g->members[i];
                struct scan_node *n = scan->node_count ? &scan->nodes[scan->node_count - 1] : NULL;
                if (n && bytes_are(&m->host, n->node)) {
                        n->ranks++;
                        continue;
                }
                n = &scan->nodes[scan->node_count++];
                *n = (struct scan_node){.first_rank = m->rank, .ranks = 1};
                (void) snprintf(n->node, sizeof n->node, "%.*s", (int) m->host.len,
                                m->host.len ? (const char *) m->host.data : "");
        }
        return 0;
}

static int read_claim(struct scanning *s, struct scan_generation *g, struct arena *arena,
                      struct file_content *ret) {
        char name[NAME_BYTES];

        name_generation(name, g->generation);
        TRY(file_load(s->io, s->dirfd, name, FILE_GENERATION, arena, ret, NULL, NULL, &g->error));
        if (!bytes_are(&ret->generation->run, s->run))
                return error_set(&g->error, CAIRN_ERR_MISMATCH, "read claim", name,
                                 "it belongs to another run than %s", s->run);
        if (ret->generation->generation != g->generation)
                return error_set(&g->error, CAIRN_ERR_CORRUPT, "read claim", name,
                                 "it is of generation %" PRIu64, ret->generation->generation);
        g->world = ret->generation->world;
        node_ranks(ret->generation, s->scan.node, &g->node_first, &g->node_ranks);
        return take_nodes(s, ret->generation);
}

static int read_start(struct scanning *s, struct scan_generation *g, struct arena *arena,
                      const Cairn__Format__Generation *claim) {
        struct file_content content;
        char name[NAME_BYTES];

        name_generation_start(name, g->generation);
        TRY(file_load(s->io, s->dirfd, name, FILE_GENERATION_START, arena, &content, NULL, NULL,
                      &g->error));
        const Cairn__Format__GenerationStart *start = content.generation_start;
        if (start->generation != g->generation ||
            (claim && memcmp(start->claim_uuid.data, claim->claim_uuid.data, 16) != 0))
                return error_set(&g->error, CAIRN_ERR_CORRUPT, "read start", name,
                                 "it belongs to another claim");
        (void) snprintf(g->parent, sizeof g->parent, "%.*s", (int) start->parent.len,
                        start->parent.len ? (const char *) start->parent.data : "");
        g->parent_generation = start->parent_generation;
        g->parent_step = start->parent.len ? start->parent_step : 0;
        return 0;
}

/* A start that is there but cannot be read is no claim without a start: to ignore it would choose
 * the abandoned branch. Its checkpoints say the same parent. */
static void recover_parent(struct scanning *s, struct scan_generation *g, struct arena *arena) {
        for (size_t i = 0; i < s->scan.checkpoint_count; i++) {
                const struct scan_checkpoint *c = &s->scan.checkpoints[i];
                struct file_content content;
                char path[VERIFY_PATH_BYTES];
                if (c->is_attempt || c->generation != g->generation ||
                    file_load(s->io, s->dirfd, verify_path(path, c->name, COMMIT_NAME), FILE_COMMIT,
                              arena, &content, NULL, NULL, NULL) < 0)
                        continue;
                const ProtobufCBinaryData *parent = &content.commit->parent;
                (void) snprintf(g->parent, sizeof g->parent, "%.*s", (int) parent->len,
                                parent->len ? (const char *) parent->data : "");
                if (!name_parse_checkpoint(g->parent, &g->parent_step, &g->parent_generation))
                        g->parent[0] = '\0';
                return;
        }
}

static int read_generations(struct scanning *s) {
        for (size_t i = 0; i < s->scan.generation_count; i++) {
                _cleanup_(arena_done) struct arena arena;
                struct scan_generation *g = &s->scan.generations[i];
                struct file_content claim = {.kind = FILE_GENERATION};
                arena_init(&arena, RECORD_ARENA_BYTES_MAX);
                int r = read_claim(s, g, &arena, &claim);
                if (r == 0 || is_damage(r)) {
                        int start = g->started ? read_start(s, g, &arena, claim.generation) : 0;
                        if (start < 0 && is_damage(start))
                                recover_parent(s, g, &arena);
                        else if (start < 0)
                                r = start;
                }
                if (r < 0 && !is_damage(r)) {
                        if (s->reterr)
                                *s->reterr = g->error;
                        return r;
                }
        }
        return 0;
}

/* ---- lineage ---- */

static const struct scan_generation *find_generation(const struct run_scan *scan,
                                                     uint64_t generation) {
        for (size_t i = 0; i < scan->generation_count; i++)
                if (scan->generations[i].generation == generation)
                        return &scan->generations[i];
        return NULL;
}

static const struct scan_generation *newest_started(const struct run_scan *scan) {
        for (size_t i = scan->generation_count; i-- > 0;)
                if (scan->generations[i].started)
                        return &scan->generations[i];
        return NULL;
}

/* Up to which step a generation's states are on the lineage; -1: none are. Parents are older than
 * their children (checked when read), so this ends. */
static int64_t lineage_limit(const struct run_scan *scan, uint64_t generation) {
        const struct scan_generation *g = newest_started(scan);
        int64_t limit = STEP_MAX;

        while (g && g->generation > generation) {
                limit = g->parent_step;
                g = g->parent_generation && g->parent_generation < g->generation
                            ? find_generation(scan, g->parent_generation)
                            : NULL;
        }
        return g && g->generation == generation && g->started ? limit : -1;
}

bool scan_on_lineage(const struct run_scan *scan, uint64_t generation, int64_t step) {
        return step <= lineage_limit(scan, generation);
}

/* ---- checkpoints ---- */

static int judge_committed(struct scanning *s, struct scan_checkpoint *c, struct arena *arena) {
        struct file_content content;
        char path[VERIFY_PATH_BYTES];

        TRY(file_load(s->io, s->dirfd, verify_path(path, c->name, COMMIT_NAME), FILE_COMMIT, arena,
                      &content, &c->record_crc32c, NULL, &c->error));
        const Cairn__Format__Head *head = content.head;
        if (!bytes_are(&head->run, s->run))
                return error_set(&c->error, CAIRN_ERR_MISMATCH, "read commit record", path,
                                 "it belongs to another run than %s", s->run);
        if (head->step != c->step || head->generation != c->generation)
                return error_set(&c->error, CAIRN_ERR_CORRUPT, "read commit record", path,
                                 "it is of step %" PRId64 " of generation %" PRIu64, head->step,
                                 head->generation);
        c->attempt = head->attempt;
        c->time_ns = head->time_ns;
        for (size_t i = 0; i < content.commit->n_files; i++)
                c->bytes += content.commit->files[i]->data_bytes;
        if (s->check_digests) {
                struct scan_node here;
                TRY(checkpoint_here(s->io, s->dirfd, c->generation, head->world, &here, &c->error));
                TRY(verify_digests(s->io, s->dirfd, c->name, content.commit, here.first_rank,
                                   here.ranks, &c->error));
                c->validity = CHECKPOINT_VALID;
        } else
                TRY(verify_index_header(s->io, s->dirfd, c->name, content.commit, &c->error));
        if ((head->ending && head->ending->suspect) || head->non_finite_count > 0)
                c->validity = CHECKPOINT_FLAGGED;
        return 0;
}

/* One node's ranks: of one cut, as far as can be seen here. The head of the worst of them. */
static int join_part(struct file_content *const *contents, uint32_t count,
                     struct scan_checkpoint *c, struct file_content *ret) {
        if (count == 0)
                return error_set(&c->error, CAIRN_ERR_CORRUPT, "judge attempt", c->name,
                                 "its generation gives this node no ranks");
        ret->head = contents[0]->head;
        for (uint32_t i = 0; i < count; i++) {
                const Cairn__Format__Head *h = contents[i]->head;
                if (h->generation != ret->head->generation || h->attempt != ret->head->attempt ||
                    h->step != ret->head->step || h->world != ret->head->world)
                        return error_set(&c->error, CAIRN_ERR_CORRUPT, "judge attempt", c->name,
                                         "the manifests of this node's ranks are of different "
                                         "attempts");
                if ((h->ending && h->ending->suspect) || h->non_finite_count > 0)
                        ret->head = contents[i]->head;
        }
        return 0;
}

static int judge_attempt(struct scanning *s, struct scan_checkpoint *c, struct arena *arena) {
        const struct scan_generation *g = find_generation(&s->scan, c->generation);
        int64_t limit = lineage_limit(&s->scan, c->generation);
        struct file_content index = {0};

        if (limit < 0 || !g || g->world == 0)
                return error_set(&c->error, CAIRN_ERR_STALE, "judge attempt", c->name,
                                 "its generation is not on the lineage");
        bool is_part = *s->scan.node;
        uint32_t first = is_part ? g->node_first : 0, count = is_part ? g->node_ranks : g->world;
        struct verify_manifest *manifests = arena_alloc(arena, (count + 1) * sizeof *manifests, 16);
        struct file_content **contents = arena_alloc(arena, (count + 1) * sizeof(void *), 16);
        if (!manifests || !contents)
                return error_set_errno(&c->error, ENOMEM, "judge attempt", c->name);
        for (uint32_t i = 0; i < count; i++) {
                TRY(verify_manifest(s->io, s->dirfd, c->name, s->run, first + i, arena,
                                    &manifests[i], &c->error));
                contents[i] = &manifests[i].content;
        }
        if (is_part)
                TRY(join_part(contents, count, c, &index));
        else
                TRY(layout_merge(contents, g->world, arena, &index, &c->error));
        const Cairn__Format__Head *head = index.head;
        if (head->generation != c->generation || head->attempt != c->attempt)
                return error_set(&c->error, CAIRN_ERR_CORRUPT, "judge attempt", c->name,
                                 "its manifests are of another attempt");
        c->step = head->step;
        c->time_ns = head->time_ns;
        for (uint32_t i = 0; i < count; i++)
                c->bytes += manifests[i].content.head->data_bytes;
        c->on_lineage = c->step <= limit;
        if (!c->on_lineage)
                return error_set(&c->error, CAIRN_ERR_STALE, "judge attempt", c->name,
                                 "step %" PRId64 " is on an abandoned branch", c->step);
        bool flagged = (head->ending && head->ending->suspect) || head->non_finite_count > 0;
        c->validity = flagged ? CHECKPOINT_FLAGGED : CHECKPOINT_ROLLABLE;
        return 0;
}

/* NOTFOUND of a committed checkpoint: the record is missing, or all of it was pruned meanwhile. */
static bool is_gone(const struct scanning *s, const struct scan_checkpoint *c) {
        int fd = s->io->openat(s->io->context, s->dirfd, c->name, O_RDONLY | O_DIRECTORY, 0);

        if (fd >= 0)
                (void) s->io->close(s->io->context, fd);
        return fd < 0 && errno == ENOENT;
}

static int judge(struct scanning *s, struct scan_checkpoint *c, bool *ret_gone) {
        _cleanup_(arena_done) struct arena arena;

        arena_init(&arena, RECORD_ARENA_BYTES_MAX);
        c->on_lineage = !c->is_attempt && c->step <= lineage_limit(&s->scan, c->generation);
        int r = c->is_attempt ? judge_attempt(s, c, &arena) : judge_committed(s, c, &arena);
        *ret_gone = r == CAIRN_ERR_NOTFOUND && is_gone(s, c);
        if (r == CAIRN_ERR_STALE)
                return 0; /* an attempt that does not matter: stays unchecked, the error says why */
        /* A link that somebody put there is no storage that fails: only this one is damaged. */
        bool is_link = r < 0 && (c->error.system_code == ELOOP || c->error.system_code == EXDEV);
        if (r < 0 && !is_damage(r) && !is_link) {
                if (s->reterr)
                        *s->reterr = c->error;
                return r;
        }
        if (r < 0)
                c->validity = CHECKPOINT_DAMAGED;
        return 0;
}

/* An attempt whose commit was given its name by copying it (tiers), or that is left over beside it.
 */
static void drop_committed_attempts(struct run_scan *scan) {
        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                struct scan_checkpoint *attempt = &scan->checkpoints[i];
                for (size_t k = 0; attempt->is_attempt && k < scan->checkpoint_count; k++) {
                        const struct scan_checkpoint *c = &scan->checkpoints[k];
                        if (c->is_attempt || c->generation != attempt->generation ||
                            c->step != attempt->step || c->validity == CHECKPOINT_DAMAGED)
                                continue;
                        attempt->validity = CHECKPOINT_UNCHECKED;
                        (void) error_set(&attempt->error, CAIRN_ERR_EXISTS, "judge attempt",
                                         attempt->name, "%s is the same state, committed", c->name);
                }
        }
}

static int judge_all(struct scanning *s) {
        struct run_scan *scan = &s->scan;
        size_t kept = 0;
        bool gone;

        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                TRY(judge(s, &scan->checkpoints[i], &gone));
                s->something_went |= gone;
                if (!gone)
                        scan->checkpoints[kept++] = scan->checkpoints[i];
        }
        scan->checkpoint_count = kept;
        drop_committed_attempts(scan);
        return 0;
}

/* ---- marks ---- */

static int visit_mark(const char *name, void *argument) {
        struct scanning *s = argument;
        char pin[NAME_BYTES];

        for (size_t i = 0; i < s->scan.checkpoint_count; i++) {
                struct scan_checkpoint *c = &s->scan.checkpoints[i];
                name_pin(pin, c->name);
                c->pinned |= strcmp(pin, name) == 0;
        }
        return 0;
}

static int read_pins(struct scanning *s) {
        int fd = s->io->openat(s->io->context, s->dirfd, MARKS_NAME, O_RDONLY | O_DIRECTORY, 0);

        if (fd < 0)
                return errno == ENOENT ? 0
                                       : error_set_errno(s->reterr, errno, "open marks", s->run);
        int r = s->io->list(s->io->context, fd, visit_mark, s);
        if (r < 0)
                r = error_set_errno(s->reterr, errno, "list marks", s->run);
        (void) s->io->close(s->io->context, fd);
        return r;
}

/* A folder that was copied under another name: what is in it is the other run's, its end too. */
static bool is_foreign(const struct run_scan *scan, uint64_t generation) {
        for (size_t i = 0; i < scan->generation_count; i++)
                if (scan->generations[i].generation == generation)
                        return scan->generations[i].error.status == CAIRN_ERR_MISMATCH;
        return false;
}

static int read_finished(struct scanning *s) {
        _cleanup_(arena_done) struct arena arena;
        struct file_content content;
        struct cairn_error why = CAIRN_ERROR_INIT;

        arena_init(&arena, 2 * MiB);
        int r = file_load(s->io, s->dirfd, MARKS_NAME "/" FINISHED_NAME, FILE_MARK, &arena,
                          &content, NULL, NULL, &why);
        if (r == CAIRN_ERR_NOTFOUND)
                return 0;
        if (r < 0) {
                if (s->reterr)
                        *s->reterr = why;
                return r;
        }
        const Cairn__Format__Mark *mark = content.mark;
        const struct scan_generation *newest = newest_started(&s->scan);
        if (mark->kind != FILE_MARK_FINISHED || (newest && mark->generation < newest->generation) ||
            is_foreign(&s->scan, mark->generation))
                return 0;
        s->scan.finished = true;
        s->scan.finished_step = mark->step;
        (void) snprintf(s->scan.finished_reason, sizeof s->scan.finished_reason, "%.*s",
                        (int) mark->reason.len,
                        mark->reason.len ? (const char *) mark->reason.data : "");
        return 0;
}

/* ---- the scan ---- */

static int scan_once(const struct io_ops *io, int run_dirfd, const char *run, bool check_digests,
                     struct run_scan *ret, bool *ret_went, struct cairn_error *reterr) {
        struct scanning s = {.io = io,
                             .dirfd = run_dirfd,
                             .run = run,
                             .check_digests = check_digests,
                             .reterr = reterr};
        int r;

        TRY_GOTO(collect(&s), fail);
        TRY_GOTO(node_read(io, run_dirfd, s.scan.node, reterr), fail);
        TRY_GOTO(read_generations(&s), fail);
        TRY_GOTO(judge_all(&s), fail);
        TRY_GOTO(read_pins(&s), fail);
        TRY_GOTO(read_finished(&s), fail);
        *ret = s.scan;
        *ret_went = s.something_went;
        return 0;
fail:
        run_scan_done(&s.scan);
        return r;
}

/* What went has mostly made way for something newer, which the listing did not hold yet: without
 * another look a run whose only checkpoint is being replaced would seem to have none. */
int run_scan(const struct io_ops *io, int run_dirfd, const char *run, bool check_digests,
             struct run_scan *ret, struct cairn_error *reterr) {
        bool went = true;

        for (int round = 0; round < SCAN_ROUNDS_MAX && went; round++) {
                if (round > 0)
                        run_scan_done(ret);
                TRY(scan_once(io, run_dirfd, run, check_digests, ret, &went, reterr));
        }
        return 0;
}

void run_scan_done(struct run_scan *scan) {
        if (!scan)
                return;
        free(scan->generations);
        free(scan->checkpoints);
        free(scan->nodes);
        *scan = (struct run_scan){0};
}

/* ---- choosing ---- */

static bool is_candidate(const struct scan_checkpoint *c) {
        if (!c->on_lineage)
                return false;
        return c->is_attempt
                       ? c->validity == CHECKPOINT_ROLLABLE
                       : c->validity == CHECKPOINT_VALID || c->validity == CHECKPOINT_UNCHECKED;
}

int run_scan_check_newest(const struct io_ops *io, int run_dirfd, const char *run,
                          struct run_scan *scan, struct cairn_error *reterr) {
        struct scanning s = {.io = io,
                             .dirfd = run_dirfd,
                             .run = run,
                             .check_digests = true,
                             .scan = *scan,
                             .reterr = reterr};
        const struct scan_checkpoint *newest;
        int r = 0;

        while (r == 0 && (newest = scan_newest(scan, 0)) &&
               newest->validity == CHECKPOINT_UNCHECKED) {
                struct scan_checkpoint *c = &scan->checkpoints[newest - scan->checkpoints];
                bool gone = false;
                c->bytes = 0;
                r = judge(&s, c, &gone);
                if (r == 0 && gone) {
                        memmove(c, c + 1,
                                sizeof *c * (size_t) (scan->checkpoints + scan->checkpoint_count -
                                                      (c + 1)));
                        scan->checkpoint_count--;
                        s.scan.checkpoint_count--;
                }
        }
        return r;
}

/* By (generation, step); of two attempts at one state the later one. */
static int compare_age(const struct scan_checkpoint *a, const struct scan_checkpoint *b) {
        if (a->generation != b->generation)
                return a->generation < b->generation ? -1 : 1;
        if (a->step != b->step)
                return a->step < b->step ? -1 : 1;
        if (a->is_attempt != b->is_attempt)
                return a->is_attempt ? -1 : 1;
        return (a > b) - (a < b); /* one array: attempts ascend in it */
}

const struct scan_checkpoint *scan_newest(const struct run_scan *scan, size_t skip) {
        const struct scan_checkpoint *chosen = NULL;

        for (size_t turn = 0; turn <= skip; turn++) {
                const struct scan_checkpoint *best = NULL;
                for (size_t i = 0; i < scan->checkpoint_count; i++) {
                        const struct scan_checkpoint *c = &scan->checkpoints[i];
                        if (is_candidate(c) && (!chosen || compare_age(c, chosen) < 0) &&
                            (!best || compare_age(c, best) > 0))
                                best = c;
                }
                if (!best)
                        return NULL;
                chosen = best;
        }
        return chosen;
}

/* The operator asked for this step, so that a flagged state will do. */
static int preference(const struct scan_checkpoint *c) {
        bool usable = c->is_attempt ? c->validity == CHECKPOINT_ROLLABLE ||
                                              c->validity == CHECKPOINT_FLAGGED
                                    : c->validity != CHECKPOINT_DAMAGED;
        return 4 * usable + 2 * c->on_lineage + !c->is_attempt;
}

const struct scan_checkpoint *scan_find_step(const struct run_scan *scan, int64_t step) {
        const struct scan_checkpoint *best = NULL;

        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                const struct scan_checkpoint *c = &scan->checkpoints[i];
                if (c->step != step)
                        continue;
                int better = best ? preference(c) - preference(best) : 1;
                if (better > 0 || (better == 0 && compare_age(c, best) > 0))
                        best = c;
        }
        return best;
}
