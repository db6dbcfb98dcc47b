/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.h - small values that the ranks of one generation tell each other through their agent,
 * for example where they listen, to build a communicator.
 *
 *     exchange_init(&x, loop);
 *     exchange_put(&x, rank, key, value, &to, &e);     // answers to: Done
 *     exchange_get(&x, rank, key, wait_ns, &to, &e);   // answers to: ExchangeValue, now or later
 *     exchange_clear(&x);                              // a new generation: nothing stays
 *
 * A key is written once: the same value again is fine (a rank repeats what it put after its agent
 * was restarted), another one is refused, so that no two ranks can see different values. What is
 * kept is bounded by EXCHANGE_KEYS_PER_RANK_MAX and EXCHANGE_BYTES_PER_RANK_MAX for each rank. One
 * get of a rank waits at a time; a second one takes its place.
 *
 * Both verbs answer by themselves and may do so later: ranks of several nodes will find the keys of
 * the others in the rendezvous store, behind these same verbs. Memory only. The loop's thread.
 */
#ifndef CAIRN_AGENT_EXCHANGE_H
#define CAIRN_AGENT_EXCHANGE_H

#include "agent/server.h"

struct exchange_entry;
struct exchange_waiter {
        struct reply_to to; /* connection NULL: none */
        char key[EXCHANGE_KEY_BYTES_MAX + 1];
        size_t key_bytes;
        uint64_t deadline_ns;
};
struct exchange {
        struct loop *loop;
        struct loop_timer timer; /* the first deadline of those that wait */
        struct exchange_entry *entries;
        struct { /* by rank: what it put */
                size_t keys, bytes;
        } used[SESSION_COUNT_MAX];
        struct exchange_waiter waiters[SESSION_COUNT_MAX]; /* by rank */
};

void exchange_init(struct exchange *x, struct loop *loop);
/* Sessions of the generation have ended: nobody who waits is there. Frees all that is kept. */
void exchange_clear(struct exchange *x);

/* rank < SESSION_COUNT_MAX. Errors: API (key or value too long), EXISTS, NOSPACE. */
int exchange_put(struct exchange *x, uint32_t rank, const ProtobufCBinaryData *key,
                 const ProtobufCBinaryData *value, const struct reply_to *to,
                 struct cairn_error *reterr);
int exchange_get(struct exchange *x, uint32_t rank, const ProtobufCBinaryData *key,
                 uint64_t wait_ns, const struct reply_to *to, struct cairn_error *reterr);

#endif
