/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/reader.h"

#include "format/crc32c.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Ranges this close are read as one: a request costs more than the bytes between them. */
#define GAP_BYTES_MAX (64 * KiB)
#define CHECK_BYTES (4 * MiB)
#define PUSH_BYTES (16 * MiB)

struct span {
        uint32_t rank;
        uint64_t file_from, file_to, staging_from;
};

/* Do all ranges lie in staging as in one file, shifted by whole blocks, and nothing beside them?
 * Then bytes around a range may be read along: they are the same file's, in their place. */
static bool is_image(const struct reader_job *job) {
        const struct plan_range *first = &job->ranges[0];
        if (!job->alone)
                return false;
        uint64_t shift = first->file_offset - first->staging_offset;
        for (uint64_t i = 0; i < job->range_count; i++)
                if (job->ranges[i].rank != first->rank ||
                    job->ranges[i].file_offset - job->ranges[i].staging_offset != shift)
                        return false;
        return shift % DATA_BLOCK_BYTES == 0 && first->file_offset >= first->staging_offset;
}

/* Ranges are checked while later ones arrive. */
struct check {
        const struct reader_job *job;
        struct ring *ring;
        struct staging *staging;
        uint64_t *ends; /* of each range that was pushed: bytes pushed up to its end */
        uint64_t pushed_count, checked_count, pushed_bytes, checked_bytes;
        uint64_t part_bytes; /* of the range that is being checked */
        uint32_t part_crc;
};

static int mismatch(const struct plan_range *range, struct cairn_error *reterr) {
        char object[64];
        (void) snprintf(object, sizeof object, "data file of rank %" PRIu32, range->rank);
        int r = error_set(reterr, CAIRN_ERR_CORRUPT, "check data", object,
                          "%" PRIu64 " bytes at offset %" PRIu64
                          " do not have the checksum that INDEX records; `cairn verify` shows the "
                          "extent",
                          range->bytes, range->file_offset);
        if (reterr)
                reterr->offset = range->file_offset;
        return r;
}

/* What has arrived, up to `bytes_max`, so that requests are pushed and the agent is heard in
 * between. */
static int check_arrived(struct check *c, uint64_t bytes_max, struct cairn_error *reterr) {
        uint64_t whole_to = ring_whole_to(c->ring);
        if (ring_failed(c->ring))
                return 0; /* ring_end says why */
        while (c->checked_count < c->pushed_count && bytes_max > 0) {
                const struct plan_range *range = &c->job->ranges[c->checked_count];
                uint64_t at = c->ends[c->checked_count] - range->bytes + c->part_bytes;
                uint64_t part = range->bytes - c->part_bytes;
                if (at >= whole_to && part > 0)
                        break;
                part = part < whole_to - at ? part : whole_to - at;
                part = part < bytes_max ? part : bytes_max;
                c->part_crc =
                        crc32c(c->part_crc,
                               c->staging->base + range->staging_offset + c->part_bytes, part);
                c->part_bytes += part;
                c->checked_bytes += part;
                bytes_max -= part;
                if (c->part_bytes < range->bytes)
                        continue;
                if (c->part_crc != range->crc32c)
                        return mismatch(range, reterr);
                c->part_crc = 0;
                c->part_bytes = 0;
                c->checked_count++;
        }
        return 0;
}

static int wait(const struct check *c, struct cairn_error *reterr) {
        if (c->job->wait(c->job->context, ring_event_fd(c->ring)) < 0)
                return error_set(reterr, CAIRN_ERR_PEER, "read checkpoint", "",
                                 "the agent is gone");
        if (clock_now(c->job->clock) >= c->job->deadline_ns)
                return error_set(reterr, CAIRN_ERR_TIMEOUT, "read checkpoint", "",
                                 "storage gave %" PRIu64 " of %" PRIu64 " bytes in time",
                                 ring_bytes_done(c->ring), c->pushed_bytes);
        return 0;
}

/* In parts, whose pages are made while earlier ones are read. */
static int push(struct check *c, const struct span *span, struct cairn_error *reterr) {
        uint64_t bytes = span->file_to - span->file_from;
        for (uint64_t done = 0; done < bytes;) {
                uint64_t part = bytes - done < PUSH_BYTES ? bytes - done : PUSH_BYTES;
                staging_reach(c->staging, span->staging_from + done + part);
                int r = ring_push(c->ring, span->rank - c->job->first_rank, span->file_from + done,
                                  span->staging_from + done, part);
                if (r == 0) {
                        c->pushed_bytes += part;
                        done += part;
                        TRY(check_arrived(c, CHECK_BYTES, reterr));
                        continue;
                }
                if (r != CAIRN_ERR_BUSY)
                        return error_set(reterr, r, "read checkpoint", "",
                                         "a range lies outside of staging");
                TRY(check_arrived(c, CHECK_BYTES, reterr));
                TRY(wait(c, reterr));
        }
        return 0;
}

static int push_all(struct check *c, bool image, struct cairn_error *reterr) {
        const struct reader_job *job = c->job;
        for (uint64_t i = 0; i < job->range_count && !ring_failed(c->ring);) {
                const struct plan_range *range = &job->ranges[i];
                struct span span = {.rank = range->rank,
                                    .file_from = range->file_offset,
                                    .file_to = range->file_offset + range->bytes,
                                    .staging_from = range->staging_offset};
                uint64_t shift = range->file_offset - range->staging_offset, first = i;
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
                for (uint64_t j = first; j < i; j++)
                        c->ends[j] = c->pushed_bytes + job->ranges[j].file_offset +
                                     job->ranges[j].bytes - span.file_from;
                c->pushed_count = i;
                TRY(push(c, &span, reterr));
        }
        return 0;
}

static int read_and_check(struct check *c, bool image, struct cairn_error *reterr) {
        TRY(push_all(c, image, reterr));
        while (!ring_idle(c->ring)) {
                uint64_t before = c->checked_bytes;
                TRY(check_arrived(c, CHECK_BYTES, reterr));
                if (c->checked_bytes == before)
                        TRY(wait(c, reterr));
        }
        return check_arrived(c, UINT64_MAX, reterr);
}

static int transfer(struct check *c, struct cairn_error *reterr) {
        const struct reader_job *job = c->job;
        bool image = is_image(job);
        TRY(ring_begin(c->ring, RING_READ, job->fds, job->file_count, image ? job->file_count : 0,
                       reterr));
        int r = read_and_check(c, image, reterr);
        /* After an error of ours the transfers still have to end before staging is used again. */
        while (r < 0 && r != CAIRN_ERR_PEER && !ring_idle(c->ring))
                if (wait(c, NULL) < 0)
                        break;
        TRY_KEEP(ring_end(c->ring, 0, r == 0 ? reterr : NULL));
        if (r == 0 && c->checked_count != job->range_count)
                r = error_set(reterr, CAIRN_ERR_FATAL, "read checkpoint", "",
                              "ranges were left unchecked");
        return r;
}

int reader_read(const struct reader_job *job, struct ring *ring, struct staging *staging,
                uint64_t *ret_bytes, struct cairn_error *reterr) {
        struct check c = {.job = job, .ring = ring, .staging = staging};
        *ret_bytes = 0;
        if (job->range_count == 0)
                return 0;
        c.ends = calloc(job->range_count, sizeof *c.ends);
        if (!c.ends)
                return error_set_errno(reterr, ENOMEM, "read checkpoint", "");
        int r = transfer(&c, reterr);
        free(c.ends);
        *ret_bytes = c.checked_bytes;
        return r;
}
