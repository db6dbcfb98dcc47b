/* SPDX-License-Identifier: Apache-2.0
 *
 * Extents of other worlds: flat shards cut elsewhere, blocks, several files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/transfer.h"
#include "format/crc32c.h"
#include "format/plan.h"

enum { ROWS = 4, COLUMNS = 6, ELEMENTS = ROWS * COLUMNS };

struct fixture {
        struct device *device;
        struct slabs slabs;
        struct registry registry;
        int32_t *data;
        Cairn__Format__Tensor stored;
        Cairn__Format__Extent extents[4], *extent_list[4];
        Cairn__Format__Shard shards[4];
        uint64_t shape[2], block[4][4];
        unsigned char staging[4096];
        struct load load;
        struct binding binding;
        struct transfer transfer;
};

static void add_extent(struct fixture *f, uint32_t rank, uint64_t offset, const int32_t *values,
                       uint64_t count) {
        size_t i = f->stored.n_extents++;
        Cairn__Format__Extent *e = &f->extents[i];
        cairn__format__extent__init(e);
        cairn__format__shard__init(&f->shards[i]);
        e->rank = rank;
        e->offset = offset;
        e->bytes = count * 4;
        e->crc32c = crc32c(0, values, e->bytes);
        e->shard = &f->shards[i];
        f->extent_list[i] = e;
        f->stored.extents = f->extent_list;
}

static void add_flat(struct fixture *f, uint32_t rank, uint64_t start, uint64_t count) {
        int32_t values[ELEMENTS];
        for (uint64_t k = 0; k < count; k++)
                values[k] = (int32_t) (start + k);
        add_extent(f, rank, 4096, values, count);
        Cairn__Format__Shard *s = f->extents[f->stored.n_extents - 1].shard;
        s->flat = 1;
        s->flat_start = start;
        s->flat_count = count;
}

/* Columns [first, first + count) of all rows. */
static void add_block(struct fixture *f, uint32_t rank, uint64_t first, uint64_t count) {
        int32_t values[ELEMENTS];
        for (uint64_t row = 0; row < ROWS; row++)
                for (uint64_t k = 0; k < count; k++)
                        values[row * count + k] = (int32_t) (row * COLUMNS + first + k);
        size_t i = f->stored.n_extents;
        add_extent(f, rank, 8192, values, ROWS * count);
        f->block[i][0] = 0;
        f->block[i][1] = first;
        f->block[i][2] = ROWS;
        f->block[i][3] = count;
        f->shards[i].n_offsets = f->shards[i].n_extents = 2;
        f->shards[i].offsets = &f->block[i][0];
        f->shards[i].extents = &f->block[i][2];
}

static int set_up(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        *state = f;
        (void) device_host.open(0, &f->device, NULL);
        slabs_init(&f->slabs, f->device);
        (void) registry_init(&f->registry);
        (void) slabs_allocate(&f->slabs, ELEMENTS * 4, (void **) &f->data, NULL, NULL);
        cairn__format__tensor__init(&f->stored);
        f->stored.role = CAIRN_OTHER;
        f->stored.runtime_dtype = f->stored.stored_dtype = CAIRN_I32;
        f->shape[0] = ROWS;
        f->shape[1] = COLUMNS;
        f->stored.shape = f->shape;
        f->stored.n_shape = 2;
        f->load.stored = &f->stored;
        f->binding.loads = &f->load;
        f->binding.load_count = 1;
        f->transfer.plan_fd = -1;
        return 0;
}
static int tear_down(void **state) {
        struct fixture *f = *state;
        transfer_done(&f->transfer);
        registry_done(&f->registry);
        slabs_done(&f->slabs);
        device_host.close(f->device);
        free(f);
        return 0;
}

static void register_part(struct fixture *f, uint64_t start, uint64_t count) {
        struct cairn_tensor t = {CAIRN_TENSOR_INIT,   .name = "t",
                                 .role = CAIRN_OTHER, .dtype = CAIRN_I32,
                                 .rank = 2,           .shape = {ROWS, COLUMNS},
                                 .data = f->data,     .sharded = count != ELEMENTS,
                                 .flat_start = start, .flat_count = count};
        assert_int_equal(registry_add_tensor(&f->registry, &f->slabs, &t, NULL), 0);
        memset(f->data, 0xff, ELEMENTS * 4);
}

/* What a saver would do with the plan; the values come from the extents' own description. */
static void stage(struct fixture *f) {
        for (size_t i = 0; i < f->transfer.range_count; i++) {
                const struct plan_range *r = &f->transfer.ranges[i];
                for (size_t k = 0; k < f->stored.n_extents; k++) {
                        const Cairn__Format__Extent *e = &f->extents[k];
                        if (e->rank != r->rank || e->offset != r->file_offset)
                                continue;
                        int32_t values[ELEMENTS];
                        uint64_t count = e->bytes / 4, columns = COLUMNS,
                                 first = e->shard->flat_start;
                        if (!e->shard->flat) {
                                columns = e->shard->extents[1];
                                first = e->shard->offsets[1];
                        }
                        for (uint64_t n = 0; n < count; n++)
                                values[n] = (int32_t) (first + n / columns * COLUMNS + n % columns);
                        memcpy(f->staging + r->staging_offset, values, e->bytes);
                }
        }
}

static void transfer_all(struct fixture *f, uint64_t start, uint64_t count, size_t ranges) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        register_part(f, start, count);
        assert_int_equal(transfer_plan(&f->transfer, &f->binding, &f->registry, &e), 0);
        assert_int_equal(f->transfer.range_count, ranges);
        stage(f);
        assert_int_equal(transfer_check(&f->transfer, f->staging, sizeof f->staging, &e), 0);
        assert_int_equal(transfer_apply(&f->transfer, &e), 0);
        for (uint64_t i = 0; i < ELEMENTS; i++)
                assert_int_equal(f->data[i], i < count ? (int32_t) (start + i) : -1);
}

static void whole_from_flat_shards(void **state) {
        add_flat(*state, 1, 10, 14);
        add_flat(*state, 0, 0, 10);
        transfer_all(*state, 0, ELEMENTS, 2);
}

static void shard_from_other_shards(void **state) {
        add_flat(*state, 0, 0, 9);
        add_flat(*state, 1, 9, 9);
        add_flat(*state, 2, 18, 6);
        transfer_all(*state, 5, 6, 2); /* the third file is not read */
}

static void whole_from_blocks(void **state) {
        add_block(*state, 0, 0, 2);
        add_block(*state, 1, 2, 4);
        transfer_all(*state, 0, ELEMENTS, 2);
}

static void shard_from_blocks(void **state) {
        add_block(*state, 0, 0, 5);
        add_block(*state, 1, 5, 1);
        transfer_all(*state, 7, 9, 2);
}

static void a_wrong_checksum_is_found_before_copying(void **state) {
        struct fixture *f = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        add_flat(f, 0, 0, 12);
        add_flat(f, 1, 12, 12);
        register_part(f, 0, ELEMENTS);
        assert_int_equal(transfer_plan(&f->transfer, &f->binding, &f->registry, &e), 0);
        stage(f);
        f->staging[f->transfer.ranges[1].staging_offset] ^= 0x80;
        assert_int_equal(transfer_check(&f->transfer, f->staging, sizeof f->staging, &e),
                         CAIRN_ERR_CORRUPT);
        assert_string_equal(e.object, "t");
        assert_int_equal(transfer_check(&f->transfer, f->staging, 16, &e), CAIRN_ERR_CORRUPT);
}

static void blocks_that_do_not_fit_are_refused(void **state) {
        struct fixture *f = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        add_block(f, 0, 0, 6);
        f->shards[0].n_extents = 1;
        register_part(f, 0, ELEMENTS);
        assert_int_equal(transfer_plan(&f->transfer, &f->binding, &f->registry, &e),
                         CAIRN_ERR_CORRUPT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(whole_from_flat_shards),
                TEST(shard_from_other_shards),
                TEST(whole_from_blocks),
                TEST(shard_from_blocks),
                TEST(a_wrong_checksum_is_found_before_copying),
                TEST(blocks_that_do_not_fit_are_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
