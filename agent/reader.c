/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/reader.h"

#include "format/crc32c.h"
#include <inttypes.h>
#include <stdio.h>

/* Ranges this close are read as one: a request costs more than the bytes between them. */
#define GAP_BYTES_MAX (64 * KiB)

struct span {
        uint32_t rank;
        uint64_t file_from, file_to, staging_from;
};

/* Do all ranges lie in staging as in one file, shifted by whole blocks? Then bytes around a range
 * may be read along: they are the same file's, in their place. */
static bool is_image(const struct reader_job *job) {
        const struct plan_range *first = &job->ranges[0];
        uint64_t shift = first->file_offset - first->staging_offset;
        for (uint64_t i = 0; i < job->range_count; i++)
                if (job->ranges[i].rank != first->rank ||
                    job->ranges[i].file_offset - job->ranges[i].staging_offset != shift)
                        return false;
        return shift % DATA_BLOCK_BYTES == 0 && first->file_offset >= first->staging_offset;
}

static int push(const struct reader_job *job, struct ring *ring, const struct span *span,
                struct cairn_error *reterr) {
        uint64_t bytes = span->file_to - span->file_from;
        for (;;) {
                int r = ring_push(ring, span->rank, span->file_from, span->staging_from, bytes);
                if (r != CAIRN_ERR_BUSY)
                        return r < 0 ? error_set(reterr, r, "read checkpoint", "",
                                                 "a range lies outside of staging")
                                     : 0;
                if (job->wait(job->context, ring_event_fd(ring)) < 0)
                        return error_set(reterr, CAIRN_ERR_PEER, "read checkpoint", "",
                                         "the agent is gone");
        }
}

static int push_all(const struct reader_job *job, struct ring *ring, bool image,
                    struct cairn_error *reterr) {
        for (uint64_t i = 0; i < job->range_count && !ring_failed(ring);) {
                const struct plan_range *range = &job->ranges[i];
                struct span span = {.rank = range->rank,
                                    .file_from = range->file_offset,
                                    .file_to = range->file_offset + range->bytes,
                                    .staging_from = range->staging_offset};
                uint64_t shift = range->file_offset - range->staging_offset;
                for (i++; i < job->range_count; i++) {
                        const struct plan_range *next = &job->ranges[i];
                        if (next->rank != span.rank ||
                            next->file_offset - next->staging_offset != shift ||
                            next->file_offset - span.file_to > (image ? GAP_BYTES_MAX : 0))
                                break;
                        span.file_to = next->file_offset + next->bytes;
                }
                if (image) {
                        uint64_t before = span.file_from % DATA_BLOCK_BYTES;
                        span.file_from -= before;
                        span.staging_from -= before;
                        span.file_to = (span.file_to + DATA_BLOCK_BYTES - 1) / DATA_BLOCK_BYTES *
                                       DATA_BLOCK_BYTES;
                }
                TRY(push(job, ring, &span, reterr));
        }
        return 0;
}

static int check_all(const struct reader_job *job, const struct staging *staging,
                     uint64_t *ret_bytes, struct cairn_error *reterr) {
        *ret_bytes = 0;
        for (uint64_t i = 0; i < job->range_count; i++) {
                const struct plan_range *range = &job->ranges[i];
                *ret_bytes += range->bytes;
                if (crc32c(0, staging->base + range->staging_offset, range->bytes) == range->crc32c)
                        continue;
                char object[64];
                (void) snprintf(object, sizeof object, "data file of rank %" PRIu32, range->rank);
                int r = error_set(reterr, CAIRN_ERR_CORRUPT, "check data", object,
                                  "%" PRIu64 " bytes at offset %" PRIu64
                                  " do not have the checksum that INDEX records; `cairn verify` "
                                  "shows the extent",
                                  range->bytes, range->file_offset);
                if (reterr)
                        reterr->offset = range->file_offset;
                return r;
        }
        return 0;
}

int reader_read(const struct reader_job *job, struct ring *ring, struct staging *staging,
                uint64_t *ret_bytes, struct cairn_error *reterr) {
        *ret_bytes = 0;
        if (job->range_count == 0)
                return 0;
        bool image = is_image(job);
        TRY(ring_begin(ring, RING_READ, job->fds, job->file_count, image ? job->file_count : 0,
                       reterr));
        int r = push_all(job, ring, image, reterr);
        while (r == 0 && !ring_idle(ring))
                if (job->wait(job->context, ring_event_fd(ring)) < 0)
                        r = error_set(reterr, CAIRN_ERR_PEER, "read checkpoint", "",
                                      "the agent is gone");
                else if (clock_now(job->clock) >= job->deadline_ns)
                        break; /* ring_end says so */
        TRY_KEEP(ring_end(ring, job->deadline_ns, r == 0 ? reterr : NULL));
        return r < 0 ? r : check_all(job, staging, ret_bytes, reterr);
}
