/* SPDX-License-Identifier: Apache-2.0
 *
 * u32 world, then a plan as a trainer hands it to the agent: what is accepted is exactly what the
 * saver relies on.
 */
#include "base/bytes.h"
#include "format/plan.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

static void check_ranges(const struct plan_range *ranges, uint64_t count, uint64_t staging_bytes,
                         uint32_t world) {
        for (uint64_t i = 0; i < count; i++) {
                const struct plan_range *p = &ranges[i], *before = i ? &ranges[i - 1] : NULL;
                uint64_t end, staging_end;
                FUZZ_CHECK(p->rank < world && p->bytes > 0);
                FUZZ_CHECK(add_checked(p->file_offset, p->bytes, &end) && end <= DATA_BYTES_MAX);
                FUZZ_CHECK(add_checked(p->staging_offset, p->bytes, &staging_end));
                FUZZ_CHECK(staging_end <= staging_bytes);
                FUZZ_CHECK(p->staging_offset % TENSOR_ALIGNMENT == 0);
                if (!before)
                        continue;
                FUZZ_CHECK(before->staging_offset + before->bytes <= p->staging_offset);
                FUZZ_CHECK(before->rank < p->rank ||
                           (before->rank == p->rank &&
                            before->file_offset + before->bytes <= p->file_offset));
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        struct cairn_error e = CAIRN_ERROR_INIT;
        const struct plan_range *ranges = NULL;
        uint64_t range_count = 0, staging_bytes = 0;
        uint32_t world = fuzz_u32(&in);

        uint8_t *copy = fuzz_copy(in.bytes, in.left);
        int r = plan_read(copy, in.left, world, &ranges, &range_count, &staging_bytes, &e);
        if (r < 0)
                fuzz_check_error(r, &e);
        else {
                FUZZ_CHECK(range_count <= in.left / sizeof *ranges);
                check_ranges(ranges, range_count, staging_bytes, world);
        }
        free(copy);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_plain(bytes, count, max, seed);
}
