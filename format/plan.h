/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h - which byte ranges of which data files a restore needs, and where they go in the staging
 * image. Written by libcairn after it validated INDEX against its inventory, read by the agent
 * (bounds) and the saver (reading).
 *
 *   memfd, sealed against shrinking, growing and writing:
 *   0 magic "CAIRNPLN" | 8 u32 version 1 | 12 u32 reserved 0 | 16 u64 range_count | 24 u64
 * staging_bytes |
 *   32 ranges of 32 bytes: 0 u32 rank | 4 u32 CRC32C | 8 u64 file_offset | 16 u64 bytes | 24 u64
 * staging_offset
 *
 * Ranges are ascending in (rank, file_offset) and in staging_offset, do not overlap, staging
 * offsets are multiples of 256, bytes > 0. The saver reads around a range as O_DIRECT needs, so
 * that only these bytes are promised.
 */
#ifndef CAIRN_PLAN_H
#define CAIRN_PLAN_H

#include "base/limits.h"
#include "base/status.h"

#define PLAN_MAGIC "CAIRNPLN"
#define PLAN_HEADER_BYTES 32

struct plan_range {
        uint32_t rank;
        uint32_t crc32c;
        uint64_t file_offset;
        uint64_t bytes;
        uint64_t staging_offset;
};
static_assert(sizeof(struct plan_range) == 32, "as drawn above");

/* Bytes of a plan with `count` ranges. */
uint64_t plan_bytes(uint64_t count);
/* Assign staging offsets in order (256-byte aligned) and write the whole plan to `target`
 * (plan_bytes(count)). *ret_staging_bytes is a multiple of 4096. The ranges must be sorted by
 * (rank, file_offset). */
int plan_write(void *target, struct plan_range *ranges, uint64_t count, uint64_t *ret_staging_bytes,
               struct cairn_error *reterr);
/* Check everything stated above; *ret_ranges points into `bytes`. */
int plan_read(const void *bytes, uint64_t bytes_count, uint32_t world,
              const struct plan_range **ret_ranges, uint64_t *ret_count,
              uint64_t *ret_staging_bytes, struct cairn_error *reterr);

#endif
