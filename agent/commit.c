/* SPDX-License-Identifier: Apache-2.0
 *
 * Attempts at a checkpoint: created here, acknowledged rank by rank, committed by one rename.
 * Invariants: nothing gets the name of a checkpoint before all that it needs is durable; success is
 * reported only after the last fsync; a write or fsync that failed dooms the attempt.
 */
#include "agent/commit.h"
#include "agent/retention.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "format/check.h"
#include "format/crc32c.h"
#include "format/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- small helpers ---- */

static int passage(enum fault point, const char *operation, const char *object,
                   struct cairn_error *reterr) {
        int error_number = fault_point(point);
        return error_number ? error_set_errno(reterr, error_number, operation, object) : 0;
}

static void close_fd(const struct io_ops *io, int fd) {
        if (fd >= 0)
                (void) io->close(io->context, fd);
}

static void manifest_temporary(char *name, uint32_t rank) {
        char final[NAME_BYTES];
        name_manifest(final, rank);
        (void) snprintf(name, NAME_BYTES, "%.*s.tmp", NAME_BYTES - 5, final);
}

int commit_check_fenced(struct store_run *run, uint64_t generation, struct cairn_error *reterr) {
        _cleanup_(names_done) struct names names = {0};
        uint64_t highest = 0;

        TRY(names_list(run->store->io, run->fd, run->run, &names, reterr));
        for (size_t i = 0; i < names.count; i++) {
                uint64_t n;
                bool is_start;
                if (name_parse_generation(names.items[i], &n, &is_start) && n > highest)
                        highest = n;
        }
        if (highest <= generation)
                return 0;
        return error_set(reterr, CAIRN_ERR_STALE, "check generation", run->run,
                         "restart %" PRIu64 " has taken the run over from restart %" PRIu64
                         "; this one writes no more checkpoints",
                         highest, generation);
}

/* Never over an existing file: this goes through the directory's descriptor, and after a take-over
 * the directory and what is in it belong to the new leader. */
static int write_new_file(const struct io_ops *io, int dir_fd, const char *name, const void *bytes,
                          size_t bytes_count, struct cairn_error *reterr) {
        int fd = io->openat(io->context, dir_fd, name, O_WRONLY | O_CREAT | O_EXCL, 0644), r;

        if (fd < 0)
                return error_set_errno(reterr, errno, "create", name);
        TRY_GOTO(io_write_all(io, fd, bytes, bytes_count, 0, name, reterr), finish);
        TRY_GOTO(io_sync(io, fd, name, reterr), finish);
finish:
        close_fd(io, fd);
        return r;
}

/* ---- attempts ---- */

int attempt_open(struct store_run *run, uint64_t generation, uint32_t attempt, uint32_t world,
                 struct attempt *ret, struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        struct attempt a = {.generation = generation, .attempt = attempt, .world = world};
        int r;

        name_pending(a.name, generation, attempt);
        TRY(passage(FAULT_ATTEMPT_OPEN, "create folder", a.name, reterr));
        /* It may exist: each node of the group opens it for its ranks. */
        TRY(io_make_dir(io, run->fd, a.name, 0755, true, reterr));
        a.dir_fd = io->openat(io->context, run->fd, a.name, O_RDONLY | O_DIRECTORY, 0);
        if (a.dir_fd < 0)
                return error_set_errno(reterr, errno, "open folder", a.name);
        /* A later leader renames what it sees; what it did not see is found here. */
        r = commit_check_fenced(run, generation, reterr);
        if (r < 0) {
                (void) io->unlinkat(io->context, run->fd, a.name, AT_REMOVEDIR);
                attempt_done(&a, io);
                return r;
        }
        *ret = a;
        return 0;
}

int attempt_reopen(struct store_run *run, uint64_t generation, uint32_t attempt, uint32_t world,
                   struct attempt *ret, struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        struct attempt a = {
                .generation = generation, .attempt = attempt, .world = world, .reopened = true};

        name_pending(a.name, generation, attempt);
        a.dir_fd = io->openat(io->context, run->fd, a.name, O_RDONLY | O_DIRECTORY, 0);
        if (a.dir_fd < 0 && errno != ENOENT)
                return error_set_errno(reterr, errno, "open folder", a.name);
        *ret = a;
        return 0;
}

static int check_usable(const struct attempt *a, const char *operation,
                        struct cairn_error *reterr) {
        if (a->doomed)
                return error_set(reterr, CAIRN_ERR_STALE, operation, a->name,
                                 "a write or sync of this attempt failed; take a new one");
        if (a->dir_fd < 0) /* a fence is found where a folder is opened */
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, operation, a->name,
                                 "the attempt is gone: removed, or taken over by a restart");
        return 0;
}

static int create_rank_file(const struct attempt *a, const struct io_ops *io, const char *name,
                            int *ret_fd, struct cairn_error *reterr) {
        int flags = O_RDWR | O_CREAT | O_EXCL;
        int fd = io->openat(io->context, a->dir_fd, name, flags, 0644);

        /* Whoever holds the old file goes on writing a file without a name. */
        if (fd < 0 && errno == EEXIST && io->unlinkat(io->context, a->dir_fd, name, 0) == 0)
                fd = io->openat(io->context, a->dir_fd, name, flags, 0644);
        if (fd < 0)
                return error_set_errno(reterr, errno, "create", name);
        *ret_fd = fd;
        return 0;
}

int attempt_open_rank(struct attempt *a, const struct io_ops *io, uint32_t rank, int *ret_data_fd,
                      int *ret_manifest_fd, struct cairn_error *reterr) {
        char name[NAME_BYTES];
        int data_fd = -1, r;

        TRY(check_usable(a, "open files of a rank", reterr));
        if (rank >= a->world)
                return error_set(reterr, CAIRN_ERR_API, "open files of a rank", a->name,
                                 "there is no rank %" PRIu32 " among %" PRIu32, rank, a->world);
        /* Acknowledged is final: a second saver for the rank needs a new attempt. */
        name_manifest(name, rank);
        int old = io->openat(io->context, a->dir_fd, name, O_RDONLY, 0);
        close_fd(io, old);
        if (old >= 0)
                return error_set(reterr, CAIRN_ERR_EXISTS, "open files of a rank", name,
                                 "the rank has acknowledged this attempt already");
        name_data(name, rank);
        TRY(create_rank_file(a, io, name, &data_fd, reterr));
        manifest_temporary(name, rank);
        r = create_rank_file(a, io, name, ret_manifest_fd, reterr);
        if (r < 0) {
                close_fd(io, data_fd);
                return r;
        }
        *ret_data_fd = data_fd;
        return 0;
}

int attempt_publish_manifest(struct attempt *a, const struct io_ops *io, uint32_t rank,
                             struct cairn_error *reterr) {
        char temporary[NAME_BYTES], name[NAME_BYTES];
        int r = 0;

        TRY(check_usable(a, "publish manifest", reterr));
        manifest_temporary(temporary, rank);
        name_manifest(name, rank);
        TRY_GOTO(passage(FAULT_MANIFEST_RENAME, "publish manifest", name, reterr), fail);
        if (io->renameat(io->context, a->dir_fd, temporary, a->dir_fd, name, 0) < 0) {
                int error_number = errno;
                /* Asked again: it has happened. */
                int fd = error_number == ENOENT
                                 ? io->openat(io->context, a->dir_fd, name, O_RDONLY, 0)
                                 : -1;
                close_fd(io, fd);
                if (fd < 0)
                        r = error_set_errno(reterr, error_number, "publish manifest", name);
        }
        if (r == 0)
                r = io_sync(io, a->dir_fd, a->name, reterr);
        if (r == 0)
                return 0;
fail:
        a->doomed = true;
        return r;
}

void attempt_done(struct attempt *a, const struct io_ops *io) {
        close_fd(io, a->dir_fd);
        a->dir_fd = -1;
}

int attempt_discard(struct store_run *run, struct attempt *a, struct cairn_error *reterr) {
        char trash[NAME_BYTES];
        bool gone;

        a->doomed = true;
        attempt_done(a, run->store->io);
        /* By name, not through the descriptor: after a take-over the directory belongs to the new
         * leader, who may be rolling it forward. */
        TRY(retention_trash(run, a->name, &gone, reterr));
        name_trash(trash, a->name);
        return retention_remove_tree(run, trash, reterr);
}

/* ---- INDEX and COMMIT ---- */

static int check_manifest(const struct store_run *run, const struct commit_source *source,
                          uint32_t rank, const struct file_content *m, const char *object,
                          struct cairn_error *reterr) {
        const Cairn__Format__Head *h = m->head;

        if (!h || h->data_uuid.len != 16)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check manifest", object,
                                 "it has no complete head");
        if (!bytes_are(&h->run, run->run) || h->generation != source->generation ||
            h->attempt != source->attempt || h->world != source->world || h->rank != rank)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check manifest", object,
                                 "it is of another attempt: rank %" PRIu32 " of %" PRIu32
                                 ", restart %" PRIu64 ", attempt %" PRIu32,
                                 h->rank, h->world, h->generation, h->attempt);
        return 0;
}

/* The saver has written and synced it; this catches a file that is not the one it wrote. */
static int check_data_file(const struct store_run *run, const struct commit_source *source,
                           uint32_t rank, const Cairn__Format__Head *h,
                           struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        unsigned char block[DATA_BLOCK_BYTES];
        struct data_header header;
        char name[NAME_BYTES], object[2 * NAME_BYTES];
        struct stat st;
        int r;

        name_data(name, rank);
        (void) snprintf(object, sizeof object, "%s/%s", source->name, name);
        int fd = io->openat(io->context, source->dir_fd, name, O_RDONLY | O_NONBLOCK, 0);
        if (fd < 0)
                return error_set_errno(reterr, errno, "open", object);
        if (io->fstat(io->context, fd, &st) < 0)
                r = error_set_errno(reterr, errno, "stat", object);
        else if (!S_ISREG(st.st_mode) || (uint64_t) st.st_size != h->data_bytes)
                r = error_set(reterr, CAIRN_ERR_CORRUPT, "check data file", object,
                              "it has %jd bytes, the manifest says %" PRIu64, (intmax_t) st.st_size,
                              h->data_bytes);
        else
                r = io_read_exact(io, fd, block, sizeof block, 0, object, reterr);
        close_fd(io, fd);
        if (r == 0)
                r = data_header_read(block, object, &header, reterr);
        if (r == 0 && (header.rank != rank || header.generation != source->generation ||
                       memcmp(header.uuid, h->data_uuid.data, 16) != 0))
                r = error_set(reterr, CAIRN_ERR_CORRUPT, "check data file", object,
                              "its header is not the one that the manifest names");
        return r;
}

static int load_manifests(const struct store_run *run, const struct commit_source *source,
                          struct arena *arena, struct file_content **contents,
                          Cairn__Format__FileDigest **digests, struct cairn_error *reterr) {
        char name[NAME_BYTES], object[2 * NAME_BYTES];

        for (uint32_t rank = 0; rank < source->world; rank++) {
                struct file_content *m = arena_alloc(arena, sizeof *m, _Alignof(max_align_t));
                Cairn__Format__FileDigest *d = arena_alloc(arena, sizeof *d, _Alignof(max_align_t));
                if (!m || !d)
                        return error_set_errno(reterr, ENOMEM, "load manifests", source->name);
                cairn__format__file_digest__init(d);
                name_manifest(name, rank);
                (void) snprintf(object, sizeof object, "%s/%s", source->name, name);
                if (source->parts) {
                        const struct commit_part *part = &source->parts[rank];
                        TRY(file_read(part->bytes, part->count, FILE_MANIFEST, object, arena, m,
                                      reterr));
                        d->manifest_crc32c = crc32c(0, part->bytes, part->count);
                        d->manifest_bytes = part->count;
                } else
                        TRY(file_load(run->store->io, source->dir_fd, name, FILE_MANIFEST, arena, m,
                                      &d->manifest_crc32c, &d->manifest_bytes, reterr));
                TRY(check_manifest(run, source, rank, m, object, reterr));
                if (!source->parts)
                        TRY(check_data_file(run, source, rank, m->head, reterr));
                d->rank = rank;
                d->data_uuid = m->head->data_uuid;
                d->data_bytes = m->head->data_bytes;
                contents[rank] = m;
                digests[rank] = d;
        }
        return 0;
}

/* What the ranks say about the cut, as one. */
static void summarize(struct file_content *const *manifests, uint32_t world,
                      Cairn__Format__Head *head, Cairn__Format__Ending *ending) {
        for (uint32_t rank = 0; rank < world; rank++) {
                const Cairn__Format__Head *h = manifests[rank]->head;
                head->data_bytes += h->data_bytes;
                head->non_finite_count += h->non_finite_count;
                if (!h->ending)
                        continue;
                if (h->ending->suspect > ending->suspect ||
                    (h->ending->suspect == ending->suspect && h->ending->kind > ending->kind)) {
                        ending->suspect = h->ending->suspect;
                        ending->kind = h->ending->kind;
                        ending->code = h->ending->code;
                }
        }
}

static ProtobufCBinaryData text_bytes(const char *text) {
        return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *) (uintptr_t) text};
}

/* Name of the checkpoint that the generation started from, or "". */
static int load_parent(const struct store_run *run, uint64_t generation, struct arena *arena,
                       const char **ret, struct cairn_error *reterr) {
        struct file_content start;
        char name[NAME_BYTES];

        name_generation_start(name, generation);
        TRY(file_load(run->store->io, run->fd, name, FILE_GENERATION_START, arena, &start, NULL,
                      NULL, reterr));
        const ProtobufCBinaryData *parent = &start.generation_start->parent;
        *ret = arena_strndup(arena, parent->len ? (const char *) parent->data : "", parent->len);
        return *ret ? 0 : error_set_errno(reterr, ENOMEM, "load", name);
}

static int write_record(const struct store_run *run, const struct commit_source *source,
                        struct file_content *const *manifests, Cairn__Format__FileDigest **digests,
                        const struct file_content *index, const char *parent,
                        struct commit_files *files, struct cairn_error *reterr) {
        const struct clock_ops *clock = run->store->clock;
        Cairn__Format__Head head = CAIRN__FORMAT__HEAD__INIT;
        Cairn__Format__Ending ending = CAIRN__FORMAT__ENDING__INIT;
        Cairn__Format__Commit commit = CAIRN__FORMAT__COMMIT__INIT;
        const Cairn__Format__Head *first = manifests[0]->head;

        head.run = text_bytes(run->run);
        head.generation = source->generation;
        head.world = source->world;
        head.step = first->step;
        head.seq = first->seq;
        head.attempt = source->attempt;
        head.time_ns = clock->realtime_ns(clock->context);
        head.writer = text_bytes("cairn " CAIRN_VERSION);
        head.tensor_count = index->head ? index->head->tensor_count : index->tensor_count;
        head.tensor_bytes = index->head ? index->head->tensor_bytes : 0;
        head.ending = &ending;
        summarize(manifests, source->world, &head, &ending);
        commit.files = digests;
        commit.n_files = source->world;
        commit.index_crc32c = crc32c(0, files->index, files->index_bytes);
        commit.index_bytes = files->index_bytes;
        commit.parent = text_bytes(parent);
        commit.reason = source->reason;
        commit.tag = text_bytes(source->tag ? source->tag : "");
        files->step = head.step;
        files->bytes = head.data_bytes;
        files->flagged = ending.suspect || head.non_finite_count > 0;
        struct file_content content = {.kind = FILE_COMMIT, .head = &head, .commit = &commit};
        return file_write(&content, &files->record, &files->record_bytes, reterr);
}

static int compose(struct store_run *run, const struct commit_source *source, struct arena *arena,
                   struct commit_files *files, struct cairn_error *reterr) {
        struct file_content **manifests =
                arena_alloc(arena, source->world * sizeof(void *), _Alignof(void *));
        Cairn__Format__FileDigest **digests =
                arena_alloc(arena, source->world * sizeof(void *), _Alignof(void *));
        struct file_content index = {0};
        const char *parent;

        if (!manifests || !digests)
                return error_set_errno(reterr, ENOMEM, "commit", source->name);
        TRY(load_parent(run, source->generation, arena, &parent, reterr));
        TRY(load_manifests(run, source, arena, manifests, digests, reterr));
        TRY(layout_merge(manifests, source->world, arena, &index, reterr));
        index.kind = FILE_INDEX;
        TRY(file_write(&index, &files->index, &files->index_bytes, reterr));
        return write_record(run, source, manifests, digests, &index, parent, files, reterr);
}

int commit_compose(struct store_run *run, const struct commit_source *source,
                   struct commit_files *ret, struct cairn_error *reterr) {
        struct arena arena;
        int r;

        *ret = (struct commit_files){0};
        if (source->world == 0 || source->world > RANK_COUNT_MAX)
                return error_set(reterr, CAIRN_ERR_API, "commit", source->name,
                                 "%" PRIu32 " ranks are not 1 to %d", source->world,
                                 RANK_COUNT_MAX);
        arena_init(&arena, COMMIT_ARENA_BYTES);
        r = compose(run, source, &arena, ret, reterr);
        arena_done(&arena);
        if (r < 0)
                commit_files_done(ret);
        return r;
}

void commit_files_done(struct commit_files *files) {
        free(files->index);
        free(files->record);
        *files = (struct commit_files){0};
}

int commit_load_record(const struct io_ops *io, int run_fd, const char *name, struct arena *arena,
                       struct file_content *ret, struct cairn_error *reterr) {
        char path[2 * NAME_BYTES];
        (void) snprintf(path, sizeof path, "%s/%s", name, COMMIT_NAME);
        return file_load(io, run_fd, path, FILE_COMMIT, arena, ret, NULL, NULL, reterr);
}

/* ---- commit ---- */

static bool is_there(const struct io_ops *io, int dirfd, const char *name) {
        int fd = io->openat(io->context, dirfd, name, O_RDONLY | O_NONBLOCK, 0);
        close_fd(io, fd);
        return fd >= 0;
}

/* File systems without RENAME_NOREPLACE (NFS) refuse to rename over a directory that is not empty;
 * and nobody else gives names in this run. */
static int rename_new(const struct io_ops *io, int dirfd, const char *from, const char *to) {
        int r = io->renameat(io->context, dirfd, from, dirfd, to, RENAME_NOREPLACE);

        if (r < 0 && (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) {
                if (is_there(io, dirfd, to)) {
                        errno = EEXIST;
                        return -1;
                }
                r = io->renameat(io->context, dirfd, from, dirfd, to, 0);
        }
        if (r < 0 && errno == ENOTEMPTY)
                errno = EEXIST;
        return r;
}

int commit_give_name(struct store_run *run, const char *from, const char *name, bool *ret_existed,
                     struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        struct cairn_error e = CAIRN_ERROR_INIT;
        bool gone;

        *ret_existed = false;
        if (rename_new(io, run->fd, from, name) == 0)
                return 0;
        if (errno == ENOENT)
                return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "commit", from,
                                 "the attempt is gone: removed, or taken over by a later restart");
        if (errno != EEXIST)
                return error_set_errno(reterr, errno, "commit", name);
        int r = checkpoint_check(io, run->fd, name, run->run, false, NULL, &e);
        if (r == 0) {
                *ret_existed = true;
                return 0;
        }
        if (r != CAIRN_ERR_CORRUPT && r != CAIRN_ERR_MISMATCH && r != CAIRN_ERR_NOTFOUND &&
            r != CAIRN_ERR_UNSUPPORTED) {
                if (reterr)
                        *reterr = e;
                return r; /* storage does not say what is there: nothing is moved */
        }
        TRY(retention_trash(run, name, &gone, reterr));
        if (rename_new(io, run->fd, from, name) < 0)
                return error_set_errno(reterr, errno, "commit", name);
        return 0;
}

static bool is_flagged(const Cairn__Format__Head *h) {
        return (h->ending && h->ending->suspect) || h->non_finite_count > 0;
}

/* Asked again after a time-out: the rename may have happened in the process that was killed. */
static int find_committed(struct store_run *run, const struct attempt *a, struct commit_result *ret,
                          struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        _cleanup_(names_done) struct names names = {0};

        TRY(names_list(io, run->fd, run->run, &names, reterr));
        for (size_t i = 0; i < names.count; i++) {
                struct file_content record;
                struct arena arena;
                uint64_t generation;
                int64_t step;

                if (!name_parse_checkpoint(names.items[i], &step, &generation) ||
                    generation != a->generation)
                        continue;
                arena_init(&arena, COMMIT_ARENA_BYTES);
                bool found = commit_load_record(io, run->fd, names.items[i], &arena, &record,
                                                NULL) == 0 &&
                             record.head->attempt == a->attempt;
                struct commit_result result = {.step = step};
                if (found) {
                        result.bytes = record.head->data_bytes;
                        result.flagged = is_flagged(record.head);
                }
                arena_done(&arena);
                if (!found)
                        continue;
                TRY(io_sync(io, run->fd, run->run, reterr));
                *ret = result;
                memcpy(ret->name, names.items[i], NAME_BYTES);
                return 0;
        }
        return error_set(reterr, CAIRN_ERR_CANNOT_WRITE, "commit", a->name,
                         "neither the attempt nor its checkpoint is there");
}

/* The name is visible but may not be durable, and a second fsync may succeed falsely: what was not
 * reported goes, so that nobody takes it for a reported one. */
static int sync_name(struct store_run *run, const char *name, struct cairn_error *reterr) {
        bool gone;
        int r = passage(FAULT_COMMIT_PARENT_SYNC, "commit", name, reterr);

        if (r == 0)
                r = io_sync(run->store->io, run->fd, run->run, reterr);
        if (r < 0)
                (void) retention_trash(run, name, &gone, NULL);
        return r;
}

/* Of a predecessor that was killed while it committed. By path, so that nothing of a directory that
 * was taken over is touched. */
static int unlink_leftovers(struct store_run *run, const struct attempt *a,
                            struct cairn_error *reterr) {
        static const char *const names[] = {INDEX_NAME, COMMIT_NAME};
        const struct io_ops *io = run->store->io;
        char path[2 * NAME_BYTES];

        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                (void) snprintf(path, sizeof path, "%s/%s", a->name, names[i]);
                if (io->unlinkat(io->context, run->fd, path, 0) < 0 && errno != ENOENT)
                        return error_set_errno(reterr, errno, "remove", path);
        }
        return 0;
}

static int write_files(struct store_run *run, struct attempt *a, const struct commit_files *files,
                       struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;

        if (a->reopened)
                TRY(unlink_leftovers(run, a, reterr));
        TRY(passage(FAULT_COMMIT_INDEX, "write index", a->name, reterr));
        TRY(write_new_file(io, a->dir_fd, INDEX_NAME, files->index, files->index_bytes, reterr));
        TRY(passage(FAULT_COMMIT_RECORD, "write commit record", a->name, reterr));
        TRY(write_new_file(io, a->dir_fd, COMMIT_NAME, files->record, files->record_bytes, reterr));
        return io_sync(io, a->dir_fd, a->name, reterr);
}

static int give_name(struct store_run *run, struct attempt *a, struct commit_result *ret,
                     struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;

        TRY(commit_check_fenced(run, a->generation, reterr));
        TRY(passage(FAULT_COMMIT_RENAME, "commit", ret->name, reterr));
        TRY(commit_give_name(run, a->name, ret->name, &ret->existed, reterr));
        if (!ret->existed)
                return sync_name(run, ret->name, reterr);
        return io_sync(io, run->fd, run->run, reterr);
}

/* The one that stood there already stays, not what was to get its name. */
static int describe_existing(struct store_run *run, struct commit_result *result,
                             struct cairn_error *reterr) {
        struct file_content record;
        struct arena arena;

        arena_init(&arena, COMMIT_ARENA_BYTES);
        int r = commit_load_record(run->store->io, run->fd, result->name, &arena, &record, reterr);
        if (r == 0) {
                result->bytes = record.head->data_bytes;
                result->flagged = is_flagged(record.head);
        }
        arena_done(&arena);
        return r;
}

/* Done with: a checkpoint, or one stood there already. */
static int end_committed(struct store_run *run, struct attempt *a, struct commit_result *result,
                         struct cairn_error *reterr) {
        if (result->existed) {
                TRY(describe_existing(run, result, reterr));
                /* The checkpoint stands; remains of this attempt are retention's work if this
                 * fails. */
                (void) attempt_discard(run, a, NULL);
        } else {
                attempt_done(a, run->store->io);
        }
        a->doomed = true; /* spent: nothing more can be done with it */
        return 0;
}

int commit_write_files(struct store_run *run, struct attempt *a, const struct commit_files *files,
                       struct cairn_error *reterr) {
        int r;

        TRY_GOTO(check_usable(a, "commit", reterr), finish);
        TRY_GOTO(commit_check_fenced(run, a->generation, reterr), finish);
        a->reopened = true; /* it may be the second try of another process */
        TRY_GOTO(write_files(run, a, files, reterr), finish);
finish:
        if (r < 0)
                a->doomed = true;
        return r;
}

int commit_rename(struct store_run *run, struct attempt *a, struct commit_result *ret,
                  struct cairn_error *reterr) {
        struct commit_result result = {0};
        struct file_content record;
        struct arena arena;
        int r;

        if (a->dir_fd < 0 && !a->doomed)
                return find_committed(run, a, ret, reterr);
        TRY(check_usable(a, "commit", reterr));
        arena_init(&arena, COMMIT_ARENA_BYTES);
        TRY_GOTO(commit_load_record(run->store->io, run->fd, a->name, &arena, &record, reterr),
                 finish);
        const Cairn__Format__Head *h = record.head;
        name_checkpoint(result.name, h->step, h->generation);
        result.step = h->step;
        result.bytes = h->data_bytes;
        result.flagged = is_flagged(h);
        TRY_GOTO(give_name(run, a, &result, reterr), finish);
        TRY_GOTO(end_committed(run, a, &result, reterr), finish);
        *ret = result;
finish:
        arena_done(&arena);
        if (r < 0)
                a->doomed = true;
        return r;
}

int attempt_commit(struct store_run *run, struct attempt *a, uint32_t reason, const char *tag,
                   struct commit_result *ret, struct cairn_error *reterr) {
        struct commit_result result = {0};
        struct commit_files files = {0};
        int r;

        TRY_GOTO(commit_check_fenced(run, a->generation, reterr), finish);
        if (a->dir_fd < 0 && !a->doomed)
                return find_committed(run, a, ret, reterr);
        TRY_GOTO(check_usable(a, "commit", reterr), finish);
        struct commit_source source = {.dir_fd = a->dir_fd,
                                       .name = a->name,
                                       .generation = a->generation,
                                       .attempt = a->attempt,
                                       .world = a->world,
                                       .reason = reason,
                                       .tag = tag};
        TRY_GOTO(commit_compose(run, &source, &files, reterr), finish);
        name_checkpoint(result.name, files.step, a->generation);
        result.step = files.step;
        result.bytes = files.bytes;
        result.flagged = files.flagged;
        TRY_GOTO(write_files(run, a, &files, reterr), finish);
        TRY_GOTO(give_name(run, a, &result, reterr), finish);
        TRY_GOTO(end_committed(run, a, &result, reterr), finish);
        *ret = result;
finish:
        commit_files_done(&files);
        if (r < 0)
                a->doomed = true;
        return r;
}
