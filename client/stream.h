/* SPDX-License-Identifier: Apache-2.0
 *
 * stream.h - the end of an update on a device: what libcairn itself queues for it, the event behind
 * it, and the swap to STABLE once the device has come there.
 *
 *     stream_init(&s, device, page, ring_fd, clock);
 *     TRY(stream_join(&s, &e));                      restore: what the trainer queued has ended
 *     stream_end(&s, registry, step, seal, &e);      update_end: queues, returns
 *     while (stream_look(&s) == CAIRN_ERR_BUSY) ...   the helper thread: publishes
 *     stream_await(&s, deadline_ns);                  update_begin: the like, and waits
 *     stream_done(&s);
 *
 *   PUBLISHED --end--> PENDING --the event is complete--> PUBLISHED: the word is STABLE
 *                         \----time-out, device error---> DROPPED:   the word stays UPDATING
 *
 * The cut of a dropped end does not come to be; the next end makes the next one. What the driver
 * keeps (device_error_is_final) drops all that follow.
 *
 * Steps leave from page-locked memory of this file's, which the next end writes again: it waits
 * until the event before is complete. Where page-locking is refused the copies are slower.
 *
 * Threads: stream_end, stream_await and the fields above the lock belong to the API thread,
 * stream_look to any.
 */
#ifndef CAIRN_CLIENT_STREAM_H
#define CAIRN_CLIENT_STREAM_H

#include "client/registry.h"
#include "format/cut.h"
#include <pthread.h>

/* The trainer's own work is waited for; more says that the GPU hangs. */
#define STREAM_WAIT_NS (120 * NSEC_PER_SEC)

enum stream_state { STREAM_PUBLISHED, STREAM_PENDING, STREAM_DROPPED };

struct stream {
        struct device *device;     /* NULL: of a session of the host, nothing here is used */
        struct control_page *page; /* NULL: there is no agent */
        const struct clock_ops *clock;
        int ring_fd;
        void *queue;
        float *steps;
        uint64_t steps_bytes;
        bool steps_locked;
        bool queued;   /* the device may still read steps */
        bool unmarked; /* and no event tells how long */
        bool late;     /* it was waited for once already */

        pthread_mutex_t lock;
        enum stream_state state;
        struct device_event event;
        int64_t step;
        uint64_t seal;
        struct cairn_error failure; /* the first one that nobody was told */
        struct cairn_error final;   /* status 0: none */
};

/* The default stream, until another is set. */
void stream_init(struct stream *s, struct device *device, struct control_page *page, int ring_fd,
                 const struct clock_ops *clock);
/* NULL: the default stream. From the next end on; the ends before are told by their own events. */
void stream_set(struct stream *s, void *queue);
/* No end is pending. Until all that was queued is done, STREAM_WAIT_NS at most: TIMEOUT. */
int stream_join(struct stream *s, struct cairn_error *reterr);
/* What the device still reads stays. */
void stream_done(struct stream *s);
/* Truths -> FP32 steps and tensors -> shadows are queued. On failure the update has ended and is
 * dropped. */
int stream_end(struct stream *s, const struct registry *r, int64_t step, uint64_t seal,
               struct cairn_error *reterr);
/* BUSY: pending. Else 0. */
int stream_look(struct stream *s);
/* Until nothing is pending, at the latest at the deadline, which drops it. Whether the word is
 * STABLE, or was never there. */
bool stream_await(struct stream *s, uint64_t deadline_ns);
/* The final error, if there is one: also one of the trainer's own work since the last end, so that
 * a whole state is not entered for an update that cannot be made. FATAL: the page was changed by
 * somebody else. */
int stream_check(struct stream *s, struct cairn_error *reterr);
/* What went wrong since it was last told, or the final error. 0: nothing. */
int stream_failure(struct stream *s, struct cairn_error *reterr);

#endif
