/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.c - checkpoint_load and checkpoint_check (scan.h): whether a checkpoint is what its COMMIT
 * says.
 */
#include "format/verify.h"
#include "base/cleanup.h"
#include "format/check.h"
#include "format/crc32c.h"
#include "format/layout.h"
#include "format/message.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages are bounded by the files; this bounds all files of a checkpoint together. */
#define VERIFY_ARENA_BYTES_MAX (UINT64_C(1) << 42)

const char *verify_path(char *path, const char *directory, const char *file) {
        (void) snprintf(path, VERIFY_PATH_BYTES, "%s/%s", directory, file);
        return path;
}

struct opened {
        const struct io_ops *io;
        int fd;
};

static void opened_done(const struct opened *o) {
        if (o->fd >= 0)
                (void) o->io->close(o->io->context, o->fd);
}

static int corrupt(struct cairn_error *reterr, const char *operation, const char *object,
                   const char *message) {
        return error_set(reterr, CAIRN_ERR_CORRUPT, operation, object, "%s", message);
}

/* ---- data files ---- */

/* Open a rank's data file and check what can be seen without reading it. */
static int open_data(const struct io_ops *io, int run_dirfd, const char *path, uint64_t bytes,
                     struct opened *ret, struct cairn_error *reterr) {
        struct stat st;

        ret->fd = io->openat(io->context, run_dirfd, path, O_RDONLY | O_NONBLOCK, 0);
        if (ret->fd < 0 || io->fstat(io->context, ret->fd, &st) < 0)
                return error_set_errno(reterr, errno, "open data", path);
        if (!S_ISREG(st.st_mode) || (uint64_t) st.st_size != bytes)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check data size", path,
                                 "the file has %jd bytes, its manifest says %" PRIu64,
                                 (intmax_t) st.st_size, bytes);
        return 0;
}

static int check_data_header(const struct opened *file, const char *path, const char *run,
                             const Cairn__Format__Head *head, struct cairn_error *reterr) {
        _Alignas(64) uint8_t block[DATA_BLOCK_BYTES];
        struct data_header h;

        TRY(io_read_exact(file->io, file->fd, block, sizeof block, 0, path, reterr));
        TRY(data_header_read(block, path, &h, reterr));
        if (strcmp(h.run, run) != 0 || h.generation != head->generation || h.rank != head->rank ||
            memcmp(h.uuid, head->data_uuid.data, sizeof h.uuid) != 0)
                return corrupt(reterr, "check data header", path,
                               "the file belongs to another run, generation, rank or attempt than "
                               "its manifest");
        return 0;
}

int verify_manifest(const struct io_ops *io, int run_dirfd, const char *directory, const char *run,
                    uint32_t rank, struct arena *arena, struct verify_manifest *ret,
                    struct cairn_error *reterr) {
        _cleanup_(opened_done) struct opened data = {io, -1};
        char name[NAME_BYTES], path[VERIFY_PATH_BYTES];

        name_manifest(name, rank);
        verify_path(path, directory, name);
        TRY(file_load(io, run_dirfd, path, FILE_MANIFEST, arena, &ret->content, &ret->crc32c,
                      &ret->bytes, reterr));
        const Cairn__Format__Head *head = ret->content.head;
        if (!bytes_are(&head->run, run))
                return error_set(reterr, CAIRN_ERR_MISMATCH, "check manifest", path,
                                 "it belongs to another run than %s", run);
        if (head->rank != rank)
                return corrupt(reterr, "check manifest", path, "it belongs to another rank");
        name_data(name, rank);
        verify_path(path, directory, name);
        TRY(open_data(io, run_dirfd, path, head->data_bytes, &data, reterr));
        return check_data_header(&data, path, run, head, reterr);
}

static int check_digest(const struct io_ops *io, int run_dirfd, const char *path, uint32_t crc,
                        uint64_t bytes, struct cairn_error *reterr) {
        _cleanup_free_ void *content = NULL;
        size_t count;

        TRY(io_read_file(io, run_dirfd, path, bytes, &content, &count, reterr));
        if (count != bytes || crc32c(0, content, count) != crc)
                return corrupt(reterr, "check digest", path,
                               "the file is not the one that was committed");
        return 0;
}

int verify_digests_of_ranks(const struct io_ops *io, int run_dirfd, const char *directory,
                            const Cairn__Format__Commit *commit, uint32_t first_rank,
                            uint32_t ranks, struct cairn_error *reterr) {
        char name[NAME_BYTES], path[VERIFY_PATH_BYTES];

        for (size_t i = first_rank; i < commit->n_files && i - first_rank < ranks; i++) {
                _cleanup_(opened_done) struct opened data = {io, -1};
                const Cairn__Format__FileDigest *f = commit->files[i];
                name_manifest(name, f->rank);
                verify_path(path, directory, name);
                TRY(check_digest(io, run_dirfd, path, f->manifest_crc32c, f->manifest_bytes,
                                 reterr));
                name_data(name, f->rank);
                verify_path(path, directory, name);
                TRY(open_data(io, run_dirfd, path, f->data_bytes, &data, reterr));
        }
        return 0;
}

int verify_digests(const struct io_ops *io, int run_dirfd, const char *directory,
                   const Cairn__Format__Commit *commit, uint32_t first_rank, uint32_t ranks,
                   struct cairn_error *reterr) {
        char path[VERIFY_PATH_BYTES];

        verify_path(path, directory, INDEX_NAME);
        TRY(check_digest(io, run_dirfd, path, commit->index_crc32c, commit->index_bytes, reterr));
        return verify_digests_of_ranks(io, run_dirfd, directory, commit, first_rank, ranks, reterr);
}

int verify_index_header(const struct io_ops *io, int run_dirfd, const char *directory,
                        const Cairn__Format__Commit *commit, struct cairn_error *reterr) {
        char path[VERIFY_PATH_BYTES];
        uint8_t header[FILE_HEADER_BYTES];
        struct stat st;

        verify_path(path, directory, INDEX_NAME);
        _cleanup_(opened_done) struct opened file = {
                io, io->openat(io->context, run_dirfd, path, O_RDONLY | O_NONBLOCK, 0)};
        if (file.fd < 0 || io->fstat(io->context, file.fd, &st) < 0)
                return error_set_errno(reterr, errno, "open index", path);
        if (!S_ISREG(st.st_mode) || (uint64_t) st.st_size != commit->index_bytes ||
            commit->index_bytes < sizeof header)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check index", path,
                                 "the file has %jd bytes, the commit record says %" PRIu64,
                                 (intmax_t) st.st_size, commit->index_bytes);
        TRY(io_read_exact(io, file.fd, header, sizeof header, 0, path, reterr));
        return file_check_header(header, commit->index_bytes, FILE_INDEX, path, reterr);
}

/* ---- COMMIT and INDEX ---- */

/* NULL, or in what two heads of one checkpoint differ. */
static const char *heads_differ(const Cairn__Format__Head *a, const Cairn__Format__Head *b) {
        return !bytes_equal(&a->run, &b->run)   ? "run"
               : a->generation != b->generation ? "generation"
               : a->step != b->step             ? "step"
               : a->world != b->world           ? "number of ranks"
               : a->attempt != b->attempt       ? "attempt"
                                                : NULL;
}

static int check_name(const char *name, const char *path, const Cairn__Format__Head *head,
                      struct cairn_error *reterr) {
        uint64_t generation;
        int64_t step;

        if (!name_parse_checkpoint(name, &step, &generation) ||
            (step == head->step && generation == head->generation))
                return 0;
        return error_set(reterr, CAIRN_ERR_CORRUPT, "check commit record", path,
                         "it is of step %" PRId64 " of generation %" PRIu64
                         ", not of the one that the directory is named after",
                         head->step, head->generation);
}

int checkpoint_missing(const struct io_ops *io, int run_dirfd, const char *name, int r,
                       struct cairn_error *reterr) {
        if (r != CAIRN_ERR_NOTFOUND)
                return r;
        _cleanup_(opened_done) struct opened directory = {
                io, io->openat(io->context, run_dirfd, name, O_RDONLY | O_DIRECTORY, 0)};
        if (directory.fd < 0 && errno == ENOENT)
                return error_set(reterr, r, "open checkpoint", name,
                                 "it does not exist, or was pruned while reading; `cairn pin` "
                                 "keeps what others read");
        if (reterr)
                reterr->status = CAIRN_ERR_CORRUPT;
        return CAIRN_ERR_CORRUPT;
}

static int load_commit(const struct io_ops *io, int run_dirfd, const char *name,
                       struct arena *arena, struct file_content *ret, struct cairn_error *reterr) {
        char path[VERIFY_PATH_BYTES];

        verify_path(path, name, COMMIT_NAME);
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = file_load(io, run_dirfd, path, FILE_COMMIT, arena, ret, NULL, NULL, &e);
        if (r == CAIRN_ERR_NOTFOUND)
                (void) error_set(&e, r, "open checkpoint", path,
                                 "the group record is missing: the checkpoint was not committed "
                                 "or is damaged");
        /* A link or a file of such a name is a decoy, not storage that fails. */
        if (r < 0 && (e.system_code == ENOTDIR || e.system_code == ELOOP))
                return corrupt(reterr, "open checkpoint", name,
                               "this is no folder, or leads out of the run: not a checkpoint");
        if (r < 0 && reterr)
                *reterr = e;
        TRY(r);
        return check_name(name, path, ret->head, reterr);
}

static int check_ranges(const struct file_content *index, const Cairn__Format__Commit *commit,
                        const char *path, struct cairn_error *reterr) {
        for (size_t i = 0; i < index->tensor_count; i++)
                for (size_t k = 0; k < index->tensors[i]->n_extents; k++) {
                        const Cairn__Format__Extent *e = index->tensors[i]->extents[k];
                        if (e->offset + e->bytes > commit->files[e->rank]->data_bytes)
                                return error_set(reterr, CAIRN_ERR_CORRUPT, "check index", path,
                                                 "tensor %zu ends behind the data file of rank "
                                                 "%" PRIu32,
                                                 i, e->rank);
                }
        return 0;
}

static int load(const struct io_ops *io, int run_dirfd, const char *name, struct arena *arena,
                struct file_content *ret_index, struct file_content *ret_commit,
                struct cairn_error *reterr) {
        struct file_content commit, index;
        char path[VERIFY_PATH_BYTES];
        uint32_t crc;
        uint64_t bytes;

        TRY(load_commit(io, run_dirfd, name, arena, &commit, reterr));
        verify_path(path, name, INDEX_NAME);
        TRY(file_load(io, run_dirfd, path, FILE_INDEX, arena, &index, &crc, &bytes, reterr));
        if (crc != commit.commit->index_crc32c || bytes != commit.commit->index_bytes)
                return corrupt(reterr, "check digest", path,
                               "the file is not the one that was committed");
        const char *what = heads_differ(index.head, commit.head);
        if (!what && (index.head->tensor_count != commit.head->tensor_count ||
                      index.head->tensor_bytes != commit.head->tensor_bytes))
                what = "number of tensors or bytes";
        if (what)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check index", path,
                                 "INDEX and COMMIT have another %s", what);
        TRY(check_ranges(&index, commit.commit, path, reterr));
        TRY(layout_check_coverage(&index, reterr));
        *ret_index = index;
        *ret_commit = commit;
        return 0;
}

int checkpoint_load(const struct io_ops *io, int run_dirfd, const char *name, struct arena *arena,
                    struct file_content *ret_index, struct file_content *ret_commit,
                    struct cairn_error *reterr) {
        int r = load(io, run_dirfd, name, arena, ret_index, ret_commit, reterr);
        return checkpoint_missing(io, run_dirfd, name, r, reterr);
}

/* ---- INDEX and the manifests ---- */

/* Equal fields make equal bytes: one serializer, one order. */
static bool same_message(const ProtobufCMessage *a, const ProtobufCMessage *b) {
        uint8_t few[2][1024];
        size_t bytes = message_pack(a, few[0], sizeof few[0]);

        if (bytes != SIZE_MAX)
                return message_pack(b, few[1], sizeof few[1]) == bytes &&
                       memcmp(few[0], few[1], bytes) == 0;
        bytes = protobuf_c_message_get_packed_size(a) + MESSAGE_ROOM_BYTES;
        _cleanup_free_ uint8_t *both = malloc(2 * bytes);
        if (!both)
                return false;
        size_t mine = message_pack(a, both, bytes), other = message_pack(b, both + bytes, bytes);
        return mine == other && mine != SIZE_MAX && memcmp(both, both + bytes, mine) == 0;
}

/* All checksums of all ranks in one sequence, however they are cut into messages. */
struct crc_cursor {
        const struct file_content *content;
        size_t message, item;
};

static bool next_crc(struct crc_cursor *c, uint32_t *ret_rank, uint32_t *ret_crc) {
        for (; c->message < c->content->chunk_crcs_count; c->message++, c->item = 0) {
                const Cairn__Format__ChunkCrcs *crcs = c->content->chunk_crcs[c->message];
                if (c->item >= crcs->n_crc32c)
                        continue;
                *ret_rank = crcs->rank;
                *ret_crc = crcs->crc32c[c->item++];
                return true;
        }
        return false;
}

static bool same_crcs(const struct file_content *a, const struct file_content *b) {
        struct crc_cursor x = {.content = a}, y = {.content = b};
        uint32_t rank_x = 0, crc_x = 0, rank_y = 0, crc_y = 0;

        for (;;) {
                bool more_x = next_crc(&x, &rank_x, &crc_x), more_y = next_crc(&y, &rank_y, &crc_y);
                if (more_x != more_y)
                        return false;
                if (!more_x)
                        return true;
                if (rank_x != rank_y || crc_x != crc_y)
                        return false;
        }
}

static int check_agreement(const struct file_content *index, const struct file_content *merged,
                           const char *path, struct cairn_error *reterr) {
        bool same = index->tensor_count == merged->tensor_count;

        for (size_t i = 0; i < index->tensor_count && same; i++)
                if (!same_message(&index->tensors[i]->base, &merged->tensors[i]->base))
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "check index", path,
                                         "tensor %zu is not as in the manifests", i);
        for (size_t i = 0; i < index->state_count && same; i++)
                same = same_message(&index->states[i]->base, &merged->states[i]->base);
        if (!same || !same_crcs(index, merged))
                return corrupt(reterr, "check index", path,
                               "INDEX and the manifests list different tensors, host states or "
                               "checksums");
        return 0;
}

static int check_manifest_digest(const struct verify_manifest *m,
                                 const Cairn__Format__FileDigest *digest, const char *directory,
                                 struct cairn_error *reterr) {
        char name[NAME_BYTES], path[VERIFY_PATH_BYTES];

        name_manifest(name, digest->rank);
        verify_path(path, directory, name);
        if (m->crc32c != digest->manifest_crc32c || m->bytes != digest->manifest_bytes)
                return corrupt(reterr, "check digest", path,
                               "the file is not the one that was committed");
        if (m->content.head->data_bytes != digest->data_bytes ||
            !bytes_equal(&m->content.head->data_uuid, &digest->data_uuid))
                return corrupt(reterr, "check manifest", path,
                               "it names another data file than COMMIT");
        return 0;
}

struct checking {
        const struct io_ops *io;
        int run_dirfd;
        const char *name, *run;
        struct arena arena;
        struct file_content index, commit;
        struct scan_node here;
        struct verify_manifest *manifests; /* of the ranks that are here, in the arena */
        struct file_content **contents;
};

static void checking_done(struct checking *c) {
        arena_done(&c->arena);
}

/* What the manifests of some of the ranks can show: INDEX has all that they hold, where they hold
 * it. That it has nothing else was seen when it was made, and COMMIT has its digest. */
static int check_part(const struct checking *c, const struct file_content *m, const char *path,
                      struct cairn_error *reterr) {
        const struct file_content *index = &c->index;
        uint32_t rank = m->head->rank;

        for (size_t i = 0; i < m->tensor_count; i++) {
                const Cairn__Format__Tensor *t = m->tensors[i];
                ptrdiff_t at = layout_find(index, t->name.data, t->name.len);
                size_t found = 0;
                for (size_t k = 0; at >= 0 && k < index->tensors[at]->n_extents; k++) {
                        const Cairn__Format__Extent *e = index->tensors[at]->extents[k];
                        for (size_t n = 0; e->rank == rank && n < t->n_extents; n++)
                                found += same_message(&e->base, &t->extents[n]->base);
                }
                if (at < 0 || found != t->n_extents)
                        return error_set(reterr, CAIRN_ERR_CORRUPT, "check index", path,
                                         "tensor %zu of rank %" PRIu32 " is not as in its manifest",
                                         i, rank);
        }
        if (!same_message(&index->states[rank]->base, &m->states[0]->base))
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check index", path,
                                 "the host state of rank %" PRIu32 " is not as in its manifest",
                                 rank);
        return 0;
}

static int check_manifests(struct checking *c, struct cairn_error *reterr) {
        const Cairn__Format__Commit *commit = c->commit.commit;
        uint32_t world = c->commit.head->world, count;
        struct file_content merged;
        char path[VERIFY_PATH_BYTES];

        TRY(checkpoint_here(c->io, c->run_dirfd, c->commit.head->generation, world, &c->here,
                            reterr));
        count = c->here.ranks;
        c->manifests = arena_alloc(&c->arena, count * sizeof *c->manifests, 16);
        c->contents = arena_alloc(&c->arena, count * sizeof(void *), 16);
        if (!c->manifests || !c->contents)
                return error_set_errno(reterr, ENOMEM, "check checkpoint", c->name);
        for (uint32_t i = 0; i < count; i++) {
                struct verify_manifest *m = &c->manifests[i];
                uint32_t rank = c->here.first_rank + i;
                TRY(verify_manifest(c->io, c->run_dirfd, c->name, c->run, rank, &c->arena, m,
                                    reterr));
                TRY(check_manifest_digest(m, commit->files[rank], c->name, reterr));
                c->contents[i] = &m->content;
        }
        verify_path(path, c->name, INDEX_NAME);
        for (uint32_t i = 0; *c->here.node && i < count; i++)
                TRY(check_part(c, c->contents[i], path, reterr));
        if (*c->here.node)
                return 0;
        TRY(layout_merge(c->contents, world, &c->arena, &merged, reterr));
        const char *what = heads_differ(merged.head, c->index.head);
        if (what)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "check index", path,
                                 "INDEX and the manifests have another %s", what);
        return check_agreement(&c->index, &merged, path, reterr);
}

static int check(const struct io_ops *io, int run_dirfd, const char *name, const char *run,
                 bool data, struct verify_result *ret, struct cairn_error *reterr) {
        _cleanup_(checking_done) struct checking c = {
                .io = io, .run_dirfd = run_dirfd, .name = name, .run = run};

        arena_init(&c.arena, VERIFY_ARENA_BYTES_MAX);
        TRY(load(io, run_dirfd, name, &c.arena, &c.index, &c.commit, reterr));
        const Cairn__Format__Head *head = c.commit.head;
        if (!bytes_are(&head->run, run))
                return error_set(reterr, CAIRN_ERR_MISMATCH, "check checkpoint", name,
                                 "it belongs to another run than %s", run);
        TRY(check_manifests(&c, reterr));
        struct verify_result result = {
                .files = 2 + 2 * (uint64_t) c.here.ranks, .here = c.here, .world = head->world};
        for (uint32_t i = 0; i < c.here.ranks; i++) {
                if (data)
                        TRY(verify_data(io, run_dirfd, name, c.contents[i], reterr));
                result.tensors += c.contents[i]->tensor_count;
                result.bytes += c.contents[i]->head->tensor_bytes;
        }
        if (!*c.here.node)
                result.tensors = head->tensor_count;
        if (ret)
                *ret = result;
        return 0;
}

int checkpoint_check(const struct io_ops *io, int run_dirfd, const char *name, const char *run,
                     bool data, struct verify_result *ret, struct cairn_error *reterr) {
        int r = check(io, run_dirfd, name, run, data, ret, reterr);
        return checkpoint_missing(io, run_dirfd, name, r, reterr);
}
