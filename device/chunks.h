/* SPDX-License-Identifier: Apache-2.0
 *
 * chunks.h - many copies in a row as a few large ones in flight: whoever copies may stop between
 * them, and never has the whole state queued on a stream that others use as well.
 *
 *     struct chunks c;
 *     chunks_init(&c, device, queue, CHUNK_BYTES, look, context);
 *     for each range: TRY_GOTO(chunks_copy(&c, target, source, bytes, deadline_ns, reterr), out);
 *     out: TRY_KEEP(chunks_end(&c, deadline_ns, reterr));
 *     chunks_done(&c);
 *
 * chunks_end comes after a failure too: until it returned 0 copies may still write their targets,
 * which must not be used again. One thread at a time; `queue` as in device.h.
 */
#ifndef CAIRN_DEVICE_CHUNKS_H
#define CAIRN_DEVICE_CHUNKS_H

#include "base/limits.h"
#include "device/device.h"

#define CHUNK_BYTES (16 * MiB)
#define CHUNKS_IN_FLIGHT 2

/* Before each chunk: so many bytes from the first have arrived. Not 0: stop, and return that. */
typedef int chunks_look(void *context, uint64_t arrived_bytes, struct cairn_error *reterr);

struct chunks {
        struct device *device;
        void *queue;
        uint64_t chunk_bytes;
        chunks_look *look;
        void *context;
        uint64_t arrived_bytes;
        uint64_t open_bytes; /* queued, and no event behind them yet */
        unsigned oldest, in_flight;
        struct {
                struct device_event event;
                uint64_t bytes;
        } flights[CHUNKS_IN_FLIGHT];
};

/* `look` may be NULL. */
void chunks_init(struct chunks *c, struct device *device, void *queue, uint64_t chunk_bytes,
                 chunks_look *look, void *context);
/* Queues the range; waits while CHUNKS_IN_FLIGHT are on their way. */
int chunks_copy(struct chunks *c, void *target, const void *source, uint64_t bytes,
                uint64_t deadline_ns, struct cairn_error *reterr);
/* 0: everything that was queued has arrived. */
int chunks_end(struct chunks *c, uint64_t deadline_ns, struct cairn_error *reterr);
void chunks_done(struct chunks *c);

#endif
