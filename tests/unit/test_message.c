/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of every type with every field, filled by chance: packed and unpacked as protobuf-c
 * does. tests/fuzz/fuzz_message.c shows the same for bytes that nobody wrote.
 */
#include "base/arena.h"
#include "base/limits.h"
#include "format/manifest.pb-c.h"
#include "format/message.h"
#include "tests/test.h"

#include <math.h>

static struct arena arena;

static void *take(void *context, size_t bytes) {
        return arena_alloc(context, bytes, _Alignof(max_align_t));
}

static void leave(void *context, void *pointer) {
}

static ProtobufCAllocator allocator = {take, leave, &arena};

static uint64_t random_word(void) {
        static uint64_t state = 42;
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
}

/* Of any length as a varint, zero included. */
static uint64_t random_number(void) {
        uint64_t shift = random_word() % 80;
        return shift < 64 ? random_word() >> shift : 0;
}

static ProtobufCMessage *random_message(const ProtobufCMessageDescriptor *d);

static size_t item_bytes(const ProtobufCFieldDescriptor *f) {
        switch (f->type) {
        case PROTOBUF_C_TYPE_BYTES:
                return sizeof(ProtobufCBinaryData);
        case PROTOBUF_C_TYPE_BOOL:
        case PROTOBUF_C_TYPE_UINT32:
        case PROTOBUF_C_TYPE_SINT32:
        case PROTOBUF_C_TYPE_FIXED32:
                return 4;
        default:
                return 8;
        }
}

static void fill(const ProtobufCFieldDescriptor *f, void *member) {
        uint64_t v = random_number();
        if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
                ProtobufCMessage *m = random_message(f->descriptor);
                memcpy(member, &m, sizeof m);
        } else if (f->type == PROTOBUF_C_TYPE_BYTES) {
                ProtobufCBinaryData *b = member;
                b->len = random_word() % 4 ? v % 20 : v % 3000;
                b->data = b->len ? take(&arena, b->len) : NULL;
                for (size_t i = 0; i < b->len; i++)
                        b->data[i] = (uint8_t) random_word();
        } else if (f->type == PROTOBUF_C_TYPE_BOOL) {
                *(protobuf_c_boolean *) member = v & 1;
        } else if (f->type == PROTOBUF_C_TYPE_DOUBLE) {
                *(double *) member = (double) (int64_t) v / 7;
        } else {
                memcpy(member, &v, item_bytes(f));
        }
}

static ProtobufCMessage *random_message(const ProtobufCMessageDescriptor *d) {
        char *m = take(&arena, d->sizeof_message);
        d->message_init((void *) m);
        for (unsigned i = 0; i < d->n_fields; i++) {
                const ProtobufCFieldDescriptor *f = &d->fields[i];
                if (random_word() % 4 == 0)
                        continue;
                if (f->label != PROTOBUF_C_LABEL_REPEATED) {
                        fill(f, m + f->offset);
                        continue;
                }
                size_t count = random_word() % 4, bytes = item_bytes(f);
                char *items = take(&arena, count * bytes);
                for (size_t k = 0; k < count; k++)
                        fill(f, items + k * bytes);
                memcpy(m + f->quantifier_offset, &count, sizeof count);
                memcpy(m + f->offset, &items, sizeof items);
        }
        return (void *) m;
}

static const ProtobufCMessageDescriptor *const types[] = {
        &cairn__format__tensor_page__descriptor,
        &cairn__format__placement_page__descriptor,
        &cairn__format__state__descriptor,
        &cairn__format__head__descriptor,
        &cairn__format__inventory_head__descriptor,
        &cairn__format__chunk_crcs__descriptor,
        &cairn__format__commit__descriptor,
        &cairn__format__page_directory__descriptor,
        &cairn__format__generation__descriptor,
        &cairn__format__mark__descriptor,
        &cairn__format__generation_start__descriptor,
        &cairn__format__store_marker__descriptor,
};
#define TYPE_COUNT (sizeof types / sizeof types[0])

static void test_packs_as_protobuf_c(void **state) {
        for (size_t round = 0; round < 200 * TYPE_COUNT; round++) {
                arena_init(&arena, 64 * MiB);
                const ProtobufCMessage *m = random_message(types[round % TYPE_COUNT]);
                size_t count = protobuf_c_message_get_packed_size(m);
                uint8_t *theirs = take(&arena, count), *mine = take(&arena, count + 128);
                (void) protobuf_c_message_pack(m, theirs);
                assert_int_equal(message_pack(m, mine, count + 128), count);
                assert_memory_equal(mine, theirs, count);
                /* In less room it says so and stays inside. */
                size_t room = random_word() % (count + 128);
                mine[room] = 0xa5;
                size_t packed = message_pack(m, mine, room);
                assert_true(packed == SIZE_MAX || packed == count);
                assert_int_equal(mine[room], 0xa5);
                arena_done(&arena);
        }
}

static void test_unpacks_what_is_packed(void **state) {
        for (size_t round = 0; round < 200 * TYPE_COUNT; round++) {
                arena_init(&arena, 64 * MiB);
                const ProtobufCMessage *m = random_message(types[round % TYPE_COUNT]);
                size_t count = protobuf_c_message_get_packed_size(m);
                uint8_t *bytes = take(&arena, count), *again = take(&arena, count);
                (void) protobuf_c_message_pack(m, bytes);
                const ProtobufCMessage *read =
                        message_unpack(m->descriptor, &allocator, bytes, count);
                assert_non_null(read);
                assert_int_equal(protobuf_c_message_get_packed_size(read), count);
                (void) protobuf_c_message_pack(read, again);
                assert_memory_equal(again, bytes, count);
                arena_done(&arena);
        }
}

/* Valid for protobuf-c, but not what is written: left to it. */
static void test_leaves_the_unusual(void **state) {
        static const struct {
                const char *bytes;
                size_t count;
        } cases[] = {
                {"\x0a\x04\x10\x02\x10\x03", 6},             /* a field twice */
                {"\x0a\x04\x18\x02\x10\x03", 6},             /* another order */
                {"\x0a\x03\x92\x06\x00", 5},                 /* field 98, which does not exist */
                {"\x0a\x02\x28\x07", 4},                     /* a list that is not packed */
                {"\x0a\x02\x40\x02", 4},                     /* true as 2 */
                {"\x0a\x07\x10\x81\x80\x80\x80\x80\x01", 9}, /* more than 32 bits */
                {"\x0a\x02\x2a\x00", 4},                     /* a list without items */
                {"\x12\x00", 2},                             /* not of a page */
                {"\x0a\x03\x10\x82\x00", 5},                 /* a number longer than needed */
                {"\x0a\x82\x00\x10\x02", 5},                 /* such a length */
                {"\x8a\x00\x02\x10\x02", 5},                 /* such a tag */
        };
        static const struct {
                const char *bytes;
                size_t count;
        } broken[] = {
                {"\x0a", 1},
                {"\x0a\x05\x10", 3},
                {"\x0a\x02\x10\xff", 4},
                {"\x80", 1},
                {"\x0a\x80", 2},
                {"\x0a\x02\x12", 3},
                {"\x0a\x03\x0a\x7f", 4},
                {"\x08\x01", 2},
                {"\x0a\x80\x80\x80\x80\x80\x00", 7}, /* a length in six bytes */
                {"\x0a\x0c\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 13},
        };
        arena_init(&arena, 1 * MiB);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                const uint8_t *bytes = (const void *) cases[i].bytes;
                assert_null(message_unpack(types[0], &allocator, bytes, cases[i].count));
                assert_non_null(
                        protobuf_c_message_unpack(types[0], &allocator, cases[i].count, bytes));
        }
        for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
                assert_null(message_unpack(types[0], &allocator, (const void *) broken[i].bytes,
                                           broken[i].count));
        const ProtobufCMessage *empty = message_unpack(types[0], &allocator, NULL, 0);
        assert_non_null(empty);
        assert_int_equal(protobuf_c_message_get_packed_size(empty), 0);
        arena_done(&arena);
        arena_init(&arena, 0);
        assert_null(message_unpack(types[0], &allocator, NULL, 0));
        arena_done(&arena);
}

/* A host value is restored bit for bit. */
static void test_minus_zero_keeps_its_sign(void **state) {
        Cairn__Format__StateValue v = CAIRN__FORMAT__STATE_VALUE__INIT;
        uint8_t bytes[256];

        arena_init(&arena, 1 * MiB);
        v.f64 = -0.0;
        size_t count = message_pack(&v.base, bytes, sizeof bytes);
        assert_int_equal(count, 9);
        const Cairn__Format__StateValue *again =
                (const void *) message_unpack(v.base.descriptor, &allocator, bytes, count);
        assert_non_null(again);
        assert_true(signbit(again->f64));
        arena_done(&arena);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_packs_as_protobuf_c),
                cmocka_unit_test(test_unpacks_what_is_packed),
                cmocka_unit_test(test_leaves_the_unusual),
                cmocka_unit_test(test_minus_zero_keeps_its_sign),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
