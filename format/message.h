/* SPDX-License-Identifier: Apache-2.0
 *
 * message.h - protobuf-c's messages, packed and unpacked in one pass over protobuf-c's own
 * descriptors: a file holds a hundred thousand records, and each is packed or unpacked by several
 * processes before a checkpoint stands. Knows the types of manifest.proto, no others.
 *
 * Pure functions; bounds are checked, nothing is assumed of the bytes.
 */
#ifndef CAIRN_MESSAGE_H
#define CAIRN_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes that protobuf_c_message_pack writes (but a double of -0.0 keeps its sign); returns how
 * many, SIZE_MAX if there is not enough room: this much more than the message has always is. */
#define MESSAGE_ROOM_BYTES 128
size_t message_pack(const ProtobufCMessage *m, uint8_t *target, size_t room);
/* The same as a field of a message around it. */
size_t message_pack_field(uint32_t id, const ProtobufCMessage *m, uint8_t *target, size_t room);

/* The message that protobuf_c_message_unpack makes, or NULL: the allocator gave nothing, or
 * something in the bytes is valid at most in protobuf-c's eyes (an unknown field, another order, a
 * field twice), who has to be asked then. `bytes` are borrowed as long as the message is used; all
 * else is the allocator's, and stays so after NULL. */
ProtobufCMessage *message_unpack(const ProtobufCMessageDescriptor *d, ProtobufCAllocator *allocator,
                                 const uint8_t *bytes, size_t count);

#endif
