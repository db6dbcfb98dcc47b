/* SPDX-License-Identifier: Apache-2.0
 *
 * What may go, and how. The order (generation, step) decides, as numbers: whatever is older than
 * the keep_last-th newest verified checkpoint of the lineage goes, but for the parent of the newest
 * generation and what is pinned. So a branch that was left by going back stays until the new
 * branch has as many checkpoints of its own. Damaged and flagged ones never count.
 */
#include "agent/retention.h"
#include "agent/commit.h"
#include "base/cleanup.h"
#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TREE_DEPTH_MAX = 4 };

/* ---- names ---- */

static int names_visit(const char *name, void *argument) {
        struct names *names = argument;
        size_t bytes = strlen(name);

        if (bytes >= NAME_BYTES)
                return 0;
        if (names->count == names->capacity) {
                size_t capacity = names->capacity ? names->capacity * 2 : 64;
                void *items = realloc(names->items, capacity * sizeof *names->items);
                if (!items) {
                        errno = ENOMEM;
                        return -1;
                }
                names->items = items;
                names->capacity = capacity;
        }
        memcpy(names->items[names->count++], name, bytes + 1);
        return 0;
}

int names_list(const struct io_ops *io, int dirfd, const char *object, struct names *ret,
               struct cairn_error *reterr) {
        struct names names = {0};

        if (io->list(io->context, dirfd, names_visit, &names) < 0) {
                int error_number = errno;
                names_done(&names);
                return error_set_errno(reterr, error_number, "list", object);
        }
        *ret = names;
        return 0;
}

void names_done(struct names *names) {
        free(names->items);
        *names = (struct names){0};
}

/* ---- deleting ---- */

/* Deleting ends at the next entry once its time is over. NULL: it has all the time. */
struct slice {
        const struct clock_ops *clock;
        uint64_t until_ns;
};

static bool is_over(const struct slice *s) {
        return s && clock_now(s->clock) >= s->until_ns;
}

/* 1: its time was over before all was gone. */
static int remove_entry(const struct io_ops *io, int dirfd, const char *name, unsigned depth,
                        const struct slice *slice, struct cairn_error *reterr) {
        _cleanup_(names_done) struct names names = {0};
        int r = 0;

        if (io->unlinkat(io->context, dirfd, name, 0) == 0 || errno == ENOENT)
                return 0;
        if (errno != EISDIR && errno != EPERM)
                return error_set_errno(reterr, errno, "delete", name);
        int fd = io->openat(io->context, dirfd, name, O_RDONLY | O_DIRECTORY, 0);
        if (fd < 0)
                return error_set_errno(reterr, errno, "delete", name);
        if (depth < TREE_DEPTH_MAX)
                r = names_list(io, fd, name, &names, reterr);
        for (size_t i = 0; r == 0 && i < names.count; i++) {
                r = remove_entry(io, fd, names.items[i], depth + 1, slice, reterr);
                if (r == 0 && is_over(slice))
                        r = 1;
        }
        (void) io->close(io->context, fd);
        if (r == 0 && io->unlinkat(io->context, dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
                r = error_set_errno(reterr, errno, "delete", name);
        return r;
}

int retention_remove_tree(struct store_run *run, const char *name, struct cairn_error *reterr) {
        return remove_entry(run->store->io, run->fd, name, 0, NULL, reterr);
}

static int rename_to_trash(struct store_run *run, const char *name, bool *ret_gone,
                           struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        char trash[NAME_BYTES];

        name_trash(trash, name);
        *ret_gone = false;
        int r = io->renameat(io->context, run->fd, name, run->fd, trash, 0);
        if (r < 0 && (errno == ENOTEMPTY || errno == EEXIST)) {
                TRY(retention_remove_tree(run, trash, reterr));
                r = io->renameat(io->context, run->fd, name, run->fd, trash, 0);
        }
        if (r < 0 && errno == ENOENT)
                *ret_gone = true;
        else if (r < 0)
                return error_set_errno(reterr, errno, "move to trash", name);
        return 0;
}

int retention_trash(struct store_run *run, const char *name, bool *ret_gone,
                    struct cairn_error *reterr) {
        TRY(rename_to_trash(run, name, ret_gone, reterr));
        return *ret_gone ? 0 : io_sync(run->store->io, run->fd, run->run, reterr);
}

/* ---- choosing ---- */

static bool is_older(const struct scan_checkpoint *a, const struct scan_checkpoint *b) {
        return a->generation != b->generation ? a->generation < b->generation : a->step < b->step;
}

static bool is_parent_of_newest(const struct run_scan *scan, const struct scan_checkpoint *c) {
        for (size_t i = scan->generation_count; i-- > 0;) {
                const struct scan_generation *g = &scan->generations[i];
                if (g->started)
                        return g->parent_generation != 0 && strcmp(g->parent, c->name) == 0;
        }
        return false;
}

/* The keep_last-th newest verified checkpoint of the lineage; NULL: there are fewer, all stay. */
static const struct scan_checkpoint *find_threshold(const struct run_scan *scan,
                                                    uint32_t keep_last) {
        for (size_t i = scan->checkpoint_count; i-- > 0 && keep_last > 0;) {
                const struct scan_checkpoint *c = &scan->checkpoints[i];
                if (!c->is_attempt && c->on_lineage && c->validity == CHECKPOINT_VALID &&
                    --keep_last == 0)
                        return c;
        }
        return NULL;
}

static const struct scan_checkpoint *find_newest_committed(const struct run_scan *scan) {
        return find_threshold(scan, 1);
}

/* An attempt serves a later start until a later generation has committed. One of the newest
 * generation may be in flight. */
static bool is_finished_attempt(const struct run_scan *scan, const struct scan_checkpoint *c) {
        const struct scan_checkpoint *newest = find_newest_committed(scan);
        return c->is_attempt && newest && c->generation < newest->generation;
}

static int trash_one(struct store_run *run, const char *name, struct cairn_error *reterr) {
        bool gone;
        int error_number = fault_point(FAULT_PRUNE_RENAME);
        if (error_number)
                return error_set_errno(reterr, error_number, "move to trash", name);
        return rename_to_trash(run, name, &gone, reterr);
}

/* Does it go because newer ones are enough? */
static bool is_superseded(const struct run_scan *scan, const struct scan_checkpoint *c,
                          const struct scan_checkpoint *threshold, uint64_t keep_every) {
        bool kept = keep_every > 0 && c->validity == CHECKPOINT_VALID &&
                    (uint64_t) c->step % keep_every == 0;
        return threshold && !c->is_attempt && is_older(c, threshold) && !c->pinned && !kept &&
               !is_parent_of_newest(scan, c);
}

static void note_deleted(struct prune *p, const struct scan_checkpoint *c) {
        size_t used = p->names ? strlen(p->names) : 0;

        p->deleted++;
        p->bytes += c->bytes;
        if (p->names && used + strlen(c->name) + 2 <= p->names_bytes)
                (void) snprintf(p->names + used, p->names_bytes - used, "%s\n", c->name);
}

static int trash_chosen(struct store_run *run, const struct run_scan *scan, struct prune *p,
                        struct cairn_error *reterr) {
        const struct scan_checkpoint *threshold = find_threshold(scan, p->keep_last);

        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                const struct scan_checkpoint *c = &scan->checkpoints[i];
                bool is_old = is_superseded(scan, c, threshold, p->keep_every);
                if (!is_old && !is_finished_attempt(scan, c))
                        continue;
                if (!p->dry_run)
                        TRY(trash_one(run, c->name, reterr));
                if (is_old)
                        note_deleted(p, c);
        }
        return 0;
}

static bool starts_with(const char *text, const char *prefix) {
        return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* One that could not be discarded when it failed: the storage failed then, too. */
static bool is_dead_attempt(const struct prune *p, const char *name) {
        uint64_t generation;
        uint32_t attempt;

        return name_parse_pending(name, &generation, &attempt) && generation == p->generation &&
               attempt < p->attempts_before;
}

/* .trash- is of nobody; .tmp- is of a process that was killed between two steps of io_publish_file
 * (the lock says that no other one of this run is at it). */
static int delete_remains(struct store_run *run, struct prune *p, struct cairn_error *reterr) {
        _cleanup_(names_done) struct names names = {0};
        const struct clock_ops *clock = run->store->clock;
        const struct slice slice = {clock, p->slice_ns ? clock_now(clock) + p->slice_ns : 0};

        TRY(names_list(run->store->io, run->fd, run->run, &names, reterr));
        for (size_t i = 0; i < names.count && !p->more; i++) {
                char name[NAME_BYTES];
                bool gone;
                memcpy(name, names.items[i], sizeof name);
                if (is_dead_attempt(p, name)) {
                        TRY(rename_to_trash(run, name, &gone, reterr));
                        name_trash(name, names.items[i]);
                } else if (!starts_with(name, ".trash-") && !starts_with(name, ".tmp-"))
                        continue;
                int r = remove_entry(run->store->io, run->fd, name, 0, p->slice_ns ? &slice : NULL,
                                     reterr);
                TRY(r);
                p->more = r > 0 || (p->slice_ns && is_over(&slice));
        }
        return 0;
}

int retention_prune(struct store_run *run, struct prune *p, struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        _cleanup_(run_scan_done) struct run_scan scan = {0};

        p->deleted = 0;
        p->bytes = 0;
        p->more = false;
        if (p->names)
                p->names[0] = '\0';
        TRY(run_scan(io, run->fd, run->run, true, &scan, reterr));
        if (p->dry_run)
                return trash_chosen(run, &scan, p, reterr);
        /* What is counted on must be durable by name before anything older goes (B54). */
        TRY(io_sync(io, run->fd, run->run, reterr));
        TRY(trash_chosen(run, &scan, p, reterr));
        TRY(io_sync(io, run->fd, run->run, reterr));
        return delete_remains(run, p, reterr);
}

int retention_run(struct store_run *run, uint32_t keep_last, uint32_t *ret_deleted,
                  struct cairn_error *reterr) {
        struct prune p = {.keep_last = keep_last};

        TRY(retention_prune(run, &p, reterr));
        if (ret_deleted)
                *ret_deleted = p.deleted;
        return 0;
}
