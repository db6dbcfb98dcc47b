/* SPDX-License-Identifier: Apache-2.0 */
#include "base/queue.h"
#include "base/assert.h"
#include "base/bytes.h"
#include "base/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

int queue_init(struct queue *q, size_t message_bytes, size_t capacity, struct cairn_error *reterr) {
        pthread_condattr_t attributes;
        uint64_t bytes;

        *q = (struct queue){.message_bytes = message_bytes, .capacity = capacity, .event_fd = -1};
        if (message_bytes == 0 || capacity == 0 || !mul_checked(message_bytes, capacity, &bytes))
                return error_set(reterr, CAIRN_ERR_API, "create queue", "",
                                 "a queue needs a message size and a capacity");
        q->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (q->event_fd < 0)
                return error_set_errno(reterr, errno, "create queue", "eventfd");
        q->slots = malloc(bytes);
        if (!q->slots) {
                (void) close(q->event_fd);
                q->event_fd = -1;
                return error_set_errno(reterr, ENOMEM, "create queue", "");
        }
        /* None of these can fail on Linux with these arguments. */
        (void) pthread_mutex_init(&q->mutex, NULL);
        (void) pthread_condattr_init(&attributes);
        (void) pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        (void) pthread_cond_init(&q->not_empty, &attributes);
        (void) pthread_condattr_destroy(&attributes);
        return 0;
}

/* Slots exist exactly while mutex and condition do. */
void queue_done(struct queue *q) {
        if (!q || !q->slots)
                return;
        (void) pthread_cond_destroy(&q->not_empty);
        (void) pthread_mutex_destroy(&q->mutex);
        (void) close(q->event_fd);
        free(q->slots);
        *q = (struct queue){.event_fd = -1};
}

/* The eventfd follows the count under the mutex, so it is readable just when the queue is not
 * empty. */
static void mark_not_empty(struct queue *q) {
        uint64_t one = 1;
        ssize_t n = write(q->event_fd, &one, sizeof one);
        CAIRN_ASSERT(n == sizeof one);
}

static void mark_empty(struct queue *q) {
        uint64_t value;
        ssize_t n = read(q->event_fd, &value, sizeof value);
        CAIRN_ASSERT(n == sizeof value);
}

int queue_push(struct queue *q, const void *message) {
        int r = CAIRN_ERR_BUSY;

        (void) pthread_mutex_lock(&q->mutex);
        if (q->count < q->capacity) {
                size_t tail = (q->head + q->count) % q->capacity;
                memcpy(q->slots + tail * q->message_bytes, message, q->message_bytes);
                if (q->count++ == 0)
                        mark_not_empty(q);
                (void) pthread_cond_signal(&q->not_empty);
                r = 0;
        }
        (void) pthread_mutex_unlock(&q->mutex);
        return r;
}

static void take_head(struct queue *q, void *ret_message) {
        memcpy(ret_message, q->slots + q->head * q->message_bytes, q->message_bytes);
        q->head = (q->head + 1) % q->capacity;
        if (--q->count == 0)
                mark_empty(q);
}

int queue_try_pop(struct queue *q, void *ret_message) {
        int r = CAIRN_ERR_BUSY;

        (void) pthread_mutex_lock(&q->mutex);
        if (q->count > 0) {
                take_head(q, ret_message);
                r = 0;
        }
        (void) pthread_mutex_unlock(&q->mutex);
        return r;
}

int queue_pop(struct queue *q, void *ret_message, uint64_t deadline_ns) {
        struct timespec deadline = {
                .tv_sec = (time_t) (deadline_ns / NSEC_PER_SEC),
                .tv_nsec = (long) (deadline_ns % NSEC_PER_SEC),
        };
        int wait_result = 0, r = CAIRN_ERR_TIMEOUT;

        (void) pthread_mutex_lock(&q->mutex);
        while (q->count == 0 && wait_result == 0)
                wait_result = pthread_cond_timedwait(&q->not_empty, &q->mutex, &deadline);
        if (q->count > 0) {
                take_head(q, ret_message);
                r = 0;
        }
        (void) pthread_mutex_unlock(&q->mutex);
        return r;
}

int queue_event_fd(const struct queue *q) {
        return q->event_fd;
}
