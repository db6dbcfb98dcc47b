/* SPDX-License-Identifier: Apache-2.0 */
#include "format/plan.h"
#include "base/bytes.h"

#include <stdbool.h>

#define PLAN_VERSION 1
#define OPERATION "check restore plan"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "ranges lie in the file as in memory");
static_assert(PLAN_HEADER_BYTES % _Alignof(struct plan_range) == 0, "ranges are used in place");

uint64_t plan_bytes(uint64_t count) {
        return PLAN_HEADER_BYTES + count * sizeof(struct plan_range);
}

static int range_error(struct cairn_error *reterr, uint64_t i, const char *what) {
        error_set(reterr, CAIRN_ERR_CORRUPT, OPERATION, "", "range %llu %s", (unsigned long long) i,
                  what);
        if (reterr)
                reterr->offset = plan_bytes(i);
        return CAIRN_ERR_CORRUPT;
}

/* What is true of a range by itself and against the one before it, staging apart. */
static int check_range(const struct plan_range *r, uint64_t i, struct cairn_error *reterr) {
        uint64_t end, previous_end;

        if (r->bytes == 0 || r->bytes > DATA_BYTES_MAX)
                return range_error(reterr, i, "has no bytes or too many");
        if (!add_checked(r->file_offset, r->bytes, &end) || end > DATA_BYTES_MAX)
                return range_error(reterr, i, "ends beyond any data file");
        if (r->rank >= RANK_COUNT_MAX)
                return range_error(reterr, i, "is of an impossible rank");
        if (i == 0)
                return 0;
        if (r[-1].rank > r->rank)
                return range_error(reterr, i, "is not sorted by rank");
        if (r[-1].rank < r->rank)
                return 0;
        /* Cannot overflow: the one before was checked. */
        previous_end = r[-1].file_offset + r[-1].bytes;
        if (r->file_offset < previous_end)
                return range_error(reterr, i, "overlaps the one before it or is not sorted");
        return 0;
}

int plan_write(void *target, struct plan_range *ranges, uint64_t count, uint64_t *ret_staging_bytes,
               struct cairn_error *reterr) {
        unsigned char *bytes = target;
        uint64_t staging = 0;

        for (uint64_t i = 0; i < count; i++) {
                TRY(check_range(&ranges[i], i, reterr));
                ranges[i].staging_offset = staging;
                if (!add_checked(staging, ranges[i].bytes, &staging) ||
                    !align_up_checked(staging, TENSOR_ALIGNMENT, &staging) ||
                    staging > DATA_BYTES_MAX)
                        return range_error(reterr, i, "does not fit into any staging");
        }
        staging = (staging + DATA_BLOCK_BYTES - 1) & ~(uint64_t) (DATA_BLOCK_BYTES - 1);

        memset(bytes, 0, PLAN_HEADER_BYTES);
        memcpy(bytes, PLAN_MAGIC, 8); /* NOLINT(bugprone-not-null-terminated-result) */
        store_le32(bytes + 8, PLAN_VERSION);
        store_le64(bytes + 16, count);
        store_le64(bytes + 24, staging);
        if (count)
                memcpy(bytes + PLAN_HEADER_BYTES, ranges, count * sizeof *ranges);
        *ret_staging_bytes = staging;
        return 0;
}

static int check_staging(const struct plan_range *r, uint64_t i, uint64_t staging_bytes,
                         struct cairn_error *reterr) {
        uint64_t end;

        if (r->staging_offset % TENSOR_ALIGNMENT != 0)
                return range_error(reterr, i, "is not aligned in staging");
        if (!add_checked(r->staging_offset, r->bytes, &end) || end > staging_bytes)
                return range_error(reterr, i, "ends beyond staging");
        if (i > 0 && r->staging_offset < r[-1].staging_offset + r[-1].bytes)
                return range_error(reterr, i, "overlaps the one before it in staging");
        return 0;
}

int plan_read(const void *bytes, uint64_t bytes_count, uint32_t world,
              const struct plan_range **ret_ranges, uint64_t *ret_count,
              uint64_t *ret_staging_bytes, struct cairn_error *reterr) {
        const unsigned char *b = bytes;

        if (bytes_count < PLAN_HEADER_BYTES || memcmp(b, PLAN_MAGIC, 8) != 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, OPERATION, "", "this is no plan");
        if (load_le32(b + 8) != PLAN_VERSION || load_le32(b + 12) != 0)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, OPERATION, "",
                                 "version %u; this program knows %d", load_le32(b + 8),
                                 PLAN_VERSION);

        uint64_t count = load_le64(b + 16), staging_bytes = load_le64(b + 24);
        if (count != (bytes_count - PLAN_HEADER_BYTES) / sizeof(struct plan_range) ||
            bytes_count != plan_bytes(count))
                return error_set(reterr, CAIRN_ERR_CORRUPT, OPERATION, "",
                                 "%llu ranges do not fill %llu bytes", (unsigned long long) count,
                                 (unsigned long long) bytes_count);
        if (staging_bytes % DATA_BLOCK_BYTES != 0 || staging_bytes > DATA_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_CORRUPT, OPERATION, "",
                                 "a staging of %llu bytes", (unsigned long long) staging_bytes);

        const struct plan_range *ranges = (const void *) (b + PLAN_HEADER_BYTES);
        for (uint64_t i = 0; i < count; i++) {
                TRY(check_range(&ranges[i], i, reterr));
                TRY(check_staging(&ranges[i], i, staging_bytes, reterr));
                if (ranges[i].rank >= world)
                        return range_error(reterr, i, "is of a rank beyond the checkpoint's world");
        }
        *ret_ranges = ranges;
        *ret_count = count;
        *ret_staging_bytes = staging_bytes;
        return 0;
}
