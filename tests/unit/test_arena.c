/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"
#include "base/limits.h"
#include "tests/test.h"

static void test_memory_is_zero_aligned_and_apart(void **state) {
        struct arena a;
        unsigned char *pieces[200];

        arena_init(&a, 4 * MiB);
        for (size_t i = 0; i < 200; i++) {
                size_t bytes = 1 + i * 37, alignment = (size_t) 1 << (i % 13);
                pieces[i] = arena_alloc(&a, bytes, alignment);
                assert_non_null(pieces[i]);
                assert_true((uintptr_t) pieces[i] % alignment == 0);
                for (size_t k = 0; k < bytes; k++)
                        assert_int_equal(pieces[i][k], 0);
                memset(pieces[i], (int) i, bytes);
        }
        for (size_t i = 0; i < 200; i++)
                for (size_t k = 0; k < 1 + i * 37; k++)
                        assert_int_equal(pieces[i][k], i);
        arena_done(&a);
}

static void test_limit(void **state) {
        struct arena a;

        arena_init(&a, 1000);
        assert_null(arena_alloc(&a, 1001, 1));
        assert_non_null(arena_alloc(&a, 1000, 1));
        assert_null(arena_alloc(&a, 1, 1));
        assert_true(a.bytes_used <= 1000);
        arena_clear(&a);
        assert_true(a.bytes_used == 0);
        assert_non_null(arena_alloc(&a, 1000, 8));
        arena_done(&a);

        arena_init(&a, 1 * MiB);
        uint64_t total = 0;
        while (arena_alloc(&a, 1000, 8))
                total += 1000;
        assert_true(a.bytes_used <= 1 * MiB);
        assert_true(total > 1 * MiB - 64 * KiB);
        arena_done(&a);
}

static void test_adopt(void **state) {
        struct arena a;
        void *memory = malloc(600), *more = malloc(600);

        arena_init(&a, 1000);
        assert_true(arena_adopt(&a, memory, 600)); /* freed with it */
        assert_false(arena_adopt(&a, more, 600));
        assert_non_null(arena_alloc(&a, 300, 1));
        assert_null(arena_alloc(&a, 300, 1));
        arena_done(&a);

        arena_init(&a, 1 * MiB);
        assert_non_null(arena_alloc(&a, 300, 1));
        assert_true(arena_adopt(&a, more, 600));
        uint64_t bytes_used = a.bytes_used;
        assert_non_null(arena_alloc(&a, 300, 1)); /* where there was room before */
        assert_true(a.bytes_used == bytes_used);
        arena_done(&a);
}

/* What a hostile length asks for. */
static void test_absurd_sizes(void **state) {
        struct arena a;

        arena_init(&a, UINT64_MAX);
        assert_null(arena_alloc(&a, SIZE_MAX, 1));
        assert_null(arena_alloc(&a, SIZE_MAX, 4096));
        assert_null(arena_alloc(&a, SIZE_MAX - 30, 8));
        assert_non_null(arena_alloc(&a, 0, 1));
        arena_done(&a);
        arena_init(&a, 0);
        assert_null(arena_alloc(&a, 1, 1));
        arena_done(&a);
        arena_done(NULL);
}

static void test_strndup(void **state) {
        struct arena a;

        arena_init(&a, 1 * KiB);
        assert_string_equal(arena_strndup(&a, "weight.0", 6), "weight");
        assert_string_equal(arena_strndup(&a, "w\0x", 3), "w");
        assert_string_equal(arena_strndup(&a, "", 0), "");
        arena_done(&a);
}

static void allocate_from(void *argument) {
        (void) arena_alloc(argument, 1, 1);
}

static void test_sealed(void **state) {
        struct arena a;

        arena_init(&a, 1 * KiB);
        assert_non_null(arena_alloc(&a, 1, 1));
        arena_seal(&a);
        test_assert_aborts(allocate_from, &a);
        arena_done(&a);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_memory_is_zero_aligned_and_apart),
                cmocka_unit_test(test_limit),
                cmocka_unit_test(test_adopt),
                cmocka_unit_test(test_absurd_sizes),
                cmocka_unit_test(test_strndup),
                cmocka_unit_test(test_sealed),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
