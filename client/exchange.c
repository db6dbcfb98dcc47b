/* SPDX-License-Identifier: Apache-2.0
 *
 * The exchange between the ranks of a generation: three requests to the agent, which keeps the
 * values (agent/exchange.h).
 */
#include "base/cleanup.h"
#include "client/handle.h"
#include <inttypes.h>
#include <string.h>

#define PUT_TIMEOUT_NS (30 * NSEC_PER_SEC)
/* The connection is used by one call at a time: a get lets the others in between its turns. */
#define GET_TURN_NS (200 * NSEC_PER_MSEC)
#define TURN_PAUSE_NS (1 * NSEC_PER_MSEC)
#define ANSWER_NS (5 * NSEC_PER_SEC)

static_assert(CAIRN_EXCHANGE_KEY_BYTES_MAX == EXCHANGE_KEY_BYTES_MAX, "cairn.h tells it");
static_assert(CAIRN_EXCHANGE_VALUE_BYTES_MAX == EXCHANGE_VALUE_BYTES_MAX, "cairn.h tells it");

static int check_call(struct cairn *c, const char *operation, const char *key,
                      struct cairn_error *reterr) {
        TRY(handle_check(c, operation, reterr));
        if (!key || !*key || strnlen(key, EXCHANGE_KEY_BYTES_MAX + 1) > EXCHANGE_KEY_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, "",
                                 "a key has between 1 and %d bytes", EXCHANGE_KEY_BYTES_MAX);
        if (c->passive)
                return error_set(reterr, CAIRN_ERR_UNREACHABLE, operation, key,
                                 "this session was opened without an agent");
        return 0;
}

static int put(struct cairn *c, const char *key, const void *value, uint64_t bytes,
               struct cairn_error *reterr) {
        static const char operation[] = "put value";
        TRY(check_call(c, operation, key, reterr));
        if (bytes > EXCHANGE_VALUE_BYTES_MAX || (bytes > 0 && !value))
                return error_set(reterr, CAIRN_ERR_API, operation, key,
                                 "the value is NULL, or its %" PRIu64
                                 " bytes are more than %" PRIu64,
                                 bytes, EXCHANGE_VALUE_BYTES_MAX);
        return link_put_value(&c->link, key, value, bytes, clock_now(c->clock) + PUT_TIMEOUT_NS,
                              reterr);
}

int cairn_exchange_put(struct cairn *c, const char *key, const void *value, uint64_t bytes) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, put(c, key, value, bytes, &e), &e) : CAIRN_ERR_API;
}

/* One turn. *ret_present: somebody has put it, and it is in `value` unless this is too small. */
static int get_once(struct cairn *c, const char *key, uint64_t wait_ns, void *value,
                    uint64_t capacity, uint64_t *ret_bytes, bool *ret_present,
                    struct cairn_error *reterr) {
        Cairn__Control__ExchangeGet get = CAIRN__CONTROL__EXCHANGE_GET__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        get.key = (ProtobufCBinaryData){strlen(key), (uint8_t *) (uintptr_t) key};
        get.wait_ns = wait_ns;
        CONTROL_SET(&e, EXCHANGE_GET, exchange_get, &get);
        TRY(link_call(&c->link, &e, NULL, 0, CONTROL_REPLY(EXCHANGE_VALUE),
                      clock_now(c->clock) + wait_ns + ANSWER_NS, &reply, NULL, reterr));
        const ProtobufCBinaryData *found = &reply->exchange_value->value;
        *ret_present = reply->exchange_value->present;
        *ret_bytes = found->len;
        if (*ret_present && found->len && found->len <= capacity)
                memcpy(value, found->data, found->len);
        link_end_call(&c->link);
        return 0;
}

static int get(struct cairn *c, const char *key, uint64_t timeout_ns, void *value,
               uint64_t capacity, uint64_t *ret_bytes, struct cairn_error *reterr) {
        static const char operation[] = "get value";
        TRY(check_call(c, operation, key, reterr));
        if (!ret_bytes || (capacity > 0 && !value))
                return error_set(reterr, CAIRN_ERR_API, operation, key,
                                 "the place for the value is NULL");
        uint64_t now_ns = clock_now(c->clock);
        uint64_t deadline_ns = timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
        for (;;) {
                uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
                bool present;
                TRY(get_once(c, key, left_ns < GET_TURN_NS ? left_ns : GET_TURN_NS, value, capacity,
                             ret_bytes, &present, reterr));
                if (present && *ret_bytes > capacity)
                        return error_set(reterr, CAIRN_ERR_API, operation, key,
                                         "its %" PRIu64 " bytes are more than there is room for",
                                         *ret_bytes);
                now_ns = clock_now(c->clock);
                if (present)
                        return 0;
                if (now_ns >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, operation, key,
                                         "no rank has put it within %" PRIu64 " ms",
                                         timeout_ns / NSEC_PER_MSEC);
                c->clock->sleep_ns(c->clock->context, TURN_PAUSE_NS);
        }
}

int cairn_exchange_get(struct cairn *c, const char *key, uint64_t timeout_ns, void *value,
                       uint64_t capacity, uint64_t *ret_bytes) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, get(c, key, timeout_ns, value, capacity, ret_bytes, &e), &e)
                 : CAIRN_ERR_API;
}

static int list_ranks(struct cairn *c, uint32_t *ranks, uint32_t capacity, uint32_t *ret_count,
                      struct cairn_error *reterr) {
        Cairn__Control__ExchangeRanksRequest request = CAIRN__CONTROL__EXCHANGE_RANKS_REQUEST__INIT;
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT, *reply;
        TRY(check_call(c, "list ranks", "ranks", reterr));
        if (!ret_count || (capacity > 0 && !ranks))
                return error_set(reterr, CAIRN_ERR_API, "list ranks", c->run,
                                 "the place for them is NULL");
        CONTROL_SET(&e, EXCHANGE_RANKS_REQUEST, exchange_ranks_request, &request);
        TRY(link_call(&c->link, &e, NULL, 0, CONTROL_REPLY(EXCHANGE_RANKS),
                      clock_now(c->clock) + PUT_TIMEOUT_NS, &reply, NULL, reterr));
        const Cairn__Control__ExchangeRanks *m = reply->exchange_ranks;
        *ret_count = (uint32_t) m->n_ranks;
        for (size_t i = 0; i < m->n_ranks && i < capacity; i++)
                ranks[i] = m->ranks[i];
        link_end_call(&c->link);
        return 0;
}

int cairn_exchange_ranks(struct cairn *c, uint32_t *ranks, uint32_t capacity, uint32_t *ret_count) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        return c ? handle_end(c, list_ranks(c, ranks, capacity, ret_count, &e), &e) : CAIRN_ERR_API;
}
