/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/tensor_read.h"

#include "tests/test.h"
#include "tests/unit/format_sample.h"
#include <fcntl.h>

#define ROWS 5
#define COLUMNS 7
#define ELEMENTS (ROWS * COLUMNS)

/* A tensor in a rank's file, at offset 4096, of 16-bit elements that say where in the whole they
 * belong. */
static Extent extent(uint32_t rank, Shard *shard) {
        Extent e = CAIRN__FORMAT__EXTENT__INIT;
        e.rank = rank;
        e.offset = DATA_BLOCK_BYTES;
        e.shard = shard;
        return e;
}

static void write_data(int fd, const char *name, const uint16_t *elements, size_t count) {
        int file = openat(fd, name, O_CREAT | O_RDWR | O_EXCL, 0600);
        assert_true(file >= 0);
        assert_int_equal(pwrite(file, elements, count * 2, DATA_BLOCK_BYTES), count * 2);
        (void) close(file);
}

/* Every range of the tensor, in one call each. */
static void check_all(const Tensor *t, uint32_t world, int fd) {
        struct tensor_reader r = TENSOR_READER_INIT;
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_int_equal(tensor_reader_open(&r, &io_system, fd, "ckpt", world, &e), 0);
        for (uint64_t first = 0; first < ELEMENTS; first++)
                for (uint64_t count = 1; first + count <= ELEMENTS; count++) {
                        uint16_t got[ELEMENTS] = {0};
                        assert_int_equal(tensor_read(&r, t, first, count, got, &e), 0);
                        for (uint64_t i = 0; i < count; i++)
                                assert_int_equal(got[i], first + i);
                }
        tensor_reader_done(&r);
}

struct place {
        char path[64];
        int fd, checkpoint_fd;
};

static void place_open(struct place *p) {
        (void) snprintf(p->path, sizeof p->path, "%s/tensor-XXXXXX", ".");
        const char *temporary = getenv("TMPDIR");
        assert_int_equal(chdir(temporary ? temporary : "/tmp"), 0);
        assert_non_null(mkdtemp(p->path));
        p->fd = open(p->path, O_RDONLY | O_DIRECTORY);
        assert_int_equal(mkdirat(p->fd, "ckpt", 0700), 0);
        p->checkpoint_fd = openat(p->fd, "ckpt", O_RDONLY | O_DIRECTORY);
}

static void place_done(struct place *p) {
        for (int rank = 0; rank < 3; rank++) {
                char name[NAME_BYTES];
                name_data(name, (uint32_t) rank);
                (void) unlinkat(p->checkpoint_fd, name, 0);
        }
        assert_int_equal(unlinkat(p->fd, "ckpt", AT_REMOVEDIR), 0);
        (void) close(p->checkpoint_fd);
        (void) close(p->fd);
        assert_int_equal(rmdir(p->path), 0);
}

static void tensor_init(Tensor *t, uint64_t *shape, Extent **extents, size_t count) {
        cairn__format__tensor__init(t);
        t->runtime_dtype = t->stored_dtype = CAIRN_U16;
        t->shape = shape;
        t->n_shape = 2;
        t->extents = extents;
        t->n_extents = count;
}

static void test_whole_and_flat(void **state) {
        struct place p;
        uint16_t all[ELEMENTS];
        uint64_t shape[] = {ROWS, COLUMNS};
        for (uint16_t i = 0; i < ELEMENTS; i++)
                all[i] = i;
        place_open(&p);
        write_data(p.checkpoint_fd, "rank-00000.data", all, ELEMENTS);
        Extent whole = extent(0, NULL), *one[] = {&whole};
        whole.bytes = sizeof all;
        Tensor t;
        tensor_init(&t, shape, one, 1);
        check_all(&t, 1, p.fd);

        write_data(p.checkpoint_fd, "rank-00001.data", all, 11);
        write_data(p.checkpoint_fd, "rank-00002.data", all + 11, ELEMENTS - 11);
        Shard low = CAIRN__FORMAT__SHARD__INIT, high = CAIRN__FORMAT__SHARD__INIT;
        low.flat = high.flat = true;
        low.flat_count = high.flat_start = 11;
        high.flat_count = ELEMENTS - 11;
        Extent parts[] = {extent(1, &low), extent(2, &high)}, *both[] = {&parts[0], &parts[1]};
        tensor_init(&t, shape, both, 2);
        check_all(&t, 3, p.fd);
        place_done(&p);
}

static void test_blocks(void **state) {
        struct place p;
        uint64_t shape[] = {ROWS, COLUMNS};
        uint64_t offsets[2][2] = {{0, 0}, {0, 3}}, sizes[2][2] = {{ROWS, 3}, {ROWS, COLUMNS - 3}};
        Shard shards[2];
        Extent extents[2], *pointers[2];
        place_open(&p);
        for (uint32_t rank = 0; rank < 2; rank++) {
                uint16_t part[ELEMENTS];
                char name[NAME_BYTES];
                size_t n = 0;
                for (uint64_t row = 0; row < ROWS; row++)
                        for (uint64_t c = 0; c < sizes[rank][1]; c++)
                                part[n++] = (uint16_t) (row * COLUMNS + offsets[rank][1] + c);
                name_data(name, rank);
                write_data(p.checkpoint_fd, name, part, n);
                cairn__format__shard__init(&shards[rank]);
                shards[rank].offsets = offsets[rank];
                shards[rank].extents = sizes[rank];
                shards[rank].n_offsets = shards[rank].n_extents = 2;
                extents[rank] = extent(rank, &shards[rank]);
                pointers[rank] = &extents[rank];
        }
        Tensor t;
        tensor_init(&t, shape, pointers, 2);
        check_all(&t, 2, p.fd);
        place_done(&p);
}

static void test_damage(void **state) {
        struct place p;
        uint16_t all[ELEMENTS] = {0}, got[ELEMENTS];
        uint64_t shape[] = {ROWS, COLUMNS};
        struct tensor_reader r = TENSOR_READER_INIT;
        struct cairn_error e = CAIRN_ERROR_INIT;
        place_open(&p);
        write_data(p.checkpoint_fd, "rank-00000.data", all, ELEMENTS - 1); /* cut short */
        Extent whole = extent(0, NULL), *one[] = {&whole};
        whole.bytes = sizeof all;
        Tensor t;
        tensor_init(&t, shape, one, 1);
        assert_int_equal(tensor_reader_open(&r, &io_system, p.fd, "ckpt", 1, &e), 0);
        assert_int_equal(tensor_read(&r, &t, 0, ELEMENTS, got, &e), CAIRN_ERR_CORRUPT);
        assert_int_equal(tensor_read(&r, &t, 0, ELEMENTS - 1, got, &e), 0);
        whole.rank = 1; /* beyond the world */
        assert_int_equal(tensor_read(&r, &t, 0, 1, got, &e), CAIRN_ERR_CORRUPT);
        tensor_reader_done(&r);
        tensor_reader_done(&r);
        place_done(&p);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_whole_and_flat),
                cmocka_unit_test(test_blocks),
                cmocka_unit_test(test_damage),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
