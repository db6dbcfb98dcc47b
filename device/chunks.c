/* SPDX-License-Identifier: Apache-2.0 */
#include "device/chunks.h"

void chunks_init(struct chunks *c, struct device *device, void *queue, uint64_t chunk_bytes,
                 chunks_look *look, void *context) {
        *c = (struct chunks){
                .device = device,
                .queue = queue,
                .chunk_bytes = chunk_bytes,
                .look = look,
                .context = context,
        };
}

static int await_oldest(struct chunks *c, uint64_t deadline_ns, struct cairn_error *reterr) {
        TRY(c->device->ops->event_wait(c->device, &c->flights[c->oldest].event, deadline_ns,
                                       reterr));
        c->arrived_bytes += c->flights[c->oldest].bytes;
        c->oldest = (c->oldest + 1) % CHUNKS_IN_FLIGHT;
        c->in_flight--;
        return 0;
}

/* There is room for it: none is opened while all are on their way. */
static int close_chunk(struct chunks *c, struct cairn_error *reterr) {
        unsigned i = (c->oldest + c->in_flight) % CHUNKS_IN_FLIGHT;
        TRY(c->device->ops->event_record(c->device, &c->flights[i].event, c->queue, reterr));
        c->flights[i].bytes = c->open_bytes;
        c->open_bytes = 0;
        c->in_flight++;
        return 0;
}

int chunks_copy(struct chunks *c, void *target, const void *source, uint64_t bytes,
                uint64_t deadline_ns, struct cairn_error *reterr) {
        while (bytes > 0) {
                if (c->open_bytes == c->chunk_bytes)
                        TRY(close_chunk(c, reterr)); /* which failed before */
                if (c->open_bytes == 0) {
                        if (c->in_flight == CHUNKS_IN_FLIGHT)
                                TRY(await_oldest(c, deadline_ns, reterr));
                        int r = c->look ? c->look(c->context, c->arrived_bytes, reterr) : 0;
                        if (r != 0)
                                return r;
                }
                uint64_t n = c->chunk_bytes - c->open_bytes;
                if (n > bytes)
                        n = bytes;
                TRY(c->device->ops->copy_async(c->device, c->queue, target, source, n, reterr));
                c->open_bytes += n;
                if (c->open_bytes == c->chunk_bytes)
                        TRY(close_chunk(c, reterr));
                target = (char *) target + n;
                source = (const char *) source + n;
                bytes -= n;
        }
        return 0;
}

int chunks_end(struct chunks *c, uint64_t deadline_ns, struct cairn_error *reterr) {
        if (c->open_bytes > 0)
                TRY(close_chunk(c, reterr));
        while (c->in_flight > 0)
                TRY(await_oldest(c, deadline_ns, reterr));
        return 0;
}

void chunks_done(struct chunks *c) {
        for (unsigned i = 0; i < CHUNKS_IN_FLIGHT; i++)
                c->device->ops->event_done(c->device, &c->flights[i].event);
}
