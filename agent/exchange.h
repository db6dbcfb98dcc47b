/* SPDX-License-Identifier: Apache-2.0
 *
 * exchange.h - small values that the ranks of one generation tell each other through their agent:
 * where they listen, whether they work or wait; for building and watching a communicator.
 *
 *     exchange_init(&x, loop);
 *     exchange_put(&x, rank, key, value, &to, &e);     // answers to: Done
 *     exchange_get(&x, rank, key, wait_ns, &to, &e);   // answers to: ExchangeValue, now or later
 *     exchange_list(&x, prefix, after, &to, &e);       // answers to: ExchangeItems
 *     exchange_clear(&x);                              // a new generation: nothing stays
 *
 * What is kept is bounded by EXCHANGE_KEYS_PER_RANK_MAX and EXCHANGE_BYTES_PER_RANK_MAX for each
 * rank; a key counts for whoever wrote it last. One get of a rank waits at a time; a second one
 * takes its place.
 *
 * The verbs answer by themselves and may do so later: ranks of several nodes will find the keys of
 * the others elsewhere, behind these same verbs. Memory only. The loop's thread.
 */
#ifndef CAIRN_AGENT_EXCHANGE_H
#define CAIRN_AGENT_EXCHANGE_H

#include "agent/server.h"

struct exchange_entry;
struct exchange_use {
        size_t keys, bytes;
};
struct exchange_waiter {
        struct reply_to to; /* connection NULL: none */
        char key[EXCHANGE_KEY_BYTES_MAX];
        size_t key_bytes;
        uint64_t deadline_ns;
};
struct exchange {
        struct loop *loop;
        struct loop_timer timer;        /* the first deadline of those that wait */
        struct exchange_entry *entries; /* by key */
        struct exchange_use *used;      /* by rank: what it put; grows with the highest one */
        size_t used_count;
        struct exchange_waiter waiters[SESSION_COUNT_MAX]; /* of this node's ranks */
};

void exchange_init(struct exchange *x, struct loop *loop);
/* Sessions of the generation have ended: nobody who waits is there. Frees all that is kept. */
void exchange_clear(struct exchange *x);

/* `rank`: of the world. Errors: API (key or value too long), NOSPACE, NOMEM. `to` NULL: another
 * node's rank put it, nobody here waits for an answer. */
int exchange_put(struct exchange *x, uint32_t rank, const ProtobufCBinaryData *key,
                 const ProtobufCBinaryData *value, const struct reply_to *to,
                 struct cairn_error *reterr);
/* All that is kept, for a node that came late. */
typedef void (*exchange_each_fn)(void *context, uint32_t rank, const ProtobufCBinaryData *key,
                                 const ProtobufCBinaryData *value);
void exchange_each(struct exchange *x, exchange_each_fn call, void *context);
/* `waiter` < SESSION_COUNT_MAX: which of this node's ranks asks. */
int exchange_get(struct exchange *x, uint32_t waiter, const ProtobufCBinaryData *key,
                 uint64_t wait_ns, const struct reply_to *to, struct cairn_error *reterr);
int exchange_list(const struct exchange *x, const ProtobufCBinaryData *prefix,
                  const ProtobufCBinaryData *after, const struct reply_to *to,
                  struct cairn_error *reterr);

#endif
