/* SPDX-License-Identifier: Apache-2.0
 *
 * What a large world costs the store: the ranks' manifests, one commit of them, opening the
 * checkpoint for a restore, and the plan of one rank in the same world and in another one. The code
 * is the real one; the tensors are of bytes that nobody wrote (sparse files), laid out as by a
 * trainer with data parallelism and ZeRO-1: parameters replicated over all ranks, optimizer state
 * in flat shards.
 *
 *     make check-size [NODES=1000] [TENSORS=100000]     a table: an eighth, a quarter, a half, all
 *
 * Without SIZE_NODES a small world, whose counts and growth are asserted. Never its time.
 */
#include "agent/restore.h"
#include "base/assert.h"
#include "client/transfer.h"
#include "format/crc32c.h"
#include "format/layout.h"
#include "tests/sim/world.h"
#include "tests/unit/store_fixture.h"

#include <sys/mman.h>
#include <sys/resource.h>

enum { RANKS_A_NODE = 8, SIZES = 4 };

/* What a step in a process of its own took. */
struct cost {
        double seconds;      /* of the processor */
        uint64_t peak_bytes; /* of its memory */
        uint64_t manifests, read_bytes;
};
struct measured {
        uint32_t ranks;
        uint64_t records, manifest_bytes, index_bytes, commit_bytes;
        struct cost commit, open, files, plan, elastic;
        uint64_t ranges, plan_bytes, plan_read_bytes, files_needed;
        uint64_t elastic_ranges, elastic_bytes, elastic_read_bytes;
};

/* ---- counting ---- */

static struct cost *counting;

static int count_openat(void *context, int dirfd, const char *path, int flags, mode_t mode) {
        const char *end = strstr(path, ".manifest");
        counting->manifests += end && end[sizeof ".manifest" - 1] == '\0';
        return io_system.openat(context, dirfd, path, flags, mode);
}

static ssize_t count_pread(void *context, int fd, void *buf, size_t bytes, off_t offset) {
        ssize_t n = io_system.pread(context, fd, buf, bytes, offset);
        counting->read_bytes += n > 0 ? (uint64_t) n : 0;
        return n;
}

struct step {
        struct fixture *f;
        struct world *w;
        struct measured *m;
};

/* In a child, so that its memory is its own. */
static void measure(struct cost *cost, void (*call)(struct step *), struct step *s) {
        struct io_ops io = io_system;
        struct rusage usage;
        int status;
        (void) fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
                counting = cost;
                io.openat = count_openat;
                io.pread = count_pread;
                s->f->store.io = &io;
                call(s);
                _exit(0);
        }
        assert_int_equal(wait4(child, &status, 0, &usage), child);
        assert_int_equal(status, 0);
        cost->peak_bytes = (uint64_t) usage.ru_maxrss * 1024;
        cost->seconds = (double) (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                        (double) (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void must(int r, const struct cairn_error *e) {
        if (r == 0)
                return;
        fprintf(stderr, "%s %s: %s\n", e->operation, e->object, e->message);
        abort();
}

/* ---- the steps ---- */

static int no_sync(void *context, int fd) {
        (void) context;
        (void) fd;
        return 0;
}

/* Planted without being durable: that is the savers' and the disks' time, not the leader's. */
static void plant(struct step *s) {
        struct fixture *f = s->f;
        struct io_ops io = io_system;
        struct attempt a;
        io.fsync = io.fdatasync = no_sync;
        f->store.io = &io;
        must(attempt_open(&f->run, 1, 1, s->w->ranks, &a, &f->e), &f->e);
        for (uint32_t rank = 0; rank < s->w->ranks; rank++) {
                int data_fd, manifest_fd;
                must(attempt_open_rank(&a, &io, rank, &data_fd, &manifest_fd, &f->e), &f->e);
                world_write(s->w, rank, data_fd, manifest_fd, &s->m->records,
                            &s->m->manifest_bytes);
                (void) close(data_fd);
                (void) close(manifest_fd);
                must(attempt_publish_manifest(&a, &io, rank, &f->e), &f->e);
        }
}

static void commit(struct step *s) {
        struct fixture *f = s->f;
        struct commit_result result;
        struct attempt a;
        struct stat st;
        must(attempt_reopen(&f->run, 1, 1, s->w->ranks, &a, &f->e), &f->e);
        must(attempt_commit(&f->run, &a, 0, "", &result, &f->e), &f->e);
        char path[2 * NAME_BYTES];
        (void) snprintf(path, sizeof path, "%s/%s", result.name, INDEX_NAME);
        must(fstatat(f->run.fd, path, &st, 0), &f->e);
        s->m->index_bytes = (uint64_t) st.st_size;
        (void) snprintf(path, sizeof path, "%s/%s", result.name, COMMIT_NAME);
        must(fstatat(f->run.fd, path, &st, 0), &f->e);
        s->m->commit_bytes = (uint64_t) st.st_size;
}

static const char checkpoint[] = "000000000012-g0001";

static void open_place(const struct step *s, struct checkpoint_place *ret) {
        struct fixture *f = s->f;
        must(checkpoint_place_open(&f->store, "run", checkpoint, ret, &f->e), &f->e);
        CAIRN_ASSERT(ret->world == s->w->ranks);
}

static int open_index(const struct step *s) {
        struct fixture *f = s->f;
        struct checkpoint_place place;
        struct scan_node here;
        int fd = -1;
        open_place(s, &place);
        must(restore_open_index(&f->store, &place, &fd, &here, &f->e), &f->e);
        checkpoint_place_done(&f->store, &place);
        return fd;
}

static void open_checkpoint(struct step *s) {
        (void) close(open_index(s));
}

/* As the store process hands them out. */
static void open_files(struct step *s) {
        struct fixture *f = s->f;
        struct checkpoint_place place;
        int fds[WIRE_FDS_MAX];
        open_place(s, &place);
        for (uint32_t first = 0; first < s->w->ranks; first += WIRE_FDS_MAX) {
                uint32_t left = s->w->ranks - first,
                         count = left < WIRE_FDS_MAX ? left : WIRE_FDS_MAX;
                must(restore_open_files(&f->store, &place, first, count, fds, &f->e), &f->e);
                for (uint32_t i = 0; i < count; i++)
                        (void) close(fds[i]);
        }
        checkpoint_place_done(&f->store, &place);
}

/* What libcairn does with INDEX on the rank in the middle of a world of so many. */
static void make_plan(const struct step *s, uint32_t ranks, uint64_t *ret_ranges,
                      uint64_t *ret_bytes, uint64_t *ret_read) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct binding_request request = {.start = CAIRN_START_RESUME,
                                          .run = "run",
                                          .rank = ranks / 2,
                                          .world = ranks,
                                          .step = 12};
        struct registry registry;
        struct slabs slabs;
        struct stored stored;
        struct binding binding = {0};
        struct transfer x;
        int fd = open_index(s);
        must(registry_init(&registry), &e);
        world_register(s->w, request.rank, ranks, &registry, &slabs);
        must(stored_open(&stored, fd, checkpoint, &e), &e);
        stored.here = (struct layout_ranks){0, s->w->ranks};
        must(binding_make(&binding, &stored, &request, &registry, &e), &e);
        if (binding.problems.item_count)
                fprintf(stderr, "%s\n", textbuf_string(&binding.problems));
        CAIRN_ASSERT(binding.problems.item_count == 0);
        must(transfer_plan(&x, &binding, &registry, &e), &e);
        *ret_ranges = x.range_count;
        *ret_bytes = x.bytes;
        *ret_read = x.bytes_read;
        for (size_t i = 0; i < x.range_count; i++)
                s->m->files_needed += i == 0 || x.ranges[i].rank != x.ranges[i - 1].rank;
}

static void plan(struct step *s) {
        make_plan(s, s->w->ranks, &s->m->ranges, &s->m->plan_bytes, &s->m->plan_read_bytes);
}

static void plan_elastic(struct step *s) {
        uint64_t needed = s->m->files_needed;
        make_plan(s, s->w->ranks * 3 / 4, &s->m->elastic_ranges, &s->m->elastic_bytes,
                  &s->m->elastic_read_bytes);
        s->m->files_needed = needed;
}

/* ---- a world ---- */

static int remove_visit(const char *path, const struct stat *st, int kind, struct FTW *place) {
        (void) st;
        (void) kind;
        (void) place;
        return remove(path);
}

static void measure_world(uint32_t nodes, size_t tensors, bool whole, struct measured *m) {
        struct fixture *f = fixture_new();
        struct world w;
        struct step s = {.f = f, .w = &w, .m = m};
        struct cost planting = {0};
        m->ranks = nodes * RANKS_A_NODE;
        world_init(&w, m->ranks, tensors);
        fixture_request(f, START_FRESH)->world = m->ranks;
        assert_int_equal(fixture_start(f), 0);
        measure(&planting, plant, &s);
        measure(&m->commit, commit, &s);
        measure(&m->open, open_checkpoint, &s);
        measure(&m->files, open_files, &s);
        measure(&m->plan, plan, &s);
        measure(&m->elastic, plan_elastic, &s);
        if (whole)
                must(checkpoint_check(&io_system, f->run.fd, checkpoint, "run", true, NULL, &f->e),
                     &f->e);
        world_done(&w);
        (void) nftw(f->folder, remove_visit, 16, FTW_DEPTH | FTW_PHYS);
        fixture_free(f);
}

static double mega(uint64_t bytes) {
        return (double) bytes / 1e6;
}

static void print(const struct measured *m, size_t tensors) {
        printf("%zu tensors, %d ranks a node; MB of 10^6; s: of the processor; peak: MB of "
               "memory\n",
               tensors, RANKS_A_NODE);
        printf("%8s %9s %9s %8s %8s | %7s %7s %6s | %7s %7s %6s | %7s | %7s %6s %7s %6s | %7s "
               "%7s\n",
               "ranks", "records", "manif.MB", "INDEX MB", "COMMIT", "commit s", "read", "peak",
               "open s", "read MB", "manif", "files s", "plan s", "peak", "ranges", "files",
               "other s", "ranges");
        for (size_t i = 0; i < SIZES; i++, m++)
                printf("%8u %9llu %9.1f %8.1f %8.2f | %8.2f %7llu %6.0f | %7.3f %7.1f %6llu | "
                       "%7.2f | %7.3f %6.0f %7llu %6llu | %7.3f %7llu\n",
                       m->ranks, (unsigned long long) m->records, mega(m->manifest_bytes),
                       mega(m->index_bytes), mega(m->commit_bytes), m->commit.seconds,
                       (unsigned long long) m->commit.manifests, mega(m->commit.peak_bytes),
                       m->open.seconds, mega(m->open.read_bytes),
                       (unsigned long long) m->open.manifests, m->files.seconds, m->plan.seconds,
                       mega(m->plan.peak_bytes), (unsigned long long) m->ranges,
                       (unsigned long long) m->files_needed, m->elastic.seconds,
                       (unsigned long long) m->elastic_ranges);
}

/* Twice the ranks cost at most twice as much, and what does not depend on them stays. */
static void check(const struct measured *m, size_t tensors) {
        for (size_t i = 0; i < SIZES; i++, m++) {
                /* Rank 0 has all, each parameter has one writer, each shard ends a few tensors. */
                assert_in_range(m->records, tensors,
                                tensors + tensors / 4 + tensors + (uint64_t) 3 * m->ranks);
                assert_int_equal(m->commit.manifests, m->ranks);
                assert_int_equal(m->open.manifests, 0);
                assert_int_equal(m->files.manifests, 0);
                assert_int_equal(m->plan.manifests, 0);
                /* COMMIT and INDEX, and no data. */
                assert_in_range(m->open.read_bytes, m->index_bytes + m->commit_bytes,
                                m->index_bytes + m->commit_bytes + DATA_BLOCK_BYTES);
                assert_in_range(m->plan_read_bytes, m->plan_bytes, m->plan_bytes * 21 / 20);
                assert_in_range(m->elastic_read_bytes, m->elastic_bytes,
                                m->elastic_bytes * 21 / 20);
                assert_true(m->ranges <= tensors);
                if (i == 0)
                        continue;
                assert_true(m->commit_bytes < 2 * m[-1].commit_bytes);
                assert_true(m->index_bytes < 2 * m[-1].index_bytes);
                assert_true(m->manifest_bytes < 2 * m[-1].manifest_bytes);
                assert_true(m->commit.read_bytes < 2 * m[-1].commit.read_bytes);
                assert_true(m->files.read_bytes < 2.1 * (double) m[-1].files.read_bytes);
        }
}

static void test_growth(void **state) {
        const char *nodes_text = getenv("SIZE_NODES"), *tensors_text = getenv("SIZE_TENSORS");
        uint32_t nodes = nodes_text ? (uint32_t) strtoul(nodes_text, NULL, 10) : 32;
        size_t tensors = tensors_text ? strtoul(tensors_text, NULL, 10)
                         : nodes_text ? 100000
                                      : 3200;
        struct measured *m = mmap(NULL, SIZES * sizeof *m, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        (void) state;
        assert_true(m != MAP_FAILED && nodes >= 8);
        for (uint32_t i = 0; i < SIZES; i++)
                measure_world(nodes >> (SIZES - 1 - i), tensors, !nodes_text && i == 0, &m[i]);
        print(m, tensors);
        check(m, tensors);
        (void) munmap(m, SIZES * sizeof *m);
}

int main(void) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(test_growth)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
