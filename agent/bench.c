/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/bench.h"

#include "agent/config.h"
#include "agent/copier.h"
#include "agent/reader.h"
#include "agent/writer.h"
#include "base/cleanup.h"
#include "format/host_state.h"
#include "format/layout.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#define TENSOR_BYTES (64 * MiB)
#define BYTES_MIN (1 * MiB)
#define BYTES_MAX (256 * GiB)
#define DEADLINE_NS (3600 * NSEC_PER_SEC)
#define ARENA_BYTES (64 * MiB)
enum { SLAB_KIND_MEMFD = 1, BENCH_SEAL = 1, BENCH_STEP = 1 };

struct bench {
        const char *what, *dir, *keep;
        uint64_t bytes;
        bool json;
        struct control_page *page;
        struct source source;
        struct staging staging;
        struct ring *ring;
        int data_fd, manifest_fd;
        unsigned char payload[8];
        struct copied copied;
        /* results */
        uint64_t took_ns, first_ns, memcpy_ns;
        bool direct;
};

/* ---- the trainer ---- */

/* Finite values that no disk can compress: 1 <= x < 2. */
static void fill(uint32_t *words, uint64_t count) {
        uint32_t x = 0x9e3779b9;
        for (uint64_t i = 0; i < count; i++) {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                words[i] = 0x3f800000 | x >> 9;
        }
}

static int add_slab(struct bench *b, struct cairn_error *reterr) {
        _cleanup_close_ int fd = -1;
        TRY(wire_memfd_create("cairn-bench-slab", b->bytes, &fd, reterr));
        uint32_t *words = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (words == MAP_FAILED)
                return error_set_errno(reterr, errno, "map memory", "slab");
        (void) madvise(words, b->bytes, MADV_HUGEPAGE);
        fill(words, b->bytes / sizeof *words);
        (void) munmap(words, b->bytes);
        return source_add_slab(&b->source, 0, fd, b->bytes, SLAB_KIND_MEMFD, reterr);
}

static int fill_inventory(const struct bench *b, struct arena *arena, struct file_content *c) {
        size_t count = (b->bytes + TENSOR_BYTES - 1) / TENSOR_BYTES;
        Cairn__Format__Tensor *tensors = arena_alloc(arena, count * sizeof *tensors, 8);
        Cairn__Format__Placement *places = arena_alloc(arena, count * sizeof *places, 8);
        c->tensors = arena_alloc(arena, count * sizeof(void *), 8);
        c->placements = arena_alloc(arena, count * sizeof(void *), 8);
        if (!tensors || !places || !c->tensors || !c->placements)
                return CAIRN_ERR_NOMEM;
        for (size_t i = 0; i < count; i++) {
                Cairn__Format__Tensor *t = c->tensors[i] = &tensors[i];
                Cairn__Format__Placement *p = c->placements[i] = &places[i];
                uint64_t offset = i * TENSOR_BYTES, left = b->bytes - offset;
                char *name = arena_alloc(arena, 32, 1);
                uint64_t *shape = arena_alloc(arena, sizeof *shape, 8);
                if (!name || !shape)
                        return CAIRN_ERR_NOMEM;
                cairn__format__tensor__init(t);
                cairn__format__placement__init(p);
                t->name.data = (uint8_t *) name;
                t->name.len = (size_t) snprintf(name, 32, "bench.%08zu", i);
                t->role = CAIRN_PARAMETER;
                t->runtime_dtype = t->stored_dtype = CAIRN_F32;
                *shape = (left < TENSOR_BYTES ? left : TENSOR_BYTES) / sizeof(float);
                t->shape = shape;
                t->n_shape = 1;
                p->offset = offset;
                p->owned = true;
        }
        c->tensor_count = c->placement_count = count;
        return 0;
}

static int make_inventory(const struct bench *b, struct arena *arena, int *ret_fd,
                          struct cairn_error *reterr) {
        Cairn__Format__InventoryHead head = CAIRN__FORMAT__INVENTORY_HEAD__INIT;
        struct file_content content = {.kind = FILE_INVENTORY, .inventory = &head};
        uint64_t slab_bytes[] = {b->bytes};
        _cleanup_free_ void *bytes = NULL;
        _cleanup_close_ int fd = -1;
        size_t count;
        if (fill_inventory(b, arena, &content) < 0)
                return error_set_errno(reterr, ENOMEM, "make inventory", "");
        head.seal = BENCH_SEAL;
        head.tensor_count = content.tensor_count;
        head.slab_count = head.n_slab_bytes = 1;
        head.slab_bytes = slab_bytes;
        TRY(file_write(&content, &bytes, &count, reterr));
        TRY(wire_memfd_create("cairn-bench-inventory", count, &fd, reterr));
        TRY(io_write_all(&io_system, fd, bytes, count, 0, "inventory", reterr));
        *ret_fd = TAKE_FD(fd);
        return 0;
}

static int make_host_state(int *ret_fd, struct cairn_error *reterr) {
        _cleanup_close_ int fd = -1;
        uint64_t bytes = host_state_bytes(0);
        TRY(wire_memfd_create("cairn-bench-host", bytes, &fd, reterr));
        void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (host == MAP_FAILED)
                return error_set_errno(reterr, errno, "map memory", "host state");
        host_state_init(host, 0);
        host_state_publish(host, 1, BENCH_STEP, "");
        (void) munmap(host, bytes);
        *ret_fd = TAKE_FD(fd);
        return 0;
}

static int seal(struct bench *b, struct cairn_error *reterr) {
        _cleanup_close_ int inventory_fd = -1, host_fd = -1;
        struct arena arena;
        uint64_t seq;
        bool ring_wanted;
        arena_init(&arena, ARENA_BYTES);
        int r = make_inventory(b, &arena, &inventory_fd, reterr);
        arena_done(&arena);
        TRY(r);
        TRY(make_host_state(&host_fd, reterr));
        TRY(source_seal(&b->source, 0, BENCH_SEAL, inventory_fd, host_fd, reterr));
        b->page = mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (b->page == MAP_FAILED) {
                b->page = NULL;
                return error_set_errno(reterr, errno, "map memory", "control page");
        }
        control_page_init(b->page, 1);
        if (cut_update_end(b->page, BENCH_STEP, BENCH_SEAL, &seq, &ring_wanted) < 0)
                return error_set(reterr, CAIRN_ERR_FATAL, "begin", "control page", "bad phase");
        return 0;
}

/* ---- the saver ---- */

static int prepare(struct bench *b, struct cairn_error *reterr) {
        const struct ring_options options = {.backend = RING_AUTO};
        _cleanup_close_ int fd = -1;
        source_init(&b->source);
        TRY(add_slab(b, reterr));
        TRY(seal(b, reterr));
        TRY(wire_memfd_create("cairn-bench-staging", b->source.image_bytes, &fd, reterr));
        TRY(staging_map(&b->staging, fd, b->source.image_bytes, NULL, reterr));
        while (staging_populate(&b->staging) || source_populate(&b->source))
                ;
        TRY(ring_new(&options, &b->ring, reterr));
        return ring_attach(b->ring, b->staging.base, b->staging.bytes, reterr);
}

static void bench_done(struct bench *b) {
        ring_free(b->ring);
        staging_done(&b->staging);
        source_done(&b->source);
        if (b->page)
                (void) munmap(b->page, CONTROL_PAGE_BYTES);
        cleanup_close(&b->data_fd);
        cleanup_close(&b->manifest_fd);
}

/* A file without a name, so that it goes with this process; where there are none, one whose name is
 * removed at once. */
static int open_nameless(const struct bench *b, const char *name, int *ret_fd,
                         struct cairn_error *reterr) {
        char path[4096];
        int fd = open(b->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
                (void) snprintf(path, sizeof path, "%.4000s/.tmp-bench-%d-%s", b->dir,
                                (int) getpid(), name);
                fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
                if (fd >= 0)
                        (void) unlink(path);
        }
        if (fd < 0)
                return error_set_errno(reterr, errno, "create file", b->dir);
        *ret_fd = fd;
        return 0;
}

/* Whoever wants to measure the same file, too, finds it under a name. */
static int keep(const struct bench *b, struct cairn_error *reterr) {
        char from[64], to[4096];
        (void) snprintf(from, sizeof from, "/proc/self/fd/%d", b->data_fd);
        (void) snprintf(to, sizeof to, "%.2000s/%.2000s", b->dir, b->keep);
        if (linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) < 0)
                return error_set_errno(reterr, errno, "keep data file as", to);
        return 0;
}

static int wait_for_ring(void *context, int ring_fd) {
        struct pollfd fd = {.fd = ring_fd, .events = POLLIN};
        uint64_t count;
        if (poll(&fd, 1, ring_fd < 0 ? 0 : 100) > 0)
                (void) !read(ring_fd, &count, sizeof count);
        return 0;
}

static int take(struct bench *b, struct cairn_error *reterr) {
        b->copied.payload = b->payload;
        return copier_take(b->page, &b->source, &b->staging, true, NULL, &b->copied, reterr);
}

static int write_once(struct bench *b, struct cairn_error *reterr) {
        struct written written;
        TRY(take(b, reterr));
        TRY(open_nameless(b, "data", &b->data_fd, reterr));
        TRY(open_nameless(b, "manifest", &b->manifest_fd, reterr));
        const struct writer_job job = {.run = "bench",
                                       .generation = 1,
                                       .world = 1,
                                       .attempt = 1,
                                       .data_fd = b->data_fd,
                                       .manifest_fd = b->manifest_fd,
                                       .clock = &clock_system,
                                       .wait = wait_for_ring,
                                       .deadline_ns = clock_now(&clock_system) + DEADLINE_NS};
        uint64_t start_ns = clock_now(&clock_system);
        TRY(writer_write(&job, b->ring, &b->source, &b->staging, &b->copied, &written, reterr));
        b->took_ns = clock_now(&clock_system) - start_ns;
        b->direct = ring_alignment(b->ring, 0) > 1;
        return 0;
}

/* The whole file, as a restore on the same number of ranks asks for it. */
static int read_once(struct bench *b, struct cairn_error *reterr) {
        TRY(write_once(b, reterr));
        (void) posix_fadvise(b->data_fd, 0, 0, POSIX_FADV_DONTNEED); /* a buffered reader's cache */
        size_t count = b->source.tensor_count;
        _cleanup_free_ char *plan = malloc(plan_bytes(count) + count * sizeof(struct plan_range));
        struct plan_range *ranges = (void *) (plan + plan_bytes(count));
        if (!plan)
                return error_set_errno(reterr, ENOMEM, "plan reading", "");
        for (size_t i = 0; i < count; i++) {
                const Cairn__Format__Extent *e = b->source.tensors[i].record->extents[0];
                ranges[i] = (struct plan_range){
                        .crc32c = e->crc32c, .file_offset = e->offset, .bytes = e->bytes};
        }
        struct reader_job job = {.fds = &b->data_fd,
                                 .file_count = 1,
                                 .alone = true,
                                 .clock = &clock_system,
                                 .wait = wait_for_ring,
                                 .deadline_ns = clock_now(&clock_system) + DEADLINE_NS};
        uint64_t staging_bytes, bytes;
        TRY(plan_write(plan, ranges, count, &staging_bytes, reterr));
        TRY(plan_read(plan, plan_bytes(count), 1, &job.ranges, &job.range_count, &staging_bytes,
                      reterr));
        memset(b->staging.base, 0, b->staging.bytes); /* what is verified is what was read */
        uint64_t start_ns = clock_now(&clock_system);
        TRY(reader_read(&job, b->ring, &b->staging, &bytes, reterr));
        b->took_ns = clock_now(&clock_system) - start_ns;
        b->direct = ring_alignment(b->ring, 0) > 1;
        return 0;
}

static int snapshot_once(struct bench *b, struct cairn_error *reterr) {
        for (int round = 0; round < 2; round++) { /* a session's first copy, and any later one */
                uint64_t start_ns = clock_now(&clock_system);
                TRY(take(b, reterr));
                b->took_ns = clock_now(&clock_system) - start_ns;
                if (round == 0)
                        b->first_ns = b->took_ns;
                start_ns = clock_now(&clock_system);
                memcpy(b->staging.base, b->source.slabs[0], b->bytes);
                b->memcpy_ns = clock_now(&clock_system) - start_ns;
        }
        return 0;
}

/* ---- the command ---- */

static double rate(uint64_t bytes, uint64_t ns) {
        return (double) bytes * 1e9 / (double) (ns ? ns : 1);
}

static int report(const struct bench *b) {
        const char *backend = b->memcpy_ns ? "pull" : ring_backend_name(b->ring);
        double seconds = (double) b->took_ns / 1e9, speed = rate(b->bytes, b->took_ns);
        if (!b->json) {
                printf("%s: %.2f GB/s, %llu bytes in %.3f s (%s%s)", b->what, speed / 1e9,
                       (unsigned long long) b->bytes, seconds, backend,
                       b->direct ? ", O_DIRECT" : "");
                if (b->memcpy_ns)
                        printf("; memcpy %.2f GB/s", rate(b->bytes, b->memcpy_ns) / 1e9);
                putchar('\n');
                return 0;
        }
        json_t *j = json_pack("{s:s, s:I, s:f, s:f, s:s, s:b}", "what", b->what, "bytes",
                              (json_int_t) b->bytes, "seconds", seconds, "bytes_per_second", speed,
                              "backend", backend, "direct", b->direct);
        if (j && b->memcpy_ns) {
                json_object_set_new(j, "first_seconds", json_real((double) b->first_ns / 1e9));
                json_object_set_new(j, "memcpy_bytes_per_second",
                                    json_real(rate(b->bytes, b->memcpy_ns)));
        }
        int r = j ? json_dumpf(j, stdout, JSON_COMPACT) : -1;
        json_decref(j);
        putchar('\n');
        return r;
}

static int parse(struct bench *b, int argc, char **argv, struct cairn_error *reterr) {
        b->what = argc > 2 ? argv[2] : "";
        for (int i = 3; i < argc; i++)
                if (!strcmp(argv[i], "--json"))
                        b->json = true;
                else if (!strcmp(argv[i], "--dir") && i + 1 < argc)
                        b->dir = argv[++i];
                else if (!strcmp(argv[i], "--keep") && i + 1 < argc)
                        b->keep = argv[++i];
                else if (!strcmp(argv[i], "--bytes") && i + 1 < argc &&
                         config_parse_bytes(argv[i + 1], &b->bytes))
                        i++;
                else if (!strcmp(argv[i], "--bytes") && i + 1 < argc)
                        return error_set(reterr, CAIRN_ERR_API, "read flags", "--bytes",
                                         "it takes a size like 64M or 4G, not '%s'", argv[i + 1]);
                else
                        return error_set(reterr, CAIRN_ERR_API, "read flags", argv[i],
                                         "--dir D, --bytes N (like 4G), --keep NAME and --json may "
                                         "follow");
        b->bytes &= ~(uint64_t) (DATA_BLOCK_BYTES - 1);
        if (b->bytes < BYTES_MIN || b->bytes > BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "read flags", "--bytes",
                                 "from 1M to 256G, and twice as much memory is needed");
        if (!b->dir && strcmp(b->what, "snapshot") != 0)
                return error_set(reterr, CAIRN_ERR_API, "read flags", "--dir",
                                 "name the folder to measure");
        if (b->keep && !strcmp(b->what, "snapshot"))
                return error_set(reterr, CAIRN_ERR_API, "read flags", "--keep",
                                 "snapshot writes no file: write and read do");
        if (b->keep && (!*b->keep || strchr(b->keep, '/')))
                return error_set(reterr, CAIRN_ERR_API, "read flags", "--keep",
                                 "it takes the name of a file in --dir, not '%s'", b->keep);
        return 0;
}

int bench_main(int argc, char **argv) {
        static const struct {
                const char *name;
                int (*run)(struct bench *b, struct cairn_error *reterr);
        } kinds[] = {{"write", write_once}, {"read", read_once}, {"snapshot", snapshot_once}};
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_(bench_done) struct bench b = {.bytes = GiB, .data_fd = -1, .manifest_fd = -1};
        char text[1024];
        size_t kind = 0;
        int r = parse(&b, argc, argv, &e);
        while (kind < sizeof kinds / sizeof *kinds && strcmp(b.what, kinds[kind].name) != 0)
                kind++;
        if (r == 0 && kind == sizeof kinds / sizeof *kinds)
                r = error_set(&e, CAIRN_ERR_API, "read flags", b.what,
                              "what is measured is write, read or snapshot");
        if (r == 0)
                r = prepare(&b, &e);
        if (r == 0)
                r = kinds[kind].run(&b, &e);
        if (r == 0 && b.keep)
                r = keep(&b, &e);
        if (r == 0 && report(&b) == 0)
                return fflush(stdout) == 0 ? 0 : status_exit_code(CAIRN_ERR_IO);
        const char *slash = strrchr(argv[0], '/'); /* what was called: `cairn bench`, or cairnd */
        fprintf(stderr, "%s: %s\n", slash ? slash + 1 : argv[0],
                error_format(&e, text, sizeof text));
        return status_exit_code(r < 0 ? r : CAIRN_ERR_IO);
}
