/* SPDX-License-Identifier: Apache-2.0 */
#include "format/message.h"
#include "base/assert.h"
#include "base/bytes.h"

#include <assert.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>

typedef ProtobufCFieldDescriptor Field;

#define VARINT_BYTES_MAX 10
/* Left free in front of each write: a tag, a number, and for each level of nesting what its length
 * grows by afterwards. */
#define ROOM_BYTES 64

static uint64_t zigzag(int64_t v) {
        return (uint64_t) v << 1 ^ (v < 0 ? UINT64_MAX : 0);
}

static int64_t unzigzag(uint64_t v) {
        return (int64_t) (v >> 1 ^ (v & 1 ? UINT64_MAX : 0));
}

static ProtobufCWireType wire_type(const Field *f) {
        switch (f->type) {
        case PROTOBUF_C_TYPE_BYTES:
        case PROTOBUF_C_TYPE_MESSAGE:
                return PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
        case PROTOBUF_C_TYPE_DOUBLE:
                return PROTOBUF_C_WIRE_TYPE_64BIT;
        case PROTOBUF_C_TYPE_FIXED32:
                return PROTOBUF_C_WIRE_TYPE_32BIT;
        default:
                return PROTOBUF_C_WIRE_TYPE_VARINT;
        }
}

/* ---- packing: a function returns the end of what it wrote, or NULL for no room ---- */

static uint8_t *put_varint(uint8_t *at, uint64_t v) {
        for (; v >= 0x80; v >>= 7)
                *at++ = (uint8_t) (v | 0x80);
        *at++ = (uint8_t) v;
        return at;
}

static uint8_t *put_tag(uint8_t *at, uint32_t id, ProtobufCWireType type) {
        return put_varint(at, (uint64_t) id << 3 | type);
}

static bool is_narrow(const Field *f) {
        return f->type == PROTOBUF_C_TYPE_UINT32 || f->type == PROTOBUF_C_TYPE_BOOL ||
               f->type == PROTOBUF_C_TYPE_FIXED32 || f->type == PROTOBUF_C_TYPE_SINT32;
}

/* The bits of a member; of bytes, lists and messages their length or pointer. All zero: it is not
 * written. */
static uint64_t member_bits(const Field *f, const char *base) {
        bool repeated = f->label == PROTOBUF_C_LABEL_REPEATED;
        const void *member = base + (repeated ? f->quantifier_offset : f->offset);
        return !repeated && is_narrow(f) ? *(const uint32_t *) member : *(const uint64_t *) member;
}
static_assert(sizeof(size_t) == 8 && sizeof(void *) == 8 && sizeof(protobuf_c_boolean) == 4 &&
                      offsetof(ProtobufCBinaryData, len) == 0,
              "members are as wide as member_bits takes them");

static uint8_t *put_number(const Field *f, uint8_t *at, uint64_t bits) {
        switch (f->type) {
        case PROTOBUF_C_TYPE_FIXED32:
                store_le32(at, (uint32_t) bits);
                return at + 4;
        case PROTOBUF_C_TYPE_DOUBLE:
                store_le64(at, bits);
                return at + 8;
        case PROTOBUF_C_TYPE_SINT32:
                return put_varint(at, (uint32_t) zigzag((int32_t) bits));
        case PROTOBUF_C_TYPE_SINT64:
                return put_varint(at, zigzag((int64_t) bits));
        case PROTOBUF_C_TYPE_BOOL:
                return put_varint(at, bits != 0);
        case PROTOBUF_C_TYPE_UINT32:
        case PROTOBUF_C_TYPE_UINT64:
                return put_varint(at, bits);
        default:
                CAIRN_ASSERT(!"manifest.proto has no other types");
                return at;
        }
}

static bool has_room(const uint8_t *at, const uint8_t *end, size_t bytes) {
        size_t room = (size_t) (end - at);
        return room >= ROOM_BYTES && room - ROOM_BYTES >= bytes;
}

static uint8_t *put_bytes(uint8_t *at, const void *bytes, size_t count) {
        if (count)
                memcpy(at, bytes, count);
        return at + count;
}

/* The length of what was written from `at` on goes before it: most are short, so room for one byte
 * was left. */
static uint8_t *put_length(uint8_t *at, uint8_t *written_to) {
        uint8_t length[VARINT_BYTES_MAX];
        size_t count = (size_t) (written_to - at);
        size_t bytes = (size_t) (put_varint(length, count) - length);

        if (bytes > 1)
                memmove(at - 1 + bytes, at, count);
        memcpy(at - 1, length, bytes);
        return written_to + bytes - 1;
}

static uint8_t *put_message(const ProtobufCMessage *m, uint8_t *at, uint8_t *end);

static uint8_t *put_nested(uint32_t id, const ProtobufCMessage *m, uint8_t *at, uint8_t *end) {
        if (!has_room(at, end, 0))
                return NULL;
        at = put_tag(at, id, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) + 1;
        uint8_t *to = put_message(m, at, end);
        return to ? put_length(at, to) : NULL;
}

static uint8_t *put_packed(const Field *f, const char *items, size_t count, uint8_t *at,
                           uint8_t *end) {
        at = put_tag(at, f->id, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED) + 1;
        uint8_t *to = at;
        for (size_t i = 0; i < count; i++) {
                if (!has_room(to, end, 0))
                        return NULL;
                to = put_number(f, to,
                                is_narrow(f) ? ((const uint32_t *) (const void *) items)[i]
                                             : ((const uint64_t *) (const void *) items)[i]);
        }
        return put_length(at, to);
}

static uint8_t *put_repeated(const Field *f, const char *base, size_t count, uint8_t *at,
                             uint8_t *end) {
        const ProtobufCMessage *const *messages;

        memcpy(&messages, base + f->offset, sizeof messages);
        if (f->type != PROTOBUF_C_TYPE_MESSAGE)
                return put_packed(f, (const char *) messages, count, at, end);
        for (size_t i = 0; i < count && at; i++)
                at = put_nested(f->id, messages[i], at, end);
        return at;
}

static uint8_t *put_field(const Field *f, const char *base, uint64_t bits, uint8_t *at,
                          uint8_t *end) {
        if (f->label == PROTOBUF_C_LABEL_REPEATED)
                return put_repeated(f, base, (size_t) bits, at, end);
        if (f->type == PROTOBUF_C_TYPE_MESSAGE)
                return put_nested(f->id, (const void *) (uintptr_t) bits, at, end);
        at = put_tag(at, f->id, wire_type(f));
        if (f->type != PROTOBUF_C_TYPE_BYTES)
                return put_number(f, at, bits);
        const ProtobufCBinaryData *bytes = (const void *) (base + f->offset);
        if (!has_room(at, end, bytes->len))
                return NULL;
        return put_bytes(put_varint(at, bytes->len), bytes->data, bytes->len);
}

static uint8_t *put_message(const ProtobufCMessage *m, uint8_t *at, uint8_t *end) {
        const Field *f = m->descriptor->fields, *behind = f + m->descriptor->n_fields;
        const char *base = (const char *) m;

        for (; f < behind; f++) {
                uint64_t bits = member_bits(f, base);
                if (bits == 0)
                        continue;
                if (!has_room(at, end, 0))
                        return NULL;
                at = put_field(f, base, bits, at, end);
                if (!at)
                        return NULL;
        }
        for (unsigned i = 0; i < m->n_unknown_fields; i++) {
                const ProtobufCMessageUnknownField *u = &m->unknown_fields[i];
                if (!has_room(at, end, u->len))
                        return NULL;
                at = put_bytes(put_tag(at, u->tag, u->wire_type), u->data, u->len);
        }
        return at;
}

size_t message_pack(const ProtobufCMessage *m, uint8_t *target, size_t room) {
        uint8_t *end = put_message(m, target, target + room);

        return end ? (size_t) (end - target) : SIZE_MAX;
}

size_t message_pack_field(uint32_t id, const ProtobufCMessage *m, uint8_t *target, size_t room) {
        uint8_t *end = put_nested(id, m, target, target + room);

        return end ? (size_t) (end - target) : SIZE_MAX;
}

/* ---- unpacking: a function returns the end of what it read, or NULL for "ask protobuf-c" ---- */

/* In as few bytes as hold it: protobuf-c takes some that are longer and refuses others. Ten bytes
 * hold up to 70 bits: what is more than 64 is left to it, too. */
static const uint8_t *get_varint(const uint8_t *at, const uint8_t *end, uint64_t *ret) {
        uint64_t v = 0;

        for (unsigned shift = 0; at < end && shift < 64; shift += 7) {
                uint64_t byte = *at++;
                if ((shift == 63 && byte > 1) || (shift > 0 && byte == 0))
                        return NULL;
                v |= (byte & 0x7f) << shift;
                if (byte < 0x80) {
                        *ret = v;
                        return at;
                }
        }
        return NULL;
}

/* One byte, or two for the fields from 16 on. */
static const uint8_t *get_tag(const uint8_t *at, const uint8_t *end, uint32_t *ret) {
        *ret = *at++;
        if (*ret < 0x80)
                return at;
        if (at == end || *at >= 0x80 || *at == 0)
                return NULL;
        *ret = (*ret & 0x7f) | (uint32_t) *at << 7;
        return at + 1;
}

/* A length, and that many bytes behind it; protobuf-c takes up to INT_MAX of them. */
static const uint8_t *get_length(const uint8_t *at, const uint8_t *end, size_t *ret) {
        uint64_t length;

        at = get_varint(at, end, &length);
        if (!at || length > INT_MAX || length > (size_t) (end - at))
                return NULL;
        *ret = (size_t) length;
        return at;
}

static bool set_number(const Field *f, char *member, uint64_t v) {
        switch (f->type) {
        case PROTOBUF_C_TYPE_UINT32:
        case PROTOBUF_C_TYPE_FIXED32:
                *(uint32_t *) (void *) member = (uint32_t) v;
                return v <= UINT32_MAX;
        case PROTOBUF_C_TYPE_BOOL:
                *(protobuf_c_boolean *) (void *) member = (protobuf_c_boolean) v;
                return v <= 1;
        case PROTOBUF_C_TYPE_SINT32:
                *(int32_t *) (void *) member = (int32_t) unzigzag(v);
                return v <= UINT32_MAX;
        case PROTOBUF_C_TYPE_SINT64:
                *(int64_t *) (void *) member = unzigzag(v);
                return true;
        case PROTOBUF_C_TYPE_UINT64:
        case PROTOBUF_C_TYPE_DOUBLE:
                *(uint64_t *) (void *) member = v;
                return true;
        default:
                return false;
        }
}

static const uint8_t *get_number(const Field *f, char *member, const uint8_t *at,
                                 const uint8_t *end) {
        uint64_t v;

        if (f->type == PROTOBUF_C_TYPE_FIXED32 || f->type == PROTOBUF_C_TYPE_DOUBLE) {
                size_t bytes = f->type == PROTOBUF_C_TYPE_DOUBLE ? 8 : 4;
                if ((size_t) (end - at) < bytes)
                        return NULL;
                v = bytes == 8 ? load_le64(at) : load_le32(at);
                at += bytes;
        } else
                at = get_varint(at, end, &v);
        return at && set_number(f, member, v) ? at : NULL;
}

static bool get_message(const ProtobufCMessageDescriptor *d, ProtobufCAllocator *allocator,
                        const uint8_t *at, const uint8_t *end, ProtobufCMessage *m);

static const uint8_t *get_single(const Field *f, ProtobufCAllocator *allocator, char *member,
                                 const uint8_t *at, const uint8_t *end) {
        ProtobufCWireType type = wire_type(f);
        size_t length;

        if (type != PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
                return get_number(f, member, at, end);
        at = get_length(at, end, &length);
        if (!at)
                return NULL;
        if (f->type == PROTOBUF_C_TYPE_BYTES) {
                ProtobufCBinaryData *bytes = (void *) member;
                *bytes = (ProtobufCBinaryData){.len = length,
                                               .data = length ? (uint8_t *) (uintptr_t) at : NULL};
                return at + length;
        }
        const ProtobufCMessageDescriptor *d = f->descriptor;
        ProtobufCMessage *message = allocator->alloc(allocator->allocator_data, d->sizeof_message);
        if (!message || !get_message(d, allocator, at, at + length, message))
                return NULL;
        memcpy(member, &message, sizeof message);
        return at + length;
}

/* How many messages of one field stand one behind the other, `at` being behind the first tag; 0:
 * ask protobuf-c. */
static size_t count_run(uint32_t tag, const uint8_t *at, const uint8_t *end) {
        for (size_t count = 1;; count++) {
                uint32_t next;
                size_t length;
                at = get_length(at, end, &length);
                if (!at)
                        return 0;
                at += length;
                if (at == end)
                        return count;
                at = get_tag(at, end, &next);
                if (!at || next != tag)
                        return at ? count : 0;
        }
}

/* All messages of a run lie in one block, behind the pointers to them. */
static const uint8_t *get_messages(const Field *f, ProtobufCAllocator *allocator, char *base,
                                   uint32_t tag, const uint8_t *at, const uint8_t *end) {
        const ProtobufCMessageDescriptor *d = f->descriptor;
        size_t count = count_run(tag, at, end), length;
        uint64_t bytes;

        if (count == 0 || !mul_checked(count, sizeof(void *) + d->sizeof_message, &bytes))
                return NULL;
        ProtobufCMessage **pointers = allocator->alloc(allocator->allocator_data, bytes);
        if (!pointers)
                return NULL;
        char *items = (char *) (pointers + count);
        for (size_t i = 0; i < count; i++, at += length) {
                if (i > 0)
                        at = get_tag(at, end, &tag);
                at = get_length(at, end, &length);
                pointers[i] = (void *) (items + i * d->sizeof_message);
                if (!at || !get_message(d, allocator, at, at + length, pointers[i]))
                        return NULL;
        }
        memcpy(base + f->quantifier_offset, &count, sizeof count);
        memcpy(base + f->offset, &pointers, sizeof pointers);
        return at;
}

static const uint8_t *get_packed(const Field *f, ProtobufCAllocator *allocator, char *base,
                                 const uint8_t *at, const uint8_t *end) {
        size_t item_bytes = f->type == PROTOBUF_C_TYPE_FIXED32 ? 4 : 8, length, count = 0;

        at = get_length(at, end, &length);
        if (!at || length == 0 ||
            (f->type != PROTOBUF_C_TYPE_FIXED32 && f->type != PROTOBUF_C_TYPE_UINT64))
                return NULL;
        end = at + length;
        if (item_bytes == 4)
                count = length / 4;
        for (size_t i = 0; i < length && item_bytes == 8; i++)
                count += at[i] < 0x80;
        char *items = allocator->alloc(allocator->allocator_data, count * item_bytes);
        if (!items)
                return NULL;
        for (size_t i = 0; i < count && at; i++)
                at = get_number(f, items + i * item_bytes, at, end);
        memcpy(base + f->quantifier_offset, &count, sizeof count);
        memcpy(base + f->offset, &items, sizeof items);
        return at == end ? at : NULL;
}

/* Fields in their order and each once: what message_pack writes. */
static bool get_message(const ProtobufCMessageDescriptor *d, ProtobufCAllocator *allocator,
                        const uint8_t *at, const uint8_t *end, ProtobufCMessage *m) {
        const Field *f = d->fields, *behind = d->fields + d->n_fields;
        char *base = (char *) m;

        d->message_init(m);
        for (; at < end; f++) {
                uint32_t tag;
                at = get_tag(at, end, &tag);
                while (at && f < behind && f->id < tag >> 3)
                        f++;
                if (!at || f == behind || f->id != tag >> 3)
                        return false;
                bool repeated = f->label == PROTOBUF_C_LABEL_REPEATED;
                if ((tag & 7) != (repeated ? PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED : wire_type(f)))
                        return false;
                if (!repeated)
                        at = get_single(f, allocator, base + f->offset, at, end);
                else if (f->type == PROTOBUF_C_TYPE_MESSAGE)
                        at = get_messages(f, allocator, base, tag, at, end);
                else
                        at = get_packed(f, allocator, base, at, end);
                if (!at)
                        return false;
        }
        return true;
}

ProtobufCMessage *message_unpack(const ProtobufCMessageDescriptor *d, ProtobufCAllocator *allocator,
                                 const uint8_t *bytes, size_t count) {
        ProtobufCMessage *m = allocator->alloc(allocator->allocator_data, d->sizeof_message);

        return m && get_message(d, allocator, bytes, bytes + count, m) ? m : NULL;
}
