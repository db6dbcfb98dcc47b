/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bytes.h"
#include "format/plan.h"
#include "tests/test.h"

#define assert_success(expr) assert_int_equal(expr, 0)

static struct plan_range sample[3] = {
        {.rank = 0, .crc32c = 1, .file_offset = 4096, .bytes = 1},
        {.rank = 0, .crc32c = 2, .file_offset = 4352, .bytes = 300},
        {.rank = 2, .crc32c = 3, .file_offset = 4096, .bytes = 4096},
};
static _Alignas(8) unsigned char plan[256];
static const struct plan_range *ranges;
static uint64_t count, staging;

static int read_plan(uint64_t bytes) {
        return plan_read(plan, bytes, 3, &ranges, &count, &staging, NULL);
}

static void write_plan(void) {
        assert_success(plan_write(plan, sample, 3, &staging, NULL));
}

static void test_round_trip(void **state) {
        write_plan();
        assert_true(staging == 8192); /* 256 + 512 + 4096, in blocks */
        assert_success(read_plan(plan_bytes(3)));
        assert_true(count == 3 && staging == 8192);
        assert_true(ranges[0].staging_offset == 0 && ranges[1].staging_offset == 256);
        assert_true(ranges[2].staging_offset == 768 && ranges[2].crc32c == 3);
        assert_success(plan_write(plan, NULL, 0, &staging, NULL));
        assert_success(plan_read(plan, plan_bytes(0), 1, &ranges, &count, &staging, NULL));
        assert_true(count == 0 && staging == 0);
}

static void test_refused_when_written(void **state) {
        struct plan_range r[2] = {{.rank = 1, .file_offset = 4096, .bytes = 8},
                                  {.rank = 0, .file_offset = 4096, .bytes = 8}};

        assert_true(plan_write(plan, r, 2, &staging, NULL) == CAIRN_ERR_CORRUPT);
        r[1].rank = 1;
        assert_true(plan_write(plan, r, 2, &staging, NULL) == CAIRN_ERR_CORRUPT); /* overlap */
        r[1].file_offset = 4104;
        assert_success(plan_write(plan, r, 2, &staging, NULL));
        r[1].bytes = UINT64_MAX;
        assert_true(plan_write(plan, r, 2, &staging, NULL) == CAIRN_ERR_CORRUPT);
        r[1].bytes = 0;
        assert_true(plan_write(plan, r, 2, &staging, NULL) == CAIRN_ERR_CORRUPT);
}

/* One field changed in turn; each must be refused. */
static void test_refused_when_read(void **state) {
        const struct {
                size_t at;
                uint64_t value;
        } changes[] = {
                {0, 0},
                {8, 2},
                {16, 4},
                {16, UINT64_C(1) << 60},
                {24, 4095},
                {24, 4096},
                {24, UINT64_MAX & ~UINT64_C(4095)},
                {32, 3},
                {40, 1u << 20},
                {48, 0},
                {48, UINT64_MAX},
                {56, 1},
                {64 + 24, 0},
                {64 + 8, 4096},
                {96 + 24, 1 << 20},
                {96 + 8, UINT64_MAX - 10},
        };

        for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
                write_plan();
                store_le64(plan + changes[i].at, changes[i].value);
                print_message("change %zu\n", i);
                assert_true(read_plan(plan_bytes(3)) < 0);
        }
        write_plan();
        for (uint64_t bytes = 0; bytes < plan_bytes(3); bytes++)
                assert_true(read_plan(bytes) < 0);
        assert_true(plan_read(plan, plan_bytes(3), 2, &ranges, &count, &staging, NULL) ==
                    CAIRN_ERR_CORRUPT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trip),
                cmocka_unit_test(test_refused_when_written),
                cmocka_unit_test(test_refused_when_read),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
