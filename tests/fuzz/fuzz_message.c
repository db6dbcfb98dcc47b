/* SPDX-License-Identifier: Apache-2.0
 *
 * A byte that chooses a message's type, then such a message: what format/message.c makes of it is
 * what protobuf-c makes of it, and the other way round.
 */
#include "base/limits.h"
#include "format/check.h"
#include "format/message.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* By the numbers of the sections that hold them. */
static const ProtobufCMessageDescriptor *type_of(const uint8_t *bytes, size_t count) {
        static const ProtobufCMessageDescriptor *const types[] = {
                [0] = &cairn__format__generation__descriptor,
                [SECTION_HEAD] = &cairn__format__head__descriptor,
                [SECTION_INVENTORY_HEAD] = &cairn__format__inventory_head__descriptor,
                [SECTION_PAGE_DIRECTORY] = &cairn__format__page_directory__descriptor,
                [SECTION_TENSORS] = &cairn__format__tensor_page__descriptor,
                [SECTION_PLACEMENTS] = &cairn__format__placement_page__descriptor,
                [SECTION_STATE] = &cairn__format__state__descriptor,
                [SECTION_CHUNK_CRCS] = &cairn__format__chunk_crcs__descriptor,
                [SECTION_COMMIT] = &cairn__format__commit__descriptor,
        };
        return types[count ? bytes[0] % (sizeof types / sizeof types[0]) : 0];
}

static void *take(void *context, size_t bytes) {
        return arena_alloc(context, bytes, _Alignof(max_align_t));
}

static void leave(void *context, void *pointer) {
}

/* Never a byte beyond the room, and the same bytes as protobuf-c's in whatever room is enough. */
static void check_packed(const ProtobufCMessage *m, const uint8_t *expected, size_t count) {
        const size_t rooms[] = {0, count / 2, count, count + 63, count + 127, count + 128};
        for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
                uint8_t *target = malloc(rooms[i] + 1);
                FUZZ_CHECK(target);
                target[rooms[i]] = 0xa5;
                size_t packed = message_pack(m, target, rooms[i]);
                FUZZ_CHECK(packed == count || (packed == SIZE_MAX && rooms[i] < count + 128));
                FUZZ_CHECK(packed == SIZE_MAX || memcmp(target, expected, count) == 0);
                FUZZ_CHECK(target[rooms[i]] == 0xa5);
                free(target);
        }
}

static uint8_t *pack(const ProtobufCMessage *m, size_t *ret_count) {
        *ret_count = protobuf_c_message_get_packed_size(m);
        uint8_t *bytes = malloc(*ret_count + 1);
        FUZZ_CHECK(bytes);
        (void) protobuf_c_message_pack(m, bytes);
        return bytes;
}

/* -0.0 is the one value that protobuf-c does not keep. */
static bool holds_negative_zero(const uint8_t *bytes, size_t count) {
        static const uint8_t zero[8] = {[7] = 0x80};
        return memmem(bytes, count, zero, sizeof zero) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        const ProtobufCMessageDescriptor *d = type_of(bytes, count);
        struct arena arena;
        arena_init(&arena, 1 * GiB);
        ProtobufCAllocator allocator = {take, leave, &arena};
        uint8_t *copy = fuzz_copy(bytes + (count > 0), count - (count > 0));
        count -= count > 0;

        ProtobufCMessage *mine = message_unpack(d, &allocator, copy, count);
        fuzz_check_arena(&arena, count);
        ProtobufCMessage *theirs = protobuf_c_message_unpack(d, &allocator, count, copy);
        FUZZ_CHECK(!mine || theirs);
        if (theirs && !holds_negative_zero(copy, count)) {
                size_t expected_count, mine_count;
                uint8_t *expected = pack(theirs, &expected_count);
                check_packed(theirs, expected, expected_count);
                if (mine) {
                        uint8_t *packed = pack(mine, &mine_count);
                        FUZZ_CHECK(mine_count == expected_count &&
                                   memcmp(packed, expected, mine_count) == 0);
                        free(packed);
                }
                /* What Cairn writes, it reads without protobuf-c. */
                if (theirs->n_unknown_fields == 0 && mine)
                        FUZZ_CHECK(message_unpack(d, &allocator, expected, expected_count));
                free(expected);
        }
        arena_done(&arena);
        free(copy);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        if (count < 2 || seed % 16 == 0)
                return LLVMFuzzerMutate(bytes, count, max);
        return 1 +
               fuzz_mutate_message(bytes + 1, count - 1, max - 1, seed / 16, type_of(bytes, count));
}
