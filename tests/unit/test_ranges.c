/* SPDX-License-Identifier: Apache-2.0
 *
 * What a restore reads: whole extents, or the chunks that hold what is needed of large ones.
 */
#include "client/ranges.h"
#include "tests/test.h"

enum { CHUNKS = 8, EXTENTS = 6, RANKS = 2 };
#define M DATA_CHUNK_BYTES

/* Two files of 7 MiB and a block: their extents, and a checksum for each chunk. */
struct fixture {
        struct file_content index;
        Cairn__Format__Head head;
        Cairn__Format__Tensor tensor, *tensors[1];
        Cairn__Format__Extent extents[EXTENTS], *extent_pointers[EXTENTS];
        Cairn__Format__ChunkCrcs crcs[2 * RANKS], *crc_pointers[2 * RANKS];
        uint32_t sums[RANKS][CHUNKS];
        struct plan_range *ranges;
        size_t count;
};
static struct fixture f;

static const struct {
        uint32_t rank;
        uint64_t offset, bytes;
} places[EXTENTS] = {
        {0, 4096, 100},
        {0, 4352, 6 * M},
        {0, 4352 + 6 * M, 200 * 1024},
        {0, 4352 + 6 * M + 200 * 1024, M - 200 * 1024},
        {1, 4096, 7 * M},
        {1, 4096 + 7 * M, 256},
};

static int setup(void **state) {
        f = (struct fixture){.head = CAIRN__FORMAT__HEAD__INIT,
                             .tensor = CAIRN__FORMAT__TENSOR__INIT};
        f.head.world = RANKS;
        for (size_t i = 0; i < EXTENTS; i++) {
                cairn__format__extent__init(&f.extents[i]);
                f.extents[i].rank = places[i].rank;
                f.extents[i].offset = places[i].offset;
                f.extents[i].bytes = places[i].bytes;
                f.extents[i].crc32c = 1000 + (uint32_t) i;
                f.extent_pointers[i] = &f.extents[i];
        }
        f.tensor.extents = f.extent_pointers;
        f.tensor.n_extents = EXTENTS;
        f.tensors[0] = &f.tensor;
        for (size_t i = 0; i < (size_t) 2 * RANKS; i++) { /* two records a file */
                cairn__format__chunk_crcs__init(&f.crcs[i]);
                f.crcs[i].rank = (uint32_t) i / 2;
                f.crcs[i].first_chunk = i % 2 ? 3 : 0;
                f.crcs[i].n_crc32c = i % 2 ? CHUNKS - 3 : 3;
                f.crcs[i].crc32c = &f.sums[i / 2][i % 2 ? 3 : 0];
                f.crc_pointers[i] = &f.crcs[i];
        }
        for (uint32_t rank = 0; rank < RANKS; rank++)
                for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
                        f.sums[rank][chunk] = rank * 100 + chunk;
        f.index = (struct file_content){.kind = FILE_INDEX,
                                        .head = &f.head,
                                        .tensors = f.tensors,
                                        .tensor_count = 1,
                                        .chunk_crcs = f.crc_pointers,
                                        .chunk_crcs_count = (size_t) 2 * RANKS};
        return 0;
}
static int teardown(void **state) {
        free(f.ranges);
        return 0;
}

static struct ranges_want want(size_t extent, uint64_t from, uint64_t to) {
        return (struct ranges_want){.rank = places[extent].rank,
                                    .crc32c = 1000 + (uint32_t) extent,
                                    .offset = places[extent].offset,
                                    .end = places[extent].offset + places[extent].bytes,
                                    .need_begin = places[extent].offset + from,
                                    .need_end = places[extent].offset + to};
}

/* The plan is one that plan.h accepts, and all that is needed lies in it, in one piece. */
static void make(struct ranges_want *wants, size_t count) {
        static unsigned char plan[4096];
        const struct plan_range *read;
        uint64_t read_count, staging_bytes, again;
        struct cairn_error e = CAIRN_ERROR_INIT;

        free(f.ranges);
        assert_int_equal(ranges_make(wants, count, &f.index, &f.ranges, &f.count, &e), 0);
        assert_true(plan_bytes(f.count) <= sizeof plan);
        assert_int_equal(plan_write(plan, f.ranges, f.count, &staging_bytes, &e), 0);
        assert_int_equal(
                plan_read(plan, plan_bytes(f.count), RANKS, &read, &read_count, &again, &e), 0);
        for (size_t i = 0; i < count; i++) {
                const struct ranges_want *w = &wants[i];
                int64_t place = ranges_place(w, f.ranges);
                for (uint64_t at = w->need_begin; at < w->need_end;) {
                        size_t k = w->range;
                        while (k < f.count && (f.ranges[k].rank != w->rank ||
                                               at >= f.ranges[k].file_offset + f.ranges[k].bytes))
                                k++;
                        assert_true(k < f.count && at >= f.ranges[k].file_offset);
                        assert_true(place + (int64_t) (at - w->offset) ==
                                    (int64_t) (f.ranges[k].staging_offset + at -
                                               f.ranges[k].file_offset));
                        at = f.ranges[k].file_offset + f.ranges[k].bytes;
                }
        }
}

static void expect(size_t i, uint32_t rank, uint64_t offset, uint64_t bytes, uint32_t crc) {
        assert_true(i < f.count);
        assert_int_equal(f.ranges[i].rank, rank);
        assert_true(f.ranges[i].file_offset == offset && f.ranges[i].bytes == bytes);
        assert_int_equal(f.ranges[i].crc32c, crc);
}

static void whole_extents(void **state) {
        struct ranges_want wants[] = {want(4, 0, 7 * M), want(0, 0, 100), want(1, 0, 6 * M),
                                      want(0, 50, 60)};
        make(wants, 4);
        assert_int_equal(f.count, 3);
        expect(0, 0, 4096, 100, 1000);
        expect(1, 0, 4352, 6 * M, 1001);
        expect(2, 1, 4096, 7 * M, 1004);
        assert_true(wants[3].range == 0 && wants[0].range == 2);
}

/* The middle of a large extent: its chunks alone. */
static void part_of_an_extent(void **state) {
        struct ranges_want wants[] = {want(4, 2 * M, 3 * M)};
        make(wants, 1);
        assert_int_equal(f.count, 2);
        expect(0, 1, 2 * M, M, 102);
        expect(1, 1, 3 * M, M, 103);
        assert_true(ranges_place(&wants[0], f.ranges) < 0);
        /* Nearly all of it: the extent itself costs no more. */
        wants[0] = want(4, M, 7 * M);
        make(wants, 1);
        assert_int_equal(f.count, 1);
        expect(0, 1, 4096, 7 * M, 1004);
}

/* The last chunk ends with the file. */
static void the_end_of_a_file(void **state) {
        struct ranges_want wants[] = {want(4, 6 * M, 7 * M)};
        make(wants, 1);
        assert_int_equal(f.count, 2);
        expect(0, 1, 6 * M, M, 106);
        expect(1, 1, 7 * M, 8192, 107);
}

/* What lies in a chunk that is read anyway is not read twice, and drags its own chunks in. */
static void neighbours(void **state) {
        struct ranges_want wants[] = {want(1, 5 * M, 6 * M), want(2, 0, 1024), want(3, 0, 500),
                                      want(0, 0, 100)};
        make(wants, 4);
        assert_int_equal(f.count, 4);
        expect(0, 0, 4096, 100, 1000);
        expect(1, 0, 5 * M, M, 5);
        expect(2, 0, 6 * M, M, 6);
        expect(3, 0, 7 * M, 8192, 7); /* the rest of extent 3 */
        assert_true(wants[0].range == 1 && wants[1].range == 1 && wants[2].range == 1);
}

static void without_checksums_of_chunks(void **state) {
        struct ranges_want wants[] = {want(4, 2 * M, 3 * M)};
        f.index.chunk_crcs_count = 2; /* of rank 0 alone */
        make(wants, 1);
        assert_int_equal(f.count, 1);
        expect(0, 1, 4096, 7 * M, 1004);
}

static void refusals(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct ranges_want wants[] = {want(1, 0, 6 * M), want(1, 0, 6 * M)};
        wants[1].crc32c++;
        assert_int_equal(ranges_make(wants, 2, &f.index, &f.ranges, &f.count, &e),
                         CAIRN_ERR_CORRUPT);
        wants[1] = wants[0];
        wants[1].offset += 256;
        assert_int_equal(ranges_make(wants, 2, NULL, &f.ranges, &f.count, &e), CAIRN_ERR_CORRUPT);
        /* A checksum is missing in the middle. */
        f.crcs[0].n_crc32c = 1;
        wants[0] = want(1, 0, 4 * M);
        assert_int_equal(ranges_make(wants, 1, &f.index, &f.ranges, &f.count, &e),
                         CAIRN_ERR_CORRUPT);
}

int main(void) {
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(whole_extents), TEST(part_of_an_extent),           TEST(the_end_of_a_file),
                TEST(neighbours),    TEST(without_checksums_of_chunks), TEST(refusals),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
