/* SPDX-License-Identifier: Apache-2.0
 *
 * ranges.h - which bytes of which data files a restore reads. What is read is verified before
 * anything is touched, so a range is what INDEX has a checksum of: a whole extent, or, where only a
 * part of a large one is needed (the same run with another number of ranks), chunks of
 * DATA_CHUNK_BYTES of the file.
 *
 *     w = {rank, extent's offset and end, needed bytes of it, its checksum}, one for each extent
 *     TRY(ranges_make(wants, count, index, &ranges, &range_count, reterr));
 *     plan_write(plan, ranges, range_count, ...);                  // assigns staging offsets
 *     ranges_place(&wants[i], ranges)                              // where its extent begins there
 *
 * Ranges come out sorted and apart, as plan.h wants them. An extent that several need is read once;
 * one that lies partly in a chunk that is read anyway is read by chunks, too. Pure; errors: CORRUPT
 * (extents that overlap), NOMEM.
 */
#ifndef CAIRN_CLIENT_RANGES_H
#define CAIRN_CLIENT_RANGES_H

#include "format/file.h"
#include "format/plan.h"

struct ranges_want {
        uint32_t rank, crc32c;
        uint64_t offset, end;          /* of the extent in its file */
        uint64_t need_begin, need_end; /* of the file, within the extent; not empty */
        /* filled */
        bool by_chunks;
        uint64_t begin, stop; /* what is read */
        size_t range;         /* the first one of it */
};

/* index NULL: whole extents only. *ret is the caller's to free. */
int ranges_make(struct ranges_want *wants, size_t count, const struct file_content *index,
                struct plan_range **ret, size_t *ret_count, struct cairn_error *reterr);

/* The place in staging of the extent's first byte, had it been read: only what is needed is there,
 * so it may be negative. */
static inline int64_t ranges_place(const struct ranges_want *w, const struct plan_range *ranges) {
        const struct plan_range *r = &ranges[w->range];

        return (int64_t) r->staging_offset - (int64_t) (r->file_offset - w->offset);
}

#endif
