/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/copier.h"

#include "base/fault.h"
#include "format/host_state.h"
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define PROBE_BYTES_MAX (64 * MiB)
enum { STREAM_LINE_BYTES = 64, STREAM_BYTES_MIN = 4096, STREAM_AHEAD_BYTES = 2048 };

/* How much was copied since the word was last looked at. */
struct chunk {
        struct control_page *page;
        const struct copier_orders *orders;
        struct cut_word mine;
        uint64_t bytes;
};

static int look(struct chunk *c, struct cairn_error *reterr) {
        int error_number = fault_point(FAULT_COPY_CHUNK);
        if (error_number)
                return error_set_errno(reterr, error_number, "copy the state", "");
        if (!cut_copy_continue(c->page, c->mine))
                return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                                 "the trainer went on: the copy took longer than the gate waits");
        if (c->orders && c->orders->given_up(c->orders->context))
                return error_set(reterr, CAIRN_ERR_VOID, "copy the state", "",
                                 "its checkpoint was given up");
        c->bytes = 0;
        return 0;
}

/* Past the caches: what is copied is far larger than they are and is not read again soon. A memcpy
 * of one chunk is too small for the C library to see that, and reads each target line before it
 * overwrites it: two thirds of the speed. */
static void copy_past_caches(unsigned char *target, const unsigned char *source, uint64_t bytes) {
#ifdef __SSE2__
        uint64_t head = -(uintptr_t) target % STREAM_LINE_BYTES;

        if (bytes >= STREAM_BYTES_MIN) {
                memcpy(target, source, head);
                target += head;
                source += head;
                bytes -= head;
                for (; bytes >= STREAM_LINE_BYTES; bytes -= STREAM_LINE_BYTES) {
                        _mm_prefetch((const char *) source + STREAM_AHEAD_BYTES, _MM_HINT_NTA);
                        for (size_t i = 0; i < STREAM_LINE_BYTES / sizeof(__m128i); i++) {
                                __m128i part =
                                        _mm_loadu_si128((const void *) (source + i * sizeof part));
                                _mm_stream_si128((void *) (target + i * sizeof part), part);
                        }
                        target += STREAM_LINE_BYTES;
                        source += STREAM_LINE_BYTES;
                }
                _mm_sfence(); /* before anything that hands the copy on */
        }
#endif
        memcpy(target, source, bytes);
}

static int copy_tensor(struct chunk *c, struct staging *staging, uint64_t offset,
                       const unsigned char *source, uint64_t bytes, struct cairn_error *reterr) {
        while (bytes > 0) {
                uint64_t part = DATA_CHUNK_BYTES - c->bytes;
                part = part < bytes ? part : bytes;
                staging_reach(staging, offset + part);
                copy_past_caches(staging->base + offset, source, part);
                offset += part;
                source += part;
                bytes -= part;
                c->bytes += part;
                if (c->bytes == DATA_CHUNK_BYTES)
                        TRY(look(c, reterr));
        }
        return 0;
}

static int copy_tensors(struct chunk *c, const struct source *source, struct staging *staging,
                        struct cairn_error *reterr) {
        for (size_t i = 0; i < source->tensor_count; i++) {
                const struct source_tensor *t = &source->tensors[i];
                TRY(copy_tensor(c, staging, t->offset, t->live, t->live_bytes, reterr));
        }
        return 0;
}

static int copy_state(struct control_page *page, const struct source *source,
                      struct staging *staging, const struct copier_orders *orders,
                      struct copied *copied, struct cairn_error *reterr) {
        struct chunk chunk = {.page = page, .orders = orders, .mine = copied->word};
        if (atomic_load(&page->seal_number) != source->seal)
                return error_set(reterr, CAIRN_ERR_STALE, "copy the state", "",
                                 "the trainer sealed again; the new inventory has not arrived yet");
        TRY(host_state_read(source->host, source->payload_bytes, copied->word.seq, &copied->step,
                            copied->payload, reterr));
        if (orders && orders->hold)
                TRY(orders->hold(orders->context, copied, reterr));
        TRY(look(&chunk, reterr));
        if (orders && orders->fetch)
                TRY(orders->fetch(orders->context, copied, reterr));
        else if (!source->is_live)
                return error_set(reterr, CAIRN_ERR_API, "copy the state", "",
                                 "the saver cannot read it, and its trainer does not copy");
        else
                TRY(copy_tensors(&chunk, source, staging, reterr));
        int error_number = fault_point(FAULT_COPY_RELEASE);
        return error_number ? error_set_errno(reterr, error_number, "copy the state", "") : 0;
}
int copier_take(struct control_page *page, const struct source *source, struct staging *staging,
                bool demanded, const struct copier_orders *orders, struct copied *copied,
                struct cairn_error *reterr) {
        TRY(cut_copy_begin(page, demanded, &copied->word));
        staging_note(staging, STAGING_COPYING, copied->word, 0);
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = copy_state(page, source, staging, orders, copied, &e);
        if (r == 0 && cut_copy_end(page, copied->word) == 0) {
                staging_note(staging, STAGING_HELD, copied->word, copied->step);
                return 0;
        }
        if (r == 0)
                r = error_set(&e, CAIRN_ERR_VOID, "copy the state", "",
                              "the trainer went on: the copy took longer than the gate waits");
        else
                cut_copy_abandon(page, copied->word);
        staging_note(staging, STAGING_FREE, copied->word, 0);
        cut_outcome_set(page, copied->word.seq, r == CAIRN_ERR_STALE ? CUT_DECLINED : CUT_VOID, r);
        if (reterr)
                *reterr = e;
        return r == CAIRN_ERR_STALE ? r : CAIRN_ERR_VOID;
}

uint64_t copier_probe(const struct source *source, struct staging *staging,
                      const struct clock_ops *clock) {
        uint64_t bytes = 0, start_ns = clock_now(clock);
        for (size_t i = 0; i < source->tensor_count && bytes < PROBE_BYTES_MAX; i++) {
                const struct source_tensor *t = &source->tensors[i];
                uint64_t part = PROBE_BYTES_MAX - bytes < t->live_bytes ? PROBE_BYTES_MAX - bytes
                                                                        : t->live_bytes;
                copy_past_caches(staging->base + t->offset, t->live, part);
                bytes += part;
        }
        uint64_t took_ns = clock_now(clock) - start_ns;
        return (uint64_t) ((__uint128_t) bytes * NSEC_PER_SEC / (took_ns ? took_ns : 1));
}
