/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/digest.h"
#include "tests/kernels/gpu_test.h"

enum { LARGE = 3000011 };

static void check(const unsigned char *data, size_t bytes, size_t misplaced) {
        uint64_t got, garbage = 7;
        /* The bytes before the data belong to the allocation, those behind it to nobody. */
        unsigned char *input = gpu_test_copy(data, misplaced + bytes);
        uint64_t *digest = gpu_test_copy(&garbage, sizeof garbage);
        gpu_test_ok(gpu_digest(gpu_test_stream(), digest, input + misplaced, bytes));
        gpu_test_fetch(&got, digest, sizeof got);
        uint64_t wanted = digest_bytes(data + misplaced, bytes);
        if (got != wanted)
                fail_msg("%zu bytes at %zu: %016lx, %016lx is right", bytes, misplaced, got,
                         wanted);
        gpu_test_free(input);
        gpu_test_free(digest);
}

static void test_sizes_and_places(void **state) {
        float x[2600];
        gpu_test_fill(x, 2600, 3, true);
        for (const size_t *count = gpu_test_counts(); *count != SIZE_MAX; count++)
                for (size_t misplaced = 0; misplaced<9; misplaced += *count> 300 ? 5 : 1)
                        check((const unsigned char *) x, *count, misplaced);
}

static void test_large(void **state) {
        unsigned char *data = malloc(LARGE);
        for (size_t i = 0; i < LARGE; i++)
                data[i] = (unsigned char) (i * i >> 3);
        check(data, LARGE, 0);
        free(data);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_sizes_and_places),
                cmocka_unit_test(test_large),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
