/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/exchange.h"
#include "base/log.h"
#include <errno.h>
#include <inttypes.h>

struct exchange_entry {
        struct exchange_entry *next;
        size_t key_bytes, value_bytes;
        char bytes[]; /* key, value */
};

static void answer(const struct reply_to *to, const struct exchange_entry *entry) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangeValue m = CAIRN__CONTROL__EXCHANGE_VALUE__INIT;
        m.present = entry != NULL;
        if (entry)
                m.value = (ProtobufCBinaryData){
                        entry->value_bytes,
                        (uint8_t *) (uintptr_t) (entry->bytes + entry->key_bytes)};
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_VALUE;
        e.exchange_value = &m;
        server_reply(to, &e, NULL, 0);
}

static void timer_set(struct exchange *x) {
        uint64_t first = UINT64_MAX;
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++)
                if (x->waiters[i].to.connection && x->waiters[i].deadline_ns < first)
                        first = x->waiters[i].deadline_ns;
        if (first == UINT64_MAX)
                loop_timer_clear(x->loop, &x->timer);
        else
                loop_timer_set(x->loop, &x->timer, first);
}

static void late(void *context) {
        struct exchange *x = context;
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++) {
                struct exchange_waiter *w = &x->waiters[i];
                if (!w->to.connection || loop_now(x->loop) < w->deadline_ns)
                        continue;
                answer(&w->to, NULL);
                w->to.connection = NULL;
        }
        timer_set(x);
}

void exchange_init(struct exchange *x, struct loop *loop) {
        *x = (struct exchange){.loop = loop};
        loop_timer_init(&x->timer, late, x);
}

void exchange_clear(struct exchange *x) {
        while (x->entries) {
                struct exchange_entry *entry = x->entries;
                x->entries = entry->next;
                free(entry);
        }
        loop_timer_clear(x->loop, &x->timer);
        exchange_init(x, x->loop);
}

static const struct exchange_entry *find(const struct exchange *x, const void *key, size_t bytes) {
        for (const struct exchange_entry *e = x->entries; e; e = e->next)
                if (e->key_bytes == bytes && memcmp(e->bytes, key, bytes) == 0)
                        return e;
        return NULL;
}

static int check_key(const ProtobufCBinaryData *key, const char *operation, char *label,
                     size_t label_bytes, struct cairn_error *reterr) {
        if (key->len == 0 || key->len > EXCHANGE_KEY_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, "",
                                 "a key has between 1 and %d bytes", EXCHANGE_KEY_BYTES_MAX);
        (void) text_escape(label, label_bytes, (const char *) key->data, key->len);
        return 0;
}

static void wake(struct exchange *x, const struct exchange_entry *entry) {
        for (size_t i = 0; i < SESSION_COUNT_MAX; i++) {
                struct exchange_waiter *w = &x->waiters[i];
                if (!w->to.connection || w->key_bytes != entry->key_bytes ||
                    memcmp(w->key, entry->bytes, w->key_bytes) != 0)
                        continue;
                answer(&w->to, entry);
                w->to.connection = NULL;
        }
        timer_set(x);
}

static int check_room(const struct exchange *x, uint32_t rank, size_t bytes, const char *label,
                      struct cairn_error *reterr) {
        if (x->used[rank].keys < EXCHANGE_KEYS_PER_RANK_MAX &&
            x->used[rank].bytes + bytes <= EXCHANGE_BYTES_PER_RANK_MAX)
                return 0;
        return error_set(reterr, CAIRN_ERR_NOSPACE, "put value", label,
                         "rank %u has put %zu keys with %zu bytes in this generation; %d and "
                         "%" PRIu64 " are the limits",
                         rank, x->used[rank].keys, x->used[rank].bytes, EXCHANGE_KEYS_PER_RANK_MAX,
                         EXCHANGE_BYTES_PER_RANK_MAX);
}

int exchange_put(struct exchange *x, uint32_t rank, const ProtobufCBinaryData *key,
                 const ProtobufCBinaryData *value, const struct reply_to *to,
                 struct cairn_error *reterr) {
        static const char operation[] = "put value";
        char label[4 * EXCHANGE_KEY_BYTES_MAX + 8];
        TRY(check_key(key, operation, label, sizeof label, reterr));
        if (value->len > EXCHANGE_VALUE_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, label,
                                 "%zu bytes are more than %" PRIu64, value->len,
                                 EXCHANGE_VALUE_BYTES_MAX);
        const struct exchange_entry *there = find(x, key->data, key->len);
        if (there &&
            (there->value_bytes != value->len ||
             (value->len && memcmp(there->bytes + key->len, value->data, value->len) != 0)))
                return error_set(reterr, CAIRN_ERR_EXISTS, operation, label,
                                 "it has another value already; a key is written once in a "
                                 "generation");
        if (!there) {
                size_t bytes = key->len + value->len;
                TRY(check_room(x, rank, bytes, label, reterr));
                struct exchange_entry *entry = malloc(sizeof *entry + bytes);
                if (!entry)
                        return error_set_errno(reterr, ENOMEM, operation, label);
                *entry = (struct exchange_entry){
                        .next = x->entries, .key_bytes = key->len, .value_bytes = value->len};
                memcpy(entry->bytes, key->data, key->len);
                if (value->len)
                        memcpy(entry->bytes + key->len, value->data, value->len);
                x->entries = entry;
                x->used[rank].keys++;
                x->used[rank].bytes += bytes;
                wake(x, entry);
        }
        server_done_reply(to);
        return 0;
}

int exchange_get(struct exchange *x, uint32_t rank, const ProtobufCBinaryData *key,
                 uint64_t wait_ns, const struct reply_to *to, struct cairn_error *reterr) {
        char label[4 * EXCHANGE_KEY_BYTES_MAX + 8];
        TRY(check_key(key, "get value", label, sizeof label, reterr));
        const struct exchange_entry *entry = find(x, key->data, key->len);
        if (entry || wait_ns == 0) {
                answer(to, entry);
                return 0;
        }
        uint64_t now_ns = loop_now(x->loop);
        struct exchange_waiter *w = &x->waiters[rank];
        if (w->to.connection)
                answer(&w->to, NULL);
        *w = (struct exchange_waiter){
                .to = *to,
                .key_bytes = key->len,
                .deadline_ns = wait_ns < UINT64_MAX - now_ns ? now_ns + wait_ns : UINT64_MAX - 1};
        memcpy(w->key, key->data, key->len);
        timer_set(x);
        return 0;
}
