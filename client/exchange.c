/* SPDX-License-Identifier: Apache-2.0
 *
 * The exchange between the ranks of a generation: requests to the agent, which keeps the values
 * (agent/exchange.h).
 */
#include "client/handle.h"
#include <inttypes.h>
#include <string.h>

/* The connection is used by one call at a time: a get lets the others in between its turns. */
#define GET_TURN_NS (200 * NSEC_PER_MSEC)
#define TURN_PAUSE_NS (1 * NSEC_PER_MSEC)
/* An agent that is well answers within this. */
#define ANSWER_NS (500 * NSEC_PER_MSEC)

static_assert(CAIRN_EXCHANGE_KEY_BYTES_MAX == EXCHANGE_KEY_BYTES_MAX, "cairn.h tells it");
static_assert(CAIRN_EXCHANGE_VALUE_BYTES_MAX == EXCHANGE_VALUE_BYTES_MAX, "cairn.h tells it");

/* key_bytes_min 0: a prefix. */
static int check_call(struct cairn *c, const char *operation, const char *key, size_t key_bytes_min,
                      struct cairn_error *reterr) {
        size_t bytes = key ? strnlen(key, EXCHANGE_KEY_BYTES_MAX + 1) : 0;
        TRY(handle_check(c, operation, reterr));
        if (!key || bytes < key_bytes_min || bytes > EXCHANGE_KEY_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, "",
                                 "a key has between 1 and %d bytes", EXCHANGE_KEY_BYTES_MAX);
        if (c->passive)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, operation, key,
                                 "this session was opened without an agent");
        return 0;
}

static uint64_t deadline_of(const struct cairn *c, uint64_t timeout_ns) {
        uint64_t now_ns = clock_now(c->clock);
        return timeout_ns < UINT64_MAX - ANSWER_NS - now_ns ? now_ns + timeout_ns
                                                            : UINT64_MAX - ANSWER_NS;
}

/* To whoever waits for ranks, an agent that is gone and one that is silent are the same. */
static int unanswered(int r, struct cairn_error *e) {
        if (r == CAIRN_ERR_PEER || r == CAIRN_ERR_TIMEOUT)
                r = e->status = CAIRN_ERR_UNREACHABLE;
        return r;
}

/* On success the reply is held until link_end_call. */
static int ask(struct cairn *c, Cairn__Control__Envelope *e,
               Cairn__Control__Envelope__BodyCase expected, uint64_t deadline_ns,
               Cairn__Control__Envelope **ret, struct cairn_error *reterr) {
        return unanswered(link_call(&c->link, e, NULL, 0, expected, deadline_ns + ANSWER_NS, ret,
                                    NULL, reterr),
                          reterr);
}

static ProtobufCBinaryData text(const char *s) {
        return (ProtobufCBinaryData){strlen(s), (uint8_t *) (uintptr_t) s};
}

/* ---- put ---- */

static int put(struct cairn *c, const char *key, const void *value, uint64_t bytes,
               uint64_t timeout_ns, struct cairn_error *reterr) {
        static const char operation[] = "put value";
        TRY(check_call(c, operation, key, 1, reterr));
        if (bytes > EXCHANGE_VALUE_BYTES_MAX || (bytes > 0 && !value))
                return error_set(reterr, CAIRN_ERR_API, operation, key,
                                 "the value is NULL, or its %" PRIu64
                                 " bytes are more than %" PRIu64,
                                 bytes, EXCHANGE_VALUE_BYTES_MAX);
        return unanswered(link_put_value(&c->link, key, value, bytes,
                                         deadline_of(c, timeout_ns) + ANSWER_NS, reterr),
                          reterr);
}

int cairn_exchange_put(struct cairn *c, const char *key, const void *value, uint64_t bytes,
                       uint64_t timeout_ns) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, put(c, key, value, bytes, timeout_ns, &e), &e) : CAIRN_ERR_API;
}

/* ---- get ---- */

/* One turn. *ret_present: somebody has put it, and it is in `value` unless this is too small. */
static int get_once(struct cairn *c, const char *key, uint64_t until_ns, void *value,
                    uint64_t capacity, uint64_t *ret_bytes, bool *ret_present,
                    struct cairn_error *reterr) {
        Cairn__Control__ExchangeGet get = CAIRN__CONTROL__EXCHANGE_GET__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        uint64_t now_ns = clock_now(c->clock);
        get.key = text(key);
        get.wait_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        CONTROL_SET(&e, EXCHANGE_GET, exchange_get, &get);
        TRY(ask(c, &e, CONTROL_REPLY(EXCHANGE_VALUE), until_ns, &reply, reterr));
        const ProtobufCBinaryData *found = &reply->exchange_value->value;
        *ret_present = reply->exchange_value->present;
        *ret_bytes = found->len;
        if (*ret_present && found->len && found->len <= capacity)
                memcpy(value, found->data, found->len);
        link_end_call(&c->link);
        return 0;
}

static int get(struct cairn *c, const char *key, void *value, uint64_t capacity,
               uint64_t *ret_bytes, uint64_t timeout_ns, struct cairn_error *reterr) {
        static const char operation[] = "get value";
        TRY(check_call(c, operation, key, 1, reterr));
        if (!ret_bytes || (capacity > 0 && !value))
                return error_set(reterr, CAIRN_ERR_API, operation, key,
                                 "the place for the value is NULL");
        uint64_t deadline_ns = deadline_of(c, timeout_ns);
        for (;;) {
                uint64_t turn_ns = clock_now(c->clock) + GET_TURN_NS;
                bool present;
                TRY(get_once(c, key, turn_ns < deadline_ns ? turn_ns : deadline_ns, value, capacity,
                             ret_bytes, &present, reterr));
                if (present && *ret_bytes > capacity)
                        return error_set(reterr, CAIRN_ERR_NOMEM, operation, key,
                                         "its %" PRIu64 " bytes are more than there is room for",
                                         *ret_bytes);
                if (present)
                        return 0;
                if (clock_now(c->clock) >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, operation, key,
                                         "no rank has put it within %" PRIu64 " ms",
                                         timeout_ns / NSEC_PER_MSEC);
                c->clock->sleep_ns(c->clock->context, TURN_PAUSE_NS);
        }
}

int cairn_exchange_get(struct cairn *c, const char *key, void *value, uint64_t capacity,
                       uint64_t *ret_bytes, uint64_t timeout_ns) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, get(c, key, value, capacity, ret_bytes, timeout_ns, &e), &e)
                 : CAIRN_ERR_API;
}

/* ---- list ---- */

struct listing {
        void (*visit)(const char *key, const void *value, uint64_t bytes, void *argument);
        void *argument;
        char last[EXCHANGE_KEY_BYTES_MAX + 1];
        bool more;
};

static int list_once(struct cairn *c, const char *prefix, struct listing *l, uint64_t deadline_ns,
                     struct cairn_error *reterr) {
        Cairn__Control__ExchangeList m = CAIRN__CONTROL__EXCHANGE_LIST__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        int r = 0;
        m.prefix = text(prefix);
        m.after = text(l->last);
        CONTROL_SET(&e, EXCHANGE_LIST, exchange_list, &m);
        TRY(ask(c, &e, CONTROL_REPLY(EXCHANGE_ITEMS), deadline_ns, &reply, reterr));
        const Cairn__Control__ExchangeItems *items = reply->exchange_items;
        for (size_t i = 0; i < items->n_items && r == 0; i++) {
                const Cairn__Control__Pair *p = items->items[i];
                if (p->key.len > EXCHANGE_KEY_BYTES_MAX) {
                        r = error_set(reterr, CAIRN_ERR_CORRUPT, "list values", prefix,
                                      "the agent answers with a key of %zu bytes", p->key.len);
                        break;
                }
                memcpy(l->last, p->key.data, p->key.len);
                l->last[p->key.len] = 0;
                l->visit(l->last, p->value.data, p->value.len, l->argument);
        }
        l->more = items->more && items->n_items > 0;
        link_end_call(&c->link);
        return r;
}

static int list(struct cairn *c, const char *prefix, struct listing *l, uint64_t timeout_ns,
                struct cairn_error *reterr) {
        TRY(check_call(c, "list values", prefix, 0, reterr));
        if (!l->visit)
                return error_set(reterr, CAIRN_ERR_API, "list values", prefix, "visit is NULL");
        uint64_t deadline_ns = deadline_of(c, timeout_ns);
        do
                TRY(list_once(c, prefix, l, deadline_ns, reterr));
        while (l->more);
        return 0;
}

int cairn_exchange_list(struct cairn *c, const char *prefix,
                        void (*visit)(const char *key, const void *value, uint64_t bytes,
                                      void *argument),
                        void *argument, uint64_t timeout_ns) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct listing l = {.visit = visit, .argument = argument};
        return c ? handle_end(c, list(c, prefix, &l, timeout_ns, &e), &e) : CAIRN_ERR_API;
}

/* ---- who is there ---- */

static int list_ranks(struct cairn *c, uint32_t *ranks, uint32_t capacity, uint32_t *ret_count,
                      uint64_t *ret_generation, uint64_t timeout_ns, struct cairn_error *reterr) {
        Cairn__Control__ExchangeRanksRequest request = CAIRN__CONTROL__EXCHANGE_RANKS_REQUEST__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        TRY(check_call(c, "list ranks", "", 0, reterr));
        if (!ret_count || !ret_generation || (capacity > 0 && !ranks))
                return error_set(reterr, CAIRN_ERR_API, "list ranks", c->run,
                                 "a place for the answer is NULL");
        CONTROL_SET(&e, EXCHANGE_RANKS_REQUEST, exchange_ranks_request, &request);
        TRY(ask(c, &e, CONTROL_REPLY(EXCHANGE_RANKS), deadline_of(c, timeout_ns), &reply, reterr));
        const Cairn__Control__ExchangeRanks *m = reply->exchange_ranks;
        *ret_count = (uint32_t) m->n_ranks;
        *ret_generation = m->generation;
        for (size_t i = 0; i < m->n_ranks && i < capacity; i++)
                ranks[i] = m->ranks[i];
        link_end_call(&c->link);
        return 0;
}

int cairn_exchange_ranks(struct cairn *c, uint32_t *ranks, uint32_t capacity, uint32_t *ret_count,
                         uint64_t *ret_generation, uint64_t timeout_ns) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c,
                              list_ranks(c, ranks, capacity, ret_count, ret_generation, timeout_ns,
                                         &e),
                              &e)
                 : CAIRN_ERR_API;
}
