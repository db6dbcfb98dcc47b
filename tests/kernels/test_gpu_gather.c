/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/gpu_test.h"

enum { PIECES = 300, MEMORY = 600000, IMAGE = 700000 };

static unsigned char *random_bytes(size_t bytes, uint32_t seed) {
        unsigned char *x = malloc(bytes);
        for (size_t i = 0; i < bytes; i++) {
                seed = seed * 1664525u + 1013904223u;
                x[i] = (unsigned char) (seed >> 24);
        }
        return x;
}

/* Pieces of 0 to 255 bytes, one of 200,000, at all distances from a word, gaps between; addresses
 * in one allocation. Returns how many bytes of the memory they take. */
static size_t lay_out(struct gpu_piece *pieces, size_t count, unsigned char *memory,
                      uint64_t *ret_end) {
        size_t at = 0;
        uint64_t offset = 3;
        for (size_t i = 0; i < count; i++) {
                size_t bytes = i == 7 ? 200000 : i * 37 % 256;
                /* Every third pair is equally far from a word of 16 bytes. */
                at += i % 3 == 0 ? (offset - at) % 16 : i % 5;
                pieces[i] = (struct gpu_piece){memory + at, offset, bytes};
                at += bytes;
                offset += bytes + i % 4;
        }
        *ret_end = offset;
        return at;
}

static void check(size_t count) {
        struct gpu_piece pieces[PIECES];
        unsigned char *memory = random_bytes(MEMORY, 1), *image = random_bytes(IMAGE, 2);
        unsigned char *got = malloc(IMAGE), *wanted = malloc(IMAGE);
        unsigned char *device_memory = gpu_test_copy(memory, MEMORY);
        unsigned char *device_image = gpu_test_copy(image, IMAGE);
        uint64_t end;
        size_t used = lay_out(pieces, count, device_memory, &end);
        assert_true(used <= MEMORY && end <= IMAGE);
        struct gpu_piece *list = gpu_test_copy(pieces, count * sizeof *pieces);

        memcpy(wanted, image, IMAGE);
        for (size_t i = 0; i < count; i++)
                memcpy(wanted + pieces[i].offset,
                       memory + ((unsigned char *) pieces[i].address - device_memory),
                       pieces[i].bytes);
        gpu_test_ok(gpu_gather(gpu_test_stream(), device_image, list, count));
        gpu_test_fetch(got, device_image, IMAGE);
        gpu_test_same_bytes(got, wanted, IMAGE, "image");

        /* And back, from another image. */
        gpu_test_free(device_image);
        device_image = gpu_test_copy(image, IMAGE);
        for (size_t i = 0; i < count; i++)
                memcpy(memory + ((unsigned char *) pieces[i].address - device_memory),
                       image + pieces[i].offset, pieces[i].bytes);
        gpu_test_ok(gpu_scatter(gpu_test_stream(), device_image, list, count));
        gpu_test_fetch(got, device_memory, MEMORY);
        gpu_test_same_bytes(got, memory, MEMORY, "memory");
        gpu_test_free(device_memory);
        gpu_test_free(device_image);
        gpu_test_free(list);
        free(memory);
        free(image);
        free(got);
        free(wanted);
}

static void test_pieces(void **state) {
        check(0);
        check(1);
        check(2);
        check(9);
        check(PIECES);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_pieces),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
