/* SPDX-License-Identifier: Apache-2.0
 *
 * The host-state memfd of a trainer, as the saver maps it. Input: u32 mapping size (in words of 8
 * bytes), u32 which of checks to put right, the header (32 bytes), both slot headers (64 each),
 * then bytes that both payloads repeat.
 */
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/host_state.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

enum { PAGE = 4096, MAPPING_MAX = 1 << 16 };

static void fill_slot(uint8_t *mapping, size_t bytes, uint64_t at, struct fuzz_input *in) {
        uint8_t header[sizeof(struct host_state_slot)];

        for (size_t i = 0; i < sizeof header; i++)
                header[i] = fuzz_u8(in);
        if (at > bytes || bytes - at < sizeof header)
                return;
        memcpy(mapping + at, header, sizeof header);
        for (size_t i = at + sizeof header; i < bytes && in->left; i++)
                mapping[i] = in->bytes[i % in->left];
}

/* seq, step, payload_bytes, payload: as host_state_publish sums them. */
static void repair_slot(uint8_t *mapping, size_t bytes, uint64_t at, uint64_t payload_bytes) {
        if (at > bytes || bytes - at < 64 || payload_bytes > bytes - at - 64)
                return;
        uint8_t *slot = mapping + at;
        store_le32(slot + 32, crc32c(crc32c(0, slot + 8, 24), slot + 64, payload_bytes));
}

static void read_slots(const uint8_t *mapping, uint64_t payload_bytes, uint64_t stride) {
        uint8_t *payload = malloc(payload_bytes + 1);
        FUZZ_CHECK(payload);
        for (int slot = 0; slot < 4; slot++) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                uint64_t seq = slot < 2 ? load_le64(mapping + PAGE + (uint64_t) slot * stride + 8)
                                        : (uint64_t) slot;
                int64_t step = -7;
                int r = host_state_read(mapping, payload_bytes, seq, &step, payload, &e);
                if (r < 0) {
                        fuzz_check_error(r, &e);
                        FUZZ_CHECK(step == -7);
                        continue;
                }
                const uint8_t *read = mapping + PAGE + (seq % 2) * stride;
                FUZZ_CHECK(load_le64(read + 8) == seq && (int64_t) load_le64(read + 16) == step);
                FUZZ_CHECK(memcmp(payload, read + 64, payload_bytes) == 0);
        }
        free(payload);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        struct cairn_error e = CAIRN_ERROR_INIT;
        size_t mapping_bytes = (size_t) fuzz_u32(&in) % (MAPPING_MAX / 8) * 8;
        uint32_t repair = fuzz_u32(&in);
        struct host_state_header h;
        uint8_t *header = (uint8_t *) &h, *mapping = NULL;

        FUZZ_CHECK(posix_memalign((void **) &mapping, 64, mapping_bytes + 1) == 0);
        memset(mapping, 0, mapping_bytes + 1);
        for (size_t i = 0; i < sizeof h; i++)
                header[i] = fuzz_u8(&in);
        memcpy(mapping, &h, mapping_bytes < sizeof h ? mapping_bytes : sizeof h);
        fill_slot(mapping, mapping_bytes, PAGE, &in);
        if (h.slot_stride < MAPPING_MAX)
                fill_slot(mapping, mapping_bytes, PAGE + h.slot_stride, &in);
        if (h.slot_stride < MAPPING_MAX && (repair & 1)) {
                repair_slot(mapping, mapping_bytes, PAGE, h.payload_bytes);
                repair_slot(mapping, mapping_bytes, PAGE + h.slot_stride, h.payload_bytes);
        }
        int r = host_state_check(mapping, mapping_bytes, &e);
        if (r < 0)
                fuzz_check_error(r, &e);
        else {
                FUZZ_CHECK(h.payload_bytes < mapping_bytes);
                FUZZ_CHECK(host_state_bytes(h.payload_bytes) == mapping_bytes);
                read_slots(mapping, h.payload_bytes, h.slot_stride);
        }
        free(mapping);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_plain(bytes, count, max, seed);
}
