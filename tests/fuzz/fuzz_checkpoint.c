/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's folder in memory: the first byte says what is put right, then framed files one behind the
 * other (COMMIT, INDEX, manifests by rank, claims and starts of generations, a mark), then bytes
 * for the data files. Everything that list, verify and a start look at is run over it; a checkpoint
 * that is called valid has files that each can be read.
 */
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/scan.h"
#include "tests/fuzz/fuzz.h"
#include "tests/sim/simfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define RUN "run"
#define CHECKPOINT "000000000005-g0001"
#define ATTEMPT ".pending-g0001-a000002"

enum { RANKS_MAX = 4, DATA_BYTES_LIMIT = 1 << 16 };
enum flags { REPAIR_DIGESTS = 1, REPAIR_HEADERS = 2, AS_ATTEMPT = 4 };

struct part {
        const uint8_t *bytes;
        size_t count;
};
struct store {
        struct simfs *fs;
        struct io_ops io;
        int root, run;
        struct arena arena;
        uint8_t flags;
        struct part commit, index, manifests[RANKS_MAX], rest;
        struct part claims[2], starts[2], mark;
        uint32_t world, claim_count, start_count;
};

static void write_file(struct store *s, const char *directory, const char *name, const void *bytes,
                       size_t count) {
        char path[2 * NAME_BYTES];
        (void) snprintf(path, sizeof path, "%s/%s", directory, name);
        int fd = s->io.openat(s->io.context, s->run, path, O_WRONLY | O_CREAT, 0600);
        FUZZ_CHECK(fd >= 0);
        FUZZ_CHECK(io_write_all(&s->io, fd, bytes, count, 0, path, NULL) == 0);
        FUZZ_CHECK(s->io.close(s->io.context, fd) == 0);
}

static void sort_parts(struct store *s, const uint8_t *bytes, size_t count) {
        for (size_t n; (n = fuzz_file_bytes(bytes, count)) > 0; bytes += n, count -= n) {
                struct part p = {bytes, n};
                switch (fuzz_file_kind(bytes, n)) {
                case FILE_COMMIT:
                        s->commit = p;
                        break;
                case FILE_INDEX:
                        s->index = p;
                        break;
                case FILE_GENERATION:
                        s->claims[s->claim_count++ % 2] = p;
                        break;
                case FILE_GENERATION_START:
                        s->starts[s->start_count++ % 2] = p;
                        break;
                case FILE_MARK:
                        s->mark = p;
                        break;
                default:
                        if (s->world < RANKS_MAX)
                                s->manifests[s->world++] = p;
                }
        }
        s->rest = (struct part){bytes, count};
}

/* The data file that a manifest speaks of, with the spare bytes of the input in it. */
static void make_data(struct store *s, const char *directory, uint32_t rank) {
        struct file_content m = {0};
        struct data_header h = {.rank = rank};
        char name[NAME_BYTES];

        if (file_read(s->manifests[rank].bytes, s->manifests[rank].count, FILE_MANIFEST, "m",
                      &s->arena, &m, NULL) < 0 ||
            m.head->data_bytes > DATA_BYTES_LIMIT || m.head->data_bytes < DATA_BLOCK_BYTES)
                return;
        size_t bytes = (size_t) m.head->data_bytes;
        uint8_t *image = calloc(1, bytes);
        FUZZ_CHECK(image);
        h.generation = m.head->generation;
        memcpy(h.run, m.head->run.data, m.head->run.len);
        memcpy(h.uuid, m.head->data_uuid.data, sizeof h.uuid);
        if (s->flags & REPAIR_HEADERS)
                data_header_write(image, &h);
        for (size_t i = 0; s->rest.count && i + DATA_BLOCK_BYTES < bytes; i++)
                image[DATA_BLOCK_BYTES + i] = s->rest.bytes[i % s->rest.count];
        name_data(name, rank);
        write_file(s, directory, name, image, bytes);
        free(image);
}

/* A COMMIT whose digests are those of the other files. */
static void write_commit(struct store *s, const char *directory) {
        struct file_content c = {0};
        void *bytes = NULL;
        size_t count = 0;

        if (!(s->flags & REPAIR_DIGESTS) || file_read(s->commit.bytes, s->commit.count, FILE_COMMIT,
                                                      "c", &s->arena, &c, NULL) < 0) {
                write_file(s, directory, COMMIT_NAME, s->commit.bytes, s->commit.count);
                return;
        }
        c.commit->index_crc32c = crc32c(0, s->index.bytes, s->index.count);
        c.commit->index_bytes = s->index.count;
        for (size_t i = 0; i < c.commit->n_files && i < s->world; i++) {
                const struct part *m = &s->manifests[i];
                c.commit->files[i]->manifest_crc32c = crc32c(0, m->bytes, m->count);
                c.commit->files[i]->manifest_bytes = m->count;
        }
        FUZZ_CHECK(file_write_unchecked(&c, &bytes, &count, NULL) == 0);
        write_file(s, directory, COMMIT_NAME, bytes, count);
        free(bytes);
}

static void build(struct store *s) {
        const char *directory = s->flags & AS_ATTEMPT ? ATTEMPT : CHECKPOINT;
        char name[NAME_BYTES];

        FUZZ_CHECK(s->io.mkdirat(s->io.context, s->root, RUN, 0700) == 0);
        s->run = s->io.openat(s->io.context, s->root, RUN, O_RDONLY | O_DIRECTORY, 0);
        FUZZ_CHECK(s->run >= 0);
        FUZZ_CHECK(s->io.mkdirat(s->io.context, s->run, directory, 0700) == 0);
        FUZZ_CHECK(s->io.mkdirat(s->io.context, s->run, MARKS_NAME, 0700) == 0);
        for (uint32_t i = 0; i < s->claim_count && i < 2; i++) {
                name_generation(name, i + 1);
                write_file(s, ".", name, s->claims[i].bytes, s->claims[i].count);
        }
        for (uint32_t i = 0; i < s->start_count && i < 2; i++) {
                name_generation_start(name, i + 1);
                write_file(s, ".", name, s->starts[i].bytes, s->starts[i].count);
        }
        if (s->mark.count)
                write_file(s, MARKS_NAME, FINISHED_NAME, s->mark.bytes, s->mark.count);
        for (uint32_t i = 0; i < s->world; i++) {
                name_manifest(name, i);
                write_file(s, directory, name, s->manifests[i].bytes, s->manifests[i].count);
                make_data(s, directory, i);
        }
        if (s->index.count)
                write_file(s, directory, INDEX_NAME, s->index.bytes, s->index.count);
        if (s->commit.count)
                write_commit(s, directory);
}

static void look(struct store *s, size_t input_bytes) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct verify_result result;
        struct file_content index, commit;
        struct run_scan scan;
        struct arena arena;

        for (int data = 0; data < 2; data++) {
                int r = checkpoint_check(&s->io, s->run, CHECKPOINT, RUN, data, &result, &e);
                if (r < 0)
                        fuzz_check_error(r, &e);
        }
        arena_init(&arena, 1 * GiB);
        (void) checkpoint_load(&s->io, s->run, CHECKPOINT, &arena, &index, &commit, &e);
        fuzz_check_arena(&arena, 2 * input_bytes);
        arena_done(&arena);
        for (int digests = 0; digests < 2; digests++) {
                int r = run_scan(&s->io, s->run, RUN, digests, &scan, &e);
                if (r < 0) {
                        fuzz_check_error(r, &e);
                        continue;
                }
                const struct scan_checkpoint *c;
                for (size_t skip = 0; (c = scan_newest(&scan, skip)); skip++)
                        FUZZ_CHECK(c->on_lineage && skip < scan.checkpoint_count);
                (void) scan_find_step(&scan, 5);
                run_scan_done(&scan);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        struct store s = {.fs = simfs_new(), .flags = fuzz_u8(&in)};

        FUZZ_CHECK(s.fs);
        arena_init(&s.arena, 1 * GiB);
        simfs_ops(s.fs, &s.io);
        s.root = simfs_root(s.fs);
        sort_parts(&s, in.bytes, in.left);
        build(&s);
        look(&s, count);
        FUZZ_CHECK(simfs_open_count(s.fs) == 2); /* root and run */
        arena_done(&s.arena);
        (void) simfs_free(s.fs);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        if (count < 1 || seed % 16 == 0)
                return LLVMFuzzerMutate(bytes, count, max);
        return 1 + fuzz_mutate_files(bytes + 1, count - 1, max - 1, seed / 16);
}
