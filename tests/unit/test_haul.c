/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/haul.h"
#include "base/cleanup.h"
#include "tests/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct haul_name name = {CAIRN__PEER__HAUL_KIND__HAUL_PARTS, 3, 7};

static int memory(size_t bytes) {
        int fd = memfd_create("test", MFD_CLOEXEC);
        assert_true(fd >= 0);
        for (size_t i = 0; i < bytes; i += 1000) {
                char block[1000];
                memset(block, (int) (i / 1000 % 251), sizeof block);
                size_t n = bytes - i < sizeof block ? bytes - i : sizeof block;
                assert_int_equal(write(fd, block, n), n);
        }
        return fd;
}

static void carry(size_t bytes, size_t pieces) {
        struct haul_out out = {0};
        struct haul_in in = {0};
        Cairn__Peer__Haul m = CAIRN__PEER__HAUL__INIT;
        void *a, *b;
        size_t count, n = 0;
        int r = 0, source = memory(bytes), copy = fcntl(source, F_DUPFD_CLOEXEC, 3);

        assert_int_equal(haul_offer(&out, &name, copy, NULL), 0);
        haul_expect(&in, &name);
        for (; r == 0; n++) {
                assert_int_equal(haul_fill(&out, &name, in.have, &m, NULL), 0);
                r = haul_take_piece(&in, &m, NULL);
        }
        assert_int_equal(r, 1);
        assert_int_equal(n, pieces);
        _cleanup_close_ int fd = haul_take(&in);
        assert_int_equal(haul_map(fd, HAUL_BYTES_MAX, &b, &count, NULL), 0);
        assert_int_equal(count, bytes);
        assert_int_equal(haul_map(source, HAUL_BYTES_MAX, &a, &count, NULL), 0);
        assert_memory_equal(a, b, bytes);
        assert_int_equal(haul_map(fd, bytes - 1, &b, &count, NULL), CAIRN_ERR_API);
        (void) munmap(a, bytes);
        (void) munmap(b, bytes);
        (void) close(source);
        haul_out_done(&out);
        haul_in_done(&in);
}

static void test_whole_in_pieces(void **state) {
        carry(1, 1);
        carry(HAUL_PIECE_BYTES, 1);
        carry(HAUL_PIECE_BYTES + 1, 2);
        carry(1000 * 1000, (1000 * 1000 + HAUL_PIECE_BYTES - 1) / HAUL_PIECE_BYTES);
}

static void test_only_what_is_expected(void **state) {
        struct haul_in in = {0};
        Cairn__Peer__Haul m = CAIRN__PEER__HAUL__INIT;
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint8_t bytes[10] = {0};

        m.kind = name.kind;
        m.generation = name.generation;
        m.attempt = name.attempt;
        m.total = 20;
        m.data = (ProtobufCBinaryData){sizeof bytes, bytes};
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_STALE); /* nothing is */
        haul_expect(&in, &name);
        m.attempt = 8;
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_STALE);
        m.attempt = name.attempt;
        m.offset = 5; /* not the beginning */
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_CORRUPT);
        m.offset = 0;
        assert_int_equal(haul_take_piece(&in, &m, &e), 0);
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_CORRUPT); /* again */
        m.offset = 10;
        m.total = 30; /* it grows */
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_CORRUPT);
        m.total = 20;
        m.data.len = 0; /* for ever */
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_CORRUPT);
        m.data.len = sizeof bytes;
        assert_int_equal(haul_take_piece(&in, &m, &e), 1);
        (void) close(haul_take(&in));
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_STALE); /* it is over */
        /* More than anybody has to tell. */
        haul_expect(&in, &name);
        m.offset = 0;
        m.total = HAUL_BYTES_MAX + 1;
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_CORRUPT);
        haul_expect(&in, &(struct haul_name){CAIRN__PEER__HAUL_KIND__HAUL_HOLDS, 3, 7});
        m.kind = CAIRN__PEER__HAUL_KIND__HAUL_HOLDS;
        m.total = HAUL_HOLDS_BYTES_MAX + 1;
        assert_int_equal(haul_take_piece(&in, &m, &e), CAIRN_ERR_CORRUPT);
        haul_in_done(&in);
}

static void test_only_what_is_on_offer(void **state) {
        struct haul_out out = {0};
        Cairn__Peer__Haul m = CAIRN__PEER__HAUL__INIT;
        struct haul_name other = name;

        assert_int_equal(haul_fill(&out, &name, 0, &m, NULL), CAIRN_ERR_STALE);
        assert_int_equal(haul_offer(&out, &name, memory(100), NULL), 0);
        other.generation++;
        assert_int_equal(haul_fill(&out, &other, 0, &m, NULL), CAIRN_ERR_STALE);
        assert_int_equal(haul_fill(&out, &name, 101, &m, NULL), CAIRN_ERR_STALE);
        assert_int_equal(haul_fill(&out, &name, 90, &m, NULL), 0);
        assert_int_equal(m.data.len, 10);
        assert_int_equal(haul_offer(&out, &other, memory(5), NULL), 0); /* the former is dropped */
        assert_int_equal(haul_fill(&out, &name, 0, &m, NULL), CAIRN_ERR_STALE);
        haul_out_done(&out);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_whole_in_pieces),
                cmocka_unit_test(test_only_what_is_expected),
                cmocka_unit_test(test_only_what_is_on_offer),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
