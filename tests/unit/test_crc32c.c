/* SPDX-License-Identifier: Apache-2.0 */
#include "format/crc32c.h"
#include "tests/test.h"

static void test_rfc3720_vectors(void **state) {
        static const uint8_t read_command[48] = {
                0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
        uint8_t bytes[32];
        static uint32_t (*const functions[])(uint32_t, const void *, size_t) = {crc32c,
                                                                                crc32c_portable};

        for (size_t i = 0; i < 2; i++) {
                memset(bytes, 0, sizeof bytes);
                assert_int_equal(functions[i](0, bytes, 32), 0x8a9136aa);
                memset(bytes, 0xff, sizeof bytes);
                assert_int_equal(functions[i](0, bytes, 32), 0x62a8ab43);
                for (size_t k = 0; k < 32; k++)
                        bytes[k] = (uint8_t) k;
                assert_int_equal(functions[i](0, bytes, 32), 0x46dd794e);
                for (size_t k = 0; k < 32; k++)
                        bytes[k] = (uint8_t) (31 - k);
                assert_int_equal(functions[i](0, bytes, 32), 0x113fdb5c);
                assert_int_equal(functions[i](0, read_command, 48), 0xd9963a56);
                assert_int_equal(functions[i](0, "123456789", 9), 0xe3069283);
                assert_int_equal(functions[i](0, NULL, 0), 0);
                assert_int_equal(functions[i](77, NULL, 0), 77);
        }
}

/* One bit at a time, straight from the polynomial. */
static uint32_t by_bits(uint32_t crc, const uint8_t *p, size_t bytes) {
        crc = ~crc;
        for (size_t i = 0; i < bytes; i++) {
                crc ^= p[i];
                for (int k = 0; k < 8; k++)
                        crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
        return ~crc;
}

static uint64_t random_state = 0x243f6a8885a308d3;
static uint64_t next_random(void) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        return random_state >> 24;
}

static uint8_t *random_bytes(size_t bytes) {
        uint8_t *p = malloc(bytes);
        assert_non_null(p);
        for (size_t i = 0; i < bytes; i++)
                p[i] = (uint8_t) next_random();
        return p;
}

static void test_lengths_and_alignments(void **state) {
        enum { BYTES = 100000 };
        uint8_t *data = random_bytes(BYTES + 64);

        for (size_t bytes = 0; bytes < 1000; bytes++) {
                const uint8_t *p = data + bytes % 17;
                uint32_t seed = (uint32_t) next_random(), expected = by_bits(seed, p, bytes);
                assert_int_equal(crc32c(seed, p, bytes), expected);
                assert_int_equal(crc32c_portable(seed, p, bytes), expected);
        }
        for (int i = 0; i < 300; i++) {
                size_t bytes = next_random() % BYTES, offset = next_random() % 64;
                size_t cut = bytes ? next_random() % bytes : 0;
                uint32_t expected = crc32c_portable(0, data + offset, bytes);
                assert_int_equal(crc32c(0, data + offset, bytes), expected);
                uint32_t first = crc32c(0, data + offset, cut);
                assert_int_equal(crc32c(first, data + offset + cut, bytes - cut), expected);
                uint32_t second = crc32c(0, data + offset + cut, bytes - cut);
                assert_int_equal(crc32c_combine(first, second, bytes - cut), expected);
        }
        free(data);
}

static void test_combine_long(void **state) {
        /* Zeros can be counted without being stored: appending n of them is combining with their
         * CRC. */
        uint32_t zeros = crc32c(0, "\0", 1);
        uint64_t bytes = 1;

        for (int i = 0; i < 45; i++, bytes *= 2)
                zeros = crc32c_combine(zeros, zeros, bytes);
        assert_true(bytes == UINT64_C(1) << 45);
        uint32_t a = crc32c(0, "abc", 3);
        assert_int_equal(crc32c_combine(crc32c_combine(a, zeros, bytes), 0, 0),
                         crc32c_combine(a, zeros, bytes));
        assert_int_equal(crc32c_combine(0, a, 3), a);
}

/* Small and large copies, every alignment of both sides, and not one byte beyond the target. */
static void test_copy(void **state) {
        enum { BYTES = 3 * 1024 * 1024 };
        uint8_t *source = random_bytes(BYTES + 128), *target = malloc(BYTES + 256);

        assert_non_null(target);
        for (int i = 0; i < 250; i++) {
                size_t bytes = next_random() % (i % 10 ? 40000 : BYTES);
                const uint8_t *from = source + next_random() % 128;
                uint8_t *to = target + 64 + next_random() % 128;
                memset(to - 64, 0xa5, bytes + 128);
                assert_int_equal(crc32c_copy(0x1234567, to, from, bytes),
                                 crc32c_portable(0x1234567, from, bytes));
                assert_memory_equal(to, from, bytes);
                for (size_t k = 1; k <= 64; k++) {
                        assert_int_equal(to[-(ptrdiff_t) k], 0xa5);
                        assert_int_equal(to[bytes + k - 1], 0xa5);
                }
        }
        free(source);
        free(target);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_rfc3720_vectors),
                cmocka_unit_test(test_lengths_and_alignments),
                cmocka_unit_test(test_combine_long),
                cmocka_unit_test(test_copy),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
