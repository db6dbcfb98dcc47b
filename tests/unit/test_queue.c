/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/limits.h"
#include "base/queue.h"
#include "tests/test.h"

#include <poll.h>

static bool readable(const struct queue *q) {
        struct pollfd p = {.fd = queue_event_fd(q), .events = POLLIN};
        return poll(&p, 1, 0) == 1;
}

static void test_order_and_backpressure(void **state) {
        struct queue q;
        int m;

        assert_int_equal(queue_init(&q, sizeof m, 3, NULL), 0);
        assert_int_equal(queue_try_pop(&q, &m), CAIRN_ERR_BUSY);
        for (int round = 0; round < 5; round++) {
                for (int i = 0; i < 3; i++)
                        assert_int_equal(queue_push(&q, &i), 0);
                m = 99;
                assert_int_equal(queue_push(&q, &m), CAIRN_ERR_BUSY);
                for (int i = 0; i < 3; i++) {
                        assert_int_equal(queue_try_pop(&q, &m), 0);
                        assert_int_equal(m, i);
                }
                /* Moves the head, so that every slot is once the first. */
                assert_int_equal(queue_push(&q, &m), 0);
                assert_int_equal(queue_try_pop(&q, &m), 0);
        }
        queue_done(&q);
}

static void test_event_fd_follows_the_count(void **state) {
        struct queue q;
        int m = 1;

        assert_int_equal(queue_init(&q, sizeof m, 3, NULL), 0);
        assert_false(readable(&q));
        assert_int_equal(queue_push(&q, &m), 0);
        assert_int_equal(queue_push(&q, &m), 0);
        assert_true(readable(&q));
        assert_int_equal(queue_try_pop(&q, &m), 0);
        assert_true(readable(&q));
        assert_int_equal(queue_try_pop(&q, &m), 0);
        assert_false(readable(&q));
        queue_done(&q);
}

static void test_pop_keeps_its_deadline(void **state) {
        struct queue q;
        int m;

        assert_int_equal(queue_init(&q, sizeof m, 1, NULL), 0);
        assert_int_equal(queue_pop(&q, &m, 0), CAIRN_ERR_TIMEOUT);
        uint64_t deadline = clock_now(&clock_system) + 30 * NSEC_PER_MSEC;
        assert_int_equal(queue_pop(&q, &m, deadline), CAIRN_ERR_TIMEOUT);
        assert_true(clock_now(&clock_system) >= deadline);
        /* What is there is handed out even after the deadline. */
        m = 7;
        assert_int_equal(queue_push(&q, &m), 0);
        m = 0;
        assert_int_equal(queue_pop(&q, &m, 0), 0);
        assert_int_equal(m, 7);
        queue_done(&q);
}

static void test_bad_arguments(void **state) {
        struct queue q;
        struct cairn_error e;

        assert_int_equal(queue_init(&q, 0, 1, &e), CAIRN_ERR_API);
        queue_done(&q);
        assert_int_equal(queue_init(&q, 1, 0, &e), CAIRN_ERR_API);
        assert_int_equal(queue_init(&q, SIZE_MAX, SIZE_MAX, &e), CAIRN_ERR_API);
        assert_int_equal(queue_init(&q, SIZE_MAX / 2, 1, &e), CAIRN_ERR_NOMEM);
        queue_done(&q);
        queue_done(&q);
        queue_done(NULL);
}

enum { PRODUCERS = 3, CONSUMERS = 3, MESSAGES = 3000 };

struct tally {
        struct queue queue;
        uint64_t sums[CONSUMERS];
        int counts[CONSUMERS];
        int next_consumer;
};

static void *produce(void *argument) {
        struct tally *t = argument;
        for (uint64_t i = 1; i <= MESSAGES; i++)
                while (queue_push(&t->queue, &i) == CAIRN_ERR_BUSY)
                        clock_system.sleep_ns(NULL, 10000);
        return NULL;
}

static void *consume(void *argument) {
        struct tally *t = argument;
        int self = __atomic_fetch_add(&t->next_consumer, 1, __ATOMIC_RELAXED);
        uint64_t message;
        while (queue_pop(&t->queue, &message, clock_now(&clock_system) + 60 * NSEC_PER_SEC) == 0 &&
               message != 0) {
                t->sums[self] += message;
                t->counts[self]++;
        }
        return NULL;
}

static void test_across_threads(void **state) {
        static struct tally t;
        pthread_t producers[PRODUCERS], consumers[CONSUMERS];
        uint64_t sum = 0, stop = 0;
        int count = 0;

        assert_int_equal(queue_init(&t.queue, sizeof(uint64_t), 16, NULL), 0);
        for (int i = 0; i < CONSUMERS; i++)
                assert_int_equal(pthread_create(&consumers[i], NULL, consume, &t), 0);
        for (int i = 0; i < PRODUCERS; i++)
                assert_int_equal(pthread_create(&producers[i], NULL, produce, &t), 0);
        for (int i = 0; i < PRODUCERS; i++)
                assert_int_equal(pthread_join(producers[i], NULL), 0);
        for (int i = 0; i < CONSUMERS; i++)
                while (queue_push(&t.queue, &stop) == CAIRN_ERR_BUSY)
                        clock_system.sleep_ns(NULL, 10000);
        for (int i = 0; i < CONSUMERS; i++) {
                assert_int_equal(pthread_join(consumers[i], NULL), 0);
                sum += t.sums[i];
                count += t.counts[i];
        }
        assert_int_equal(count, PRODUCERS * MESSAGES);
        assert_true(sum == (uint64_t) PRODUCERS * MESSAGES * (MESSAGES + 1) / 2);
        assert_false(readable(&t.queue));
        queue_done(&t.queue);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_order_and_backpressure),
                cmocka_unit_test(test_event_fd_follows_the_count),
                cmocka_unit_test(test_pop_keeps_its_deadline),
                cmocka_unit_test(test_bad_arguments),
                cmocka_unit_test(test_across_threads),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
