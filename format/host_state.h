/* SPDX-License-Identifier: Apache-2.0
 *
 * host_state.h - the host-side values of a cut (steps, schedule and data position, RNG, scaler ...)
 * in a memfd with two slots, published at every update. The typed layout is fixed at seal.
 *
 *   offset 0     struct host_state_header (one 4 KiB page)
 *   offset 4096  slot 0: struct host_state_slot, then `payload_bytes` of values; padded to 4096
 *   ...          slot 1
 *
 * The slot of seq is slot seq % 2. A slot is a seqlock: `lock` is odd while it is written; the
 * reader takes a copy and checks lock, seq and CRC32C. A cut uses the slot of its own seq or does
 * not happen.
 *
 * Values lie one after another, 8-byte aligned: I64, U64, F64: 8 bytes; BYTES: uint64 length, then
 * `capacity` bytes padded to 8 (bytes beyond the length are zero). Owner: libcairn makes and seals
 * the memfd; the agent maps it read-only. One writer, any readers.
 */
#ifndef CAIRN_HOST_STATE_H
#define CAIRN_HOST_STATE_H

#include "base/limits.h"
#include "base/status.h"
#include <stdatomic.h>

#define HOST_STATE_MAGIC "CAIRNHS1"
/* Values of this prefix are libcairn's own: the int64 beside each FP32 step, by the tensor's name.
 * */
#define HOST_VALUE_RESERVED_PREFIX "cairn."
#define HOST_VALUE_STEP_PREFIX HOST_VALUE_RESERVED_PREFIX "step/"

struct host_state_header {
        char magic[8];
        uint32_t version; /* 1 */
        uint32_t reserved;
        uint64_t payload_bytes;
        uint64_t slot_stride; /* bytes from slot 0 to slot 1 */
};
struct host_state_slot {
        _Alignas(64) _Atomic uint64_t lock;
        uint64_t seq;
        int64_t step;
        uint64_t payload_bytes;
        uint32_t crc; /* of seq, step, payload_bytes and payload */
        uint32_t reserved;
};

struct host_value {
        const char *name;  /* borrowed */
        uint32_t type;     /* enum cairn_value_type */
        uint64_t capacity; /* BYTES: bytes; others: 8 */
        uint64_t offset;   /* in the payload, set by host_state_layout */
};

/* Assign offsets in the given order, check names and limits; *ret_payload_bytes. */
int host_state_layout(struct host_value *values, size_t count, uint64_t *ret_payload_bytes,
                      struct cairn_error *reterr);
uint64_t host_state_bytes(uint64_t payload_bytes); /* of the whole memfd */
void host_state_init(void *mapping, uint64_t payload_bytes);
int host_state_check(const void *mapping, uint64_t mapping_bytes, struct cairn_error *reterr);
/* Trainer side: before cut_update_end of `seq`. */
void host_state_publish(void *mapping, uint64_t seq, int64_t step, const void *payload);
/* Copier: copy the slot of exactly `seq` into payload (payload_bytes of the header as checked by
 * the caller's `payload_bytes`). STALE if the slot holds another seq or is being written, CORRUPT
 * if the CRC differs. */
int host_state_read(const void *mapping, uint64_t payload_bytes, uint64_t seq, int64_t *ret_step,
                    void *payload, struct cairn_error *reterr);

#endif
