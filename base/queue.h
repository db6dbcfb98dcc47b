/* SPDX-License-Identifier: Apache-2.0
 *
 * queue.h - bounded queue of fixed-size messages, many producers and consumers, with an eventfd so
 * that an event loop can wait on it.
 *
 *     queue_init(&q, sizeof(struct message), 64, &e);
 *     queue_push(&q, &m)  -> 0 or CAIRN_ERR_BUSY (full: backpressure is a value)
 *     queue_pop(&q, &m, deadline_ns) -> 0 or CAIRN_ERR_TIMEOUT
 *     queue_try_pop(&q, &m) -> 0 or CAIRN_ERR_BUSY (empty)
 *     queue_done(&q)
 *
 * Messages are copied. queue_event_fd is readable while the queue is not empty (level).
 */
#ifndef CAIRN_QUEUE_H
#define CAIRN_QUEUE_H

#include "base/status.h"
#include <pthread.h>

struct queue {
        pthread_mutex_t mutex;
        pthread_cond_t not_empty; /* CLOCK_MONOTONIC */
        unsigned char *slots;
        size_t message_bytes, capacity, head, count;
        int event_fd;
};

int queue_init(struct queue *q, size_t message_bytes, size_t capacity, struct cairn_error *reterr);
void queue_done(struct queue *q);
int queue_push(struct queue *q, const void *message);
int queue_try_pop(struct queue *q, void *ret_message);
int queue_pop(struct queue *q, void *ret_message, uint64_t deadline_ns);
int queue_event_fd(const struct queue *q);

#endif
