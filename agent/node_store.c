/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/node_store.h"
#include "agent/generation.h"
#include "agent/haul.h"
#include "agent/intent.h"
#include "agent/recall.h"
#include "agent/restore.h"
#include "agent/retention.h"
#include "agent/survey.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "format/check.h"
#include "format/crc32c.h"
#include "format/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define INDEX_BYTES_MAX (64 * GiB)
#define MANIFEST_BYTES_MAX (4 * GiB)
#define RECORD_BYTES_MAX (128 * MiB)

static int passage(enum fault point, const char *operation, const char *object,
                   struct cairn_error *reterr) {
        int error_number = fault_point(point);
        return error_number ? error_set_errno(reterr, error_number, operation, object) : 0;
}

/* ---- the run's folder, for one request ---- */

static int open_store(struct store *store, struct cairn_error *reterr) {
        return store->fd >= 0 ? 0 : store_open(store->io, store->path, &store->fd, reterr);
}

static int open_run(struct store *store, const char *run, struct store_run *ret,
                    struct cairn_error *reterr) {
        *ret = (struct store_run){.store = store, .fd = -1, .lock_fd = -1};
        (void) snprintf(ret->run, sizeof ret->run, "%.*s", RUN_NAME_BYTES_MAX, run);
        TRY(open_store(store, reterr));
        return run_open(store->io, store->fd, run, &ret->fd, reterr);
}

/* The folder that holds the attempt, whatever it is called by now. */
static int find_attempt(const struct store_run *run, uint64_t generation, uint32_t attempt,
                        char *ret, struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        _cleanup_(names_done) struct names names = {0};
        uint64_t g;
        uint32_t a;
        int64_t step;

        TRY(names_list(io, run->fd, run->run, &names, reterr));
        for (size_t i = 0; i < names.count; i++) {
                const char *name = names.items[i];
                bool same = (name_parse_pending(name, &g, &a) || name_parse_stale(name, &g, &a)) &&
                            g == generation && a == attempt;
                if (!same && name_parse_checkpoint(name, &step, &g) && g == generation) {
                        _cleanup_(arena_done) struct arena arena;
                        struct file_content record;
                        arena_init(&arena, COMMIT_ARENA_BYTES);
                        same = commit_load_record(io, run->fd, name, &arena, &record, NULL) == 0 &&
                               record.head->attempt == attempt;
                }
                if (same) {
                        (void) snprintf(ret, NAME_BYTES, "%s", name);
                        return 0;
                }
        }
        return error_set(reterr, CAIRN_ERR_NOTFOUND, "find attempt", run->run,
                         "attempt %" PRIu32 " of restart %" PRIu64 " is not in this node's store",
                         attempt, generation);
}

/* ---- looking ---- */

int node_look(struct store *store, const char *run, struct node_look *ret,
              struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct store_run opened = {.fd = -1, .lock_fd = -1};
        _cleanup_(names_done) struct names names = {0};

        *ret = (struct node_look){0};
        int r = open_store(store, &e);
        if (r == CAIRN_ERR_NOTFOUND || r == CAIRN_ERR_MISMATCH)
                return 0;
        if (r == 0)
                r = store_read_marker(store->io, store->fd, store->path, &ret->marker, &e);
        if (r == 0)
                r = open_run(store, run, &opened, &e);
        if (r == CAIRN_ERR_NOTFOUND)
                return 0;
        if (r == 0)
                r = names_list(store->io, opened.fd, run, &names, &e);
        store_run_done(&opened);
        for (size_t i = 0; i < names.count; i++) {
                uint64_t n;
                bool is_start;
                if (name_parse_generation(names.items[i], &n, &is_start) && n > ret->generation_max)
                        ret->generation_max = n;
        }
        if (r < 0 && reterr)
                *reterr = e;
        return r;
}

/* A whole look at what a resume may take: a damaged one is told before the leader chooses. */
static void check_committed(const struct store_run *run, struct run_scan *scan) {
        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                struct scan_checkpoint *c = &scan->checkpoints[i];
                bool usable =
                        c->validity == CHECKPOINT_UNCHECKED || c->validity == CHECKPOINT_FLAGGED;
                if (c->is_attempt || !usable)
                        continue;
                if (checkpoint_check(run->store->io, run->fd, c->name, run->run, false, NULL,
                                     &c->error) < 0)
                        c->validity = CHECKPOINT_DAMAGED;
                else if (c->validity == CHECKPOINT_UNCHECKED)
                        c->validity = CHECKPOINT_VALID;
        }
}

int node_survey(struct store *store, const char *run, int *ret_memfd, struct cairn_error *reterr) {
        struct store_run opened;
        struct run_scan scan = {0};
        struct store_marker marker;

        TRY(open_store(store, reterr));
        TRY(store_read_marker(store->io, store->fd, store->path, &marker, reterr));
        int r = open_run(store, run, &opened, reterr);
        if (r < 0 && r != CAIRN_ERR_NOTFOUND)
                return r;
        if (r == 0)
                r = run_scan(store->io, opened.fd, run, false, &scan, reterr);
        else
                r = 0;
        if (r == 0)
                check_committed(&opened, &scan);
        if (r == 0)
                r = survey_write(&scan, marker.id, ret_memfd, reterr);
        run_scan_done(&scan);
        store_run_done(&opened);
        return r;
}

/* ---- manifests ---- */

static int collect_parts(const struct store_run *run, const char *name, uint64_t generation,
                         struct arena *arena, Cairn__Peer__Parts *parts,
                         struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        struct scan_node here;
        struct file_content claim;
        char claim_name[NAME_BYTES], manifest[NAME_BYTES], path[VERIFY_PATH_BYTES];

        name_generation(claim_name, generation);
        TRY(file_load(io, run->fd, claim_name, FILE_GENERATION, arena, &claim, NULL, NULL, reterr));
        TRY(checkpoint_here(io, run->fd, generation, claim.generation->world, &here, reterr));
        Cairn__Peer__Part *rows = arena_alloc(arena, (here.ranks + 1) * sizeof *rows, 16);
        parts->parts = arena_alloc(arena, (here.ranks + 1) * sizeof(void *), 16);
        if (!rows || !parts->parts)
                return error_set_errno(reterr, ENOMEM, "read manifests", name);
        for (uint32_t i = 0; i < here.ranks; i++) {
                struct verify_manifest m;
                void *bytes = NULL;
                size_t count;
                uint32_t rank = here.first_rank + i;
                TRY(verify_manifest(io, run->fd, name, run->run, rank, arena, &m, reterr));
                name_manifest(manifest, rank);
                TRY(io_read_file(io, run->fd, verify_path(path, name, manifest), MANIFEST_BYTES_MAX,
                                 &bytes, &count, reterr));
                if (!arena_adopt(arena, bytes, count)) {
                        free(bytes);
                        return error_set_errno(reterr, ENOMEM, "read manifests", name);
                }
                cairn__peer__part__init(&rows[i]);
                rows[i].rank = rank;
                rows[i].manifest = (ProtobufCBinaryData){count, bytes};
                parts->parts[parts->n_parts++] = &rows[i];
        }
        return 0;
}

int node_parts(struct store *store, const char *run, uint64_t generation, uint32_t attempt,
               int *ret_memfd, struct cairn_error *reterr) {
        Cairn__Peer__Parts parts = CAIRN__PEER__PARTS__INIT;
        struct store_run opened;
        struct arena arena;
        char name[NAME_BYTES];
        int r;

        arena_init(&arena, COMMIT_ARENA_BYTES);
        TRY_GOTO(open_run(store, run, &opened, reterr), finish);
        TRY_GOTO(find_attempt(&opened, generation, attempt, name, reterr), finish);
        TRY_GOTO(collect_parts(&opened, name, generation, &arena, &parts, reterr), finish);
        TRY_GOTO(haul_pack(&parts.base, ret_memfd, reterr), finish);
finish:
        store_run_done(&opened);
        arena_done(&arena);
        return r;
}

/* ---- INDEX and COMMIT ---- */

static void *take(void *context, size_t bytes) {
        return arena_alloc(context, bytes, _Alignof(max_align_t));
}

static void leave(void *context, void *memory) {
        (void) context;
        (void) memory;
}

/* A message of a memfd; in the arena. */
static int read_message(int fd, const ProtobufCMessageDescriptor *d, struct arena *arena,
                        ProtobufCMessage **ret, struct cairn_error *reterr) {
        ProtobufCAllocator allocator = {take, leave, arena};
        size_t count;
        void *bytes;

        TRY(haul_map(fd, HAUL_BYTES_MAX, &bytes, &count, reterr));
        *ret = protobuf_c_message_unpack(d, &allocator, count, bytes);
        (void) munmap(bytes, count);
        return *ret ? 0
                    : error_set(reterr, CAIRN_ERR_CORRUPT, "read message", "peer",
                                "what came is not a %s", d->short_name);
}

static int sort_parts(const Cairn__Peer__Parts *parts, uint32_t world, struct commit_part *ret,
                      struct cairn_error *reterr) {
        for (size_t i = 0; i < parts->n_parts; i++) {
                const Cairn__Peer__Part *p = parts->parts[i];
                if (p->rank >= world || ret[p->rank].bytes || p->manifest.len == 0)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "merge manifests", "peer",
                                         "rank %" PRIu32 " came twice, empty, or is no rank",
                                         p->rank);
                ret[p->rank] = (struct commit_part){p->manifest.data, p->manifest.len};
        }
        for (uint32_t rank = 0; rank < world; rank++)
                if (!ret[rank].bytes)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "merge manifests", "peer",
                                         "no node has sent the manifest of rank %" PRIu32, rank);
        return 0;
}

static int pack_records(const struct commit_files *files, int *ret_memfd,
                        struct cairn_error *reterr) {
        Cairn__Peer__Records m = CAIRN__PEER__RECORDS__INIT;

        m.index = (ProtobufCBinaryData){files->index_bytes, files->index};
        m.commit = (ProtobufCBinaryData){files->record_bytes, files->record};
        return haul_pack(&m.base, ret_memfd, reterr);
}

int node_compose(struct store *store, const char *run, const struct commit_source *source,
                 int parts_fd, int *ret_memfd, struct cairn_error *reterr) {
        _cleanup_free_ struct commit_part *parts = calloc(source->world + 1, sizeof *parts);
        struct commit_source with_parts = *source;
        struct commit_files files = {0};
        struct store_run opened = {.fd = -1, .lock_fd = -1};
        struct arena arena;
        ProtobufCMessage *m;
        int r;

        if (!parts)
                return error_set_errno(reterr, ENOMEM, "merge manifests", run);
        arena_init(&arena, COMMIT_ARENA_BYTES);
        TRY_GOTO(open_run(store, run, &opened, reterr), finish);
        TRY_GOTO(read_message(parts_fd, &cairn__peer__parts__descriptor, &arena, &m, reterr),
                 finish);
        TRY_GOTO(sort_parts((const void *) m, source->world, parts, reterr), finish);
        with_parts.parts = parts;
        TRY_GOTO(commit_compose(&opened, &with_parts, &files, reterr), finish);
        TRY_GOTO(pack_records(&files, ret_memfd, reterr), finish);
finish:
        commit_files_done(&files);
        store_run_done(&opened);
        arena_done(&arena);
        return r;
}

int node_records(struct store *store, const char *run, uint64_t generation, uint32_t attempt,
                 int *ret_memfd, struct cairn_error *reterr) {
        struct commit_files files = {0};
        struct store_run opened;
        char name[NAME_BYTES], path[VERIFY_PATH_BYTES];
        int r;

        TRY_GOTO(open_run(store, run, &opened, reterr), finish);
        TRY_GOTO(find_attempt(&opened, generation, attempt, name, reterr), finish);
        TRY_GOTO(io_read_file(store->io, opened.fd, verify_path(path, name, INDEX_NAME),
                              INDEX_BYTES_MAX, &files.index, &files.index_bytes, reterr),
                 finish);
        TRY_GOTO(io_read_file(store->io, opened.fd, verify_path(path, name, COMMIT_NAME),
                              RECORD_BYTES_MAX, &files.record, &files.record_bytes, reterr),
                 finish);
        TRY_GOTO(pack_records(&files, ret_memfd, reterr), finish);
finish:
        commit_files_done(&files);
        store_run_done(&opened);
        return r;
}

/* Another node's word: is this COMMIT of that attempt, INDEX the one that it has the digest of, and
 * are the files of this node's ranks in `directory` those that it names? */
static int check_records(const struct store_run *run, const char *directory, uint64_t generation,
                         uint32_t attempt, const struct commit_files *files, struct arena *arena,
                         int64_t *ret_step, struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        struct file_content record;
        struct scan_node here;

        TRY(file_read(files->record, files->record_bytes, FILE_COMMIT, COMMIT_NAME, arena, &record,
                      reterr));
        const Cairn__Format__Head *h = record.head;
        if (!bytes_are(&h->run, run->run) || h->generation != generation || h->attempt != attempt ||
            record.commit->index_bytes != files->index_bytes ||
            record.commit->index_crc32c != crc32c(0, files->index, files->index_bytes))
                return error_set(reterr, CAIRN_ERR_CORRUPT, "commit", directory,
                                 "the leader sent a COMMIT of something else");
        TRY(checkpoint_here(io, run->fd, generation, h->world, &here, reterr));
        *ret_step = h->step;
        return verify_digests_of_ranks(io, run->fd, directory, record.commit, here.first_rank,
                                       here.ranks, reterr);
}

static struct commit_files files_of(const Cairn__Peer__Records *m) {
        return (struct commit_files){.index = m->index.data,
                                     .record = m->commit.data,
                                     .index_bytes = m->index.len,
                                     .record_bytes = m->commit.len};
}

int node_record(struct store_run *run, struct attempt *a, int records_fd,
                struct cairn_error *reterr) {
        _cleanup_(arena_done) struct arena arena;
        ProtobufCMessage *m;
        int64_t step;

        arena_init(&arena, COMMIT_ARENA_BYTES);
        TRY(read_message(records_fd, &cairn__peer__records__descriptor, &arena, &m, reterr));
        const struct commit_files files = files_of((const void *) m);
        TRY(check_records(run, a->name, a->generation, a->attempt, &files, &arena, &step, reterr));
        return commit_write_files(run, a, &files, reterr);
}

/* ---- a start ---- */

struct settling {
        struct store_run *run;
        const char *node;
        uint64_t generation;
        const Cairn__Peer__Settle *m;
        struct file_content claim, start;
        struct arena *arena;
        struct start_reply *reply;
};

static int make_run(struct store *store, const char *run, struct store_run *ret,
                    struct cairn_error *reterr) {
        const struct io_ops *io = store->io;

        TRY(name_check_run(run, reterr));
        TRY(open_store(store, reterr));
        TRY(io_make_dir(io, store->fd, run, 0755, true, reterr));
        TRY(open_run(store, run, ret, reterr));
        TRY(io_sync(io, store->fd, run, reterr));
        return io_make_dir(io, ret->fd, MARKS_NAME, 0755, true, reterr);
}

/* From now on, and for good, this is the folder of that node. */
static int mark_node(const struct settling *s, struct cairn_error *reterr) {
        const struct store_run *run = s->run;
        const struct io_ops *io = run->store->io;
        Cairn__Format__Mark mark = CAIRN__FORMAT__MARK__INIT;
        struct file_content content = {.kind = FILE_MARK, .mark = &mark};
        _cleanup_free_ void *bytes = NULL;
        char known[SCAN_NODE_BYTES];
        size_t count;

        TRY(node_read(io, run->fd, known, reterr));
        if (*known)
                return strcmp(known, s->node) == 0
                               ? 0
                               : error_set(reterr, CAIRN_ERR_MISMATCH, "start run", run->run,
                                           "this store holds the run's folder of node %s, and "
                                           "here is node %s",
                                           known, s->node);
        mark.kind = FILE_MARK_NODE;
        mark.reason = (ProtobufCBinaryData){strlen(s->node), (uint8_t *) (uintptr_t) s->node};
        mark.generation = s->generation;
        mark.time_ns = run->store->clock->realtime_ns(run->store->clock->context);
        TRY(file_write(&content, &bytes, &count, reterr));
        int marks = io->openat(io->context, run->fd, MARKS_NAME, O_RDONLY | O_DIRECTORY, 0);
        if (marks < 0)
                return error_set_errno(reterr, errno, "open marks", run->run);
        int r = io_publish_file(io, marks, NODE_NAME, bytes, count, IO_PUBLISH_EXCLUSIVE, reterr);
        (void) io->close(io->context, marks);
        return r;
}

static int check_claim(struct settling *s, struct cairn_error *reterr) {
        const Cairn__Peer__Settle *m = s->m;
        uint32_t first, count;

        TRY(file_read(m->claim.data, m->claim.len, FILE_GENERATION, "GEN", s->arena, &s->claim,
                      reterr));
        TRY(file_read(m->start.data, m->start.len, FILE_GENERATION_START, "GEN.start", s->arena,
                      &s->start, reterr));
        const Cairn__Format__Generation *g = s->claim.generation;
        node_ranks(g, s->node, &first, &count);
        if (g->generation != s->generation ||
            s->start.generation_start->generation != g->generation ||
            !bytes_are(&g->run, s->run->run) || count == 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "start run", s->run->run,
                                 "the leader sent the claim of something else");
        return 0;
}

/* Asked again: what is there is what was to be written. */
static int publish_once(const struct settling *s, const char *name, const ProtobufCBinaryData *file,
                        struct cairn_error *reterr) {
        const struct io_ops *io = s->run->store->io;
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_free_ void *known = NULL;
        size_t count = 0;

        int r = io_publish_file(io, s->run->fd, name, file->data, file->len, IO_PUBLISH_EXCLUSIVE,
                                &e);
        if (r == CAIRN_ERR_EXISTS &&
            io_read_file(io, s->run->fd, name, 64 * MiB, &known, &count, NULL) == 0 &&
            count == file->len && memcmp(known, file->data, count) == 0)
                return io_sync(io, s->run->fd, s->run->run, reterr);
        if (r < 0 && reterr)
                *reterr = e;
        return r;
}

static int roll_forward(struct settling *s, struct cairn_error *reterr) {
        const Cairn__Peer__Settle *m = s->m;
        char from[NAME_BYTES], name[NAME_BYTES];
        bool existed, gone;
        int64_t step, ignored;
        uint64_t generation;

        if (m->rolled_generation == 0)
                return 0;
        if (!m->records)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "roll forward", s->run->run,
                                 "the leader sent no COMMIT");
        const struct commit_files files = files_of(m->records);
        TRY(find_attempt(s->run, m->rolled_generation, m->rolled_attempt, from, reterr));
        if (name_parse_checkpoint(from, &ignored, &generation))
                return 0; /* committed here already */
        TRY(check_records(s->run, from, m->rolled_generation, m->rolled_attempt, &files, s->arena,
                          &step, reterr));
        TRY(generation_publish_files(s->run, from, &files, reterr));
        name_checkpoint(name, step, m->rolled_generation);
        TRY(passage(FAULT_COMMIT_RENAME, "roll forward", name, reterr));
        TRY(commit_give_name(s->run, from, name, &existed, reterr));
        if (existed)
                return retention_trash(s->run, from, &gone, reterr);
        intent_note(s->reply->note, "rolled forward %s, which was written but not committed", name);
        return 0;
}

/* Whatever the leader was told: this node reads from it. */
static int check_parent(const struct settling *s, struct cairn_error *reterr) {
        const struct io_ops *io = s->run->store->io;
        const ProtobufCBinaryData *parent = &s->start.generation_start->parent;
        const ProtobufCBinaryData *source = &s->claim.generation->init_from;
        struct checkpoint_place place;
        char name[STORE_PATH_BYTES];

        if (parent->len > 0) {
                (void) snprintf(name, sizeof name, "%.*s", (int) parent->len,
                                (const char *) parent->data);
                return checkpoint_check(io, s->run->fd, name, s->run->run, false, NULL, reterr);
        }
        if (source->len == 0)
                return 0;
        (void) snprintf(name, sizeof name, "%.*s", (int) source->len, (const char *) source->data);
        TRY(checkpoint_place_open(s->run->store, s->run->run, name, &place, reterr));
        int r = checkpoint_check(io, place.run_fd, place.name, place.run, false, NULL, reterr);
        checkpoint_place_done(s->run->store, &place);
        return r;
}

static int settle(struct settling *s, struct cairn_error *reterr) {
        const struct io_ops *io = s->run->store->io;
        char name[NAME_BYTES], note[STORE_NOTE_BYTES];

        TRY(check_claim(s, reterr));
        TRY(commit_check_fenced(s->run, s->generation, reterr));
        TRY(mark_node(s, reterr));
        name_generation(name, s->generation);
        TRY(passage(FAULT_GENERATION_CLAIM, "claim restart", name, reterr));
        TRY(publish_once(s, name, &s->m->claim, reterr));
        TRY(generation_fence(s->run, s->generation, reterr));
        TRY(roll_forward(s, reterr));
        TRY(io_sync(io, s->run->fd, s->run->run, reterr));
        TRY(check_parent(s, reterr));
        name_generation_start(name, s->generation);
        TRY(passage(FAULT_GENERATION_START, "start restart", name, reterr));
        TRY(commit_check_fenced(s->run, s->generation, reterr));
        TRY(publish_once(s, name, &s->m->start, reterr));
        memcpy(note, s->reply->note, sizeof note);
        TRY(generation_recall(s->run, s->generation, s->reply, reterr));
        memcpy(s->reply->note, note, sizeof note);
        return 0;
}

int node_settle(struct store *store, const char *run, const char *node, uint64_t generation,
                int settle_fd, struct store_run *ret_run, struct start_reply *ret,
                struct cairn_error *reterr) {
        struct store_run opened = {.store = store, .fd = -1, .lock_fd = -1};
        struct settling s = {.run = &opened, .node = node, .generation = generation, .reply = ret};
        struct arena arena;
        ProtobufCMessage *m;
        int r;

        *ret = (struct start_reply){.checkpoint_step = -1};
        arena_init(&arena, COMMIT_ARENA_BYTES);
        s.arena = &arena;
        TRY_GOTO(read_message(settle_fd, &cairn__peer__settle__descriptor, &arena, &m, reterr),
                 finish);
        s.m = (const void *) m;
        intent_note(ret->note, "%.*s", (int) s.m->note.len, (const char *) s.m->note.data);
        TRY_GOTO(make_run(store, run, &opened, reterr), finish);
        TRY_GOTO(settle(&s, reterr), finish);
        *ret_run = opened;
        opened.fd = -1;
finish:
        store_run_done(&opened);
        arena_done(&arena);
        return r;
}
