/* SPDX-License-Identifier: Apache-2.0 */
#include "client/stream.h"
#include "base/bytes.h"
#include "device/cuda_abi.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEPS_BYTES_MIN 4096
/* What is queued when a session is closed ends soon, or never. */
#define CLOSE_NS (5 * NSEC_PER_SEC)
#define POLL_NS_MAX (NSEC_PER_MSEC / 5)
enum { POLL_TURNS_FAST = 64 };

void stream_init(struct stream *s, struct device *device, struct control_page *page, int ring_fd,
                 const struct clock_ops *clock) {
        *s = (struct stream){
                .device = device,
                .page = page,
                .clock = clock,
                .ring_fd = ring_fd,
                .queue = CUDA_STREAM_LEGACY, /* NULL is the device's own */
                .failure = CAIRN_ERROR_INIT,
                .final = CAIRN_ERROR_INIT,
        };
        (void) pthread_mutex_init(&s->lock, NULL);
}

static void free_steps(struct stream *s) {
        if (s->steps_locked)
                (void) s->device->ops->host_unregister(s->device, s->steps, NULL);
        if (s->steps)
                (void) munmap(s->steps, s->steps_bytes);
        s->steps = NULL;
        s->steps_bytes = 0;
        s->steps_locked = false;
}

/* Whoever still reads them may go on to do so, until the process ends. */
static void leave_steps(struct stream *s) {
        s->steps = NULL;
        s->steps_bytes = 0;
        s->queued = s->unmarked = s->steps_locked = false;
}

/* ---- failures ---- */

/* With the lock held. */
static void drop(struct stream *s, const struct cairn_error *why) {
        s->state = STREAM_DROPPED;
        if (s->failure.status == 0)
                s->failure = *why;
        if (s->final.status == 0 && device_error_is_final(why))
                s->final = *why;
}

int stream_check(struct stream *s, struct cairn_error *reterr) {
        struct cairn_error now = CAIRN_ERROR_INIT;
        (void) pthread_mutex_lock(&s->lock);
        if (s->final.status == 0 && s->state == STREAM_PUBLISHED && s->event.recorded &&
            s->device->ops->event_query(s->device, &s->event, &now) < 0 &&
            device_error_is_final(&now))
                s->final = now;
        const struct cairn_error e = s->final;
        (void) pthread_mutex_unlock(&s->lock);
        if (e.status && reterr)
                *reterr = e;
        return e.status;
}

int stream_failure(struct stream *s, struct cairn_error *reterr) {
        (void) pthread_mutex_lock(&s->lock);
        const struct cairn_error e = s->final.status ? s->final : s->failure;
        s->failure = (struct cairn_error) CAIRN_ERROR_INIT;
        (void) pthread_mutex_unlock(&s->lock);
        if (e.status && reterr)
                *reterr = e;
        return e.status;
}

/* ---- the event ---- */

/* With the lock held: the state is whole. */
static void publish(struct stream *s) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        uint64_t seq = 0, one = 1;
        bool ring = false;
        s->state = STREAM_PUBLISHED;
        if (!s->page)
                return;
        if (cut_update_end(s->page, s->step, s->seal, &seq, &ring) < 0) {
                (void) error_set(&e, CAIRN_ERR_FATAL, "end update", "",
                                 "the cut word was changed by somebody else");
                s->final = e;
                drop(s, &e);
                return;
        }
        if (ring)
                (void) !write(s->ring_fd, &one, sizeof one); /* full: it is ringing already */
}

int stream_look(struct stream *s) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = 0;
        (void) pthread_mutex_lock(&s->lock);
        if (s->state == STREAM_PENDING) {
                r = s->device->ops->event_query(s->device, &s->event, &e);
                if (r == 0)
                        publish(s);
                else if (r != CAIRN_ERR_BUSY) {
                        drop(s, &e);
                        r = 0;
                }
        }
        (void) pthread_mutex_unlock(&s->lock);
        return r;
}

static void drop_late(struct stream *s) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        (void) error_set(&e, CAIRN_ERR_TIMEOUT, "end update", s->device->ops->name,
                         "the GPU has not come to its end within %d s: the step is no cut",
                         (int) (STREAM_WAIT_NS / NSEC_PER_SEC));
        (void) pthread_mutex_lock(&s->lock);
        if (s->state == STREAM_PENDING) {
                drop(s, &e);
                s->late = true;
        }
        (void) pthread_mutex_unlock(&s->lock);
}

bool stream_await(struct stream *s, uint64_t deadline_ns) {
        uint64_t pause_ns = 1000;
        for (unsigned turn = 0; stream_look(s) == CAIRN_ERR_BUSY; turn++) {
                if (turn < POLL_TURNS_FAST)
                        continue;
                if (clock_now(s->clock) >= deadline_ns) {
                        drop_late(s);
                        break;
                }
                s->clock->sleep_ns(s->clock->context, pause_ns);
                if (pause_ns < POLL_NS_MAX)
                        pause_ns *= 2;
        }
        /* Not pending any more: only stream_end of this thread changes it. */
        (void) pthread_mutex_lock(&s->lock);
        bool published = s->state == STREAM_PUBLISHED;
        (void) pthread_mutex_unlock(&s->lock);
        return published;
}

/* ---- what is queued ---- */

static int record(struct stream *s, struct cairn_error *reterr) {
        s->unmarked = true;
        TRY(s->device->ops->event_record(s->device, &s->event, s->queue, reterr));
        s->unmarked = false;
        return 0;
}

/* Of an end that failed halfway the old stream may still read the steps. The new one's event would
 * not say how long. */
void stream_set(struct stream *s, void *queue) {
        if (s->queued && s->unmarked && record(s, NULL) < 0)
                leave_steps(s);
        s->queue = queue ? queue : CUDA_STREAM_LEGACY;
}

int stream_join(struct stream *s, struct cairn_error *reterr) {
        if (!s->device)
                return 0;
        TRY(record(s, reterr));
        return s->device->ops->event_wait(s->device, &s->event,
                                          clock_now(s->clock) + STREAM_WAIT_NS, reterr);
}

/* The device has read the steps of the end before. After one that was published it has. */
static int reclaim(struct stream *s, uint64_t limit_ns, struct cairn_error *reterr) {
        if (!s->queued)
                return 0;
        if (s->unmarked)
                TRY(record(s, reterr));
        TRY(s->device->ops->event_wait(s->device, &s->event, clock_now(s->clock) + limit_ns,
                                       reterr));
        s->queued = s->late = false;
        return 0;
}

static int make_steps(struct stream *s, size_t count, struct cairn_error *reterr) {
        uint64_t bytes = STEPS_BYTES_MIN;
        while (bytes < count * sizeof *s->steps)
                bytes *= 2;
        if (bytes <= s->steps_bytes || count == 0)
                return 0;
        free_steps(s);
        void *steps = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (steps == MAP_FAILED)
                return error_set_errno(reterr, errno, "end update", "memory for steps");
        /* A forked child's copy on write would move the pages away from the device. */
        (void) madvise(steps, bytes, MADV_DONTFORK);
        s->steps = steps;
        s->steps_bytes = bytes;
        s->steps_locked = s->device->ops->host_register(s->device, steps, bytes, NULL) == 0;
        return 0;
}

/* Counters side by side on the device are one copy. */
static int queue_steps(struct stream *s, const struct registry *r, struct cairn_error *reterr) {
        TRY(make_steps(s, r->step_count, reterr));
        for (size_t i = 0; i < r->step_count; i++)
                s->steps[i] = (float) *r->tensors[r->steps[i]].truth;
        for (size_t i = 0, next; i < r->step_count; i = next) {
                float *target = r->tensors[r->steps[i]].data;
                next = i + 1;
                while (next < r->step_count &&
                       r->tensors[r->steps[next]].data == target + (next - i))
                        next++;
                TRY(s->device->ops->copy_async(s->device, s->queue, target, s->steps + i,
                                               (next - i) * sizeof *target, reterr));
        }
        return 0;
}

static int queue_shadows(struct stream *s, const struct registry *r, struct cairn_error *reterr) {
        for (size_t i = 0; i < r->shadowed_count; i++) {
                const struct tensor *t = &r->tensors[r->shadowed[i]];
                TRY(s->device->ops->copy_async(s->device, s->queue, t->shadow, t->data, t->bytes,
                                               reterr));
        }
        return 0;
}

static int queue(struct stream *s, const struct registry *r, struct cairn_error *reterr) {
        TRY(reclaim(s, s->late ? 0 : STREAM_WAIT_NS, reterr));
        s->queued = s->unmarked = true;
        TRY(queue_steps(s, r, reterr));
        TRY(queue_shadows(s, r, reterr));
        return record(s, reterr);
}

int stream_end(struct stream *s, const struct registry *r, int64_t step, uint64_t seal,
               struct cairn_error *reterr) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int status = 0;
        (void) pthread_mutex_lock(&s->lock);
        if (s->final.status == 0)
                status = queue(s, r, &e);
        else {
                e = s->final;
                status = e.status;
        }
        if (status < 0) {
                drop(s, &e);
                s->failure.status = 0; /* this caller is told */
                if (reterr)
                        *reterr = e;
        } else {
                s->state = STREAM_PENDING;
                s->step = step;
                s->seal = seal;
        }
        (void) pthread_mutex_unlock(&s->lock);
        return status;
}

void stream_done(struct stream *s) {
        if (!s->device)
                return;
        /* What hangs is left to the end of the process. */
        if (reclaim(s, CLOSE_NS, NULL) < 0 && s->final.status == 0 &&
            reclaim(s, CLOSE_NS, NULL) < 0)
                leave_steps(s);
        free_steps(s);
        s->device->ops->event_done(s->device, &s->event);
        (void) pthread_mutex_destroy(&s->lock);
}
