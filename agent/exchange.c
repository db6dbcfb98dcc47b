/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/exchange.h"
#include "base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define LIST_ITEMS_MAX 256
#define LIST_BYTES_MAX \
        (96 * KiB) /* of keys and values: they fit one packet with what frames them */

struct exchange_entry {
        struct exchange_entry *next;
        uint32_t rank; /* wrote it last */
        size_t key_bytes, value_bytes;
        char bytes[]; /* key, value */
};

static ProtobufCBinaryData value_of(const struct exchange_entry *e) {
        return (ProtobufCBinaryData){e->value_bytes,
                                     (uint8_t *) (uintptr_t) (e->bytes + e->key_bytes)};
}

static void answer(const struct reply_to *to, const struct exchange_entry *entry) {
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangeValue m = CAIRN__CONTROL__EXCHANGE_VALUE__INIT;
        m.present = entry != NULL;
        if (entry)
                m.value = value_of(entry);
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
        free(x->used);
        loop_timer_clear(x->loop, &x->timer);
        exchange_init(x, x->loop);
}

static int compare(const struct exchange_entry *e, const ProtobufCBinaryData *key) {
        size_t common = e->key_bytes < key->len ? e->key_bytes : key->len;
        int order = common ? memcmp(e->bytes, key->data, common) : 0;
        return order ? order : (e->key_bytes > key->len) - (e->key_bytes < key->len);
}

/* Where the key stands, or would. */
static struct exchange_entry **place(struct exchange *x, const ProtobufCBinaryData *key) {
        struct exchange_entry **p = &x->entries;
        while (*p && compare(*p, key) < 0)
                p = &(*p)->next;
        return p;
}

static int check_key(const ProtobufCBinaryData *key, size_t bytes_min, const char *operation,
                     struct cairn_error *reterr) {
        if (key->len >= bytes_min && key->len <= EXCHANGE_KEY_BYTES_MAX)
                return 0;
        return error_set(reterr, CAIRN_ERR_API, operation, "", "a key has between 1 and %d bytes",
                         EXCHANGE_KEY_BYTES_MAX);
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

static int make_use(struct exchange *x, uint32_t rank, struct cairn_error *reterr) {
        if (rank < x->used_count)
                return 0;
        size_t count = 2 * ((size_t) rank + 1);
        struct exchange_use *used = realloc(x->used, count * sizeof *used);
        if (!used)
                return error_set_errno(reterr, ENOMEM, "put value", "");
        memset(used + x->used_count, 0, (count - x->used_count) * sizeof *used);
        x->used = used;
        x->used_count = count;
        return 0;
}

/* `old`: the entry that the new one replaces, or NULL. */
static int check_room(const struct exchange *x, uint32_t rank, size_t bytes,
                      const struct exchange_entry *old, struct cairn_error *reterr) {
        bool own = old && old->rank == rank;
        size_t keys = x->used[rank].keys - own;
        size_t used = x->used[rank].bytes - (own ? old->key_bytes + old->value_bytes : 0);
        if (keys < EXCHANGE_KEYS_PER_RANK_MAX && used + bytes <= EXCHANGE_BYTES_PER_RANK_MAX)
                return 0;
        return error_set(reterr, CAIRN_ERR_NOSPACE, "put value", "",
                         "rank %" PRIu32 " has put %zu keys with %zu bytes in this generation; %d "
                         "and %" PRIu64 " are the limits",
                         rank, keys, used, EXCHANGE_KEYS_PER_RANK_MAX, EXCHANGE_BYTES_PER_RANK_MAX);
}

int exchange_put(struct exchange *x, uint32_t rank, const ProtobufCBinaryData *key,
                 const ProtobufCBinaryData *value, const struct reply_to *to,
                 struct cairn_error *reterr) {
        static const char operation[] = "put value";
        TRY(check_key(key, 1, operation, reterr));
        if (value->len > EXCHANGE_VALUE_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, "",
                                 "%zu bytes are more than %" PRIu64, value->len,
                                 EXCHANGE_VALUE_BYTES_MAX);
        struct exchange_entry **p = place(x, key), *old = *p && !compare(*p, key) ? *p : NULL;
        TRY(make_use(x, rank, reterr));
        TRY(check_room(x, rank, key->len + value->len, old, reterr));
        struct exchange_entry *entry = malloc(sizeof *entry + key->len + value->len);
        if (!entry)
                return error_set_errno(reterr, ENOMEM, operation, "");
        *entry = (struct exchange_entry){.next = old ? old->next : *p,
                                         .rank = rank,
                                         .key_bytes = key->len,
                                         .value_bytes = value->len};
        memcpy(entry->bytes, key->data, key->len);
        if (value->len)
                memcpy(entry->bytes + key->len, value->data, value->len);
        if (old) {
                x->used[old->rank].keys--;
                x->used[old->rank].bytes -= old->key_bytes + old->value_bytes;
        }
        free(old);
        *p = entry;
        x->used[rank].keys++;
        x->used[rank].bytes += entry->key_bytes + entry->value_bytes;
        wake(x, entry);
        if (to)
                server_done_reply(to);
        return 0;
}

void exchange_each(struct exchange *x, exchange_each_fn call, void *context) {
        for (const struct exchange_entry *e = x->entries; e; e = e->next) {
                const ProtobufCBinaryData key = {e->key_bytes, (uint8_t *) (uintptr_t) e->bytes};
                const ProtobufCBinaryData value = value_of(e);
                call(context, e->rank, &key, &value);
        }
}

int exchange_get(struct exchange *x, uint32_t waiter, const ProtobufCBinaryData *key,
                 uint64_t wait_ns, const struct reply_to *to, struct cairn_error *reterr) {
        TRY(check_key(key, 1, "get value", reterr));
        const struct exchange_entry *entry = *place(x, key);
        bool there = entry && compare(entry, key) == 0;
        if (there || wait_ns == 0) {
                answer(to, there ? entry : NULL);
                return 0;
        }
        uint64_t now_ns = loop_now(x->loop);
        struct exchange_waiter *w = &x->waiters[waiter];
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

int exchange_list(const struct exchange *x, const ProtobufCBinaryData *prefix,
                  const ProtobufCBinaryData *after, const struct reply_to *to,
                  struct cairn_error *reterr) {
        Cairn__Control__Pair pairs[LIST_ITEMS_MAX], *pointers[LIST_ITEMS_MAX];
        Cairn__Control__Envelope e = CAIRN__CONTROL__ENVELOPE__INIT;
        Cairn__Control__ExchangeItems m = CAIRN__CONTROL__EXCHANGE_ITEMS__INIT;
        size_t bytes = 0;
        TRY(check_key(prefix, 0, "list values", reterr));
        TRY(check_key(after, 0, "list values", reterr));
        m.items = pointers;
        for (const struct exchange_entry *entry = x->entries; entry; entry = entry->next) {
                if (entry->key_bytes < prefix->len ||
                    (prefix->len && memcmp(entry->bytes, prefix->data, prefix->len) != 0) ||
                    (after->len && compare(entry, after) <= 0))
                        continue;
                bytes += entry->key_bytes + entry->value_bytes;
                if (m.n_items > 0 && (m.n_items == LIST_ITEMS_MAX || bytes > LIST_BYTES_MAX)) {
                        m.more = true;
                        break;
                }
                cairn__control__pair__init(&pairs[m.n_items]);
                pairs[m.n_items].key = (ProtobufCBinaryData){entry->key_bytes,
                                                             (uint8_t *) (uintptr_t) entry->bytes};
                pairs[m.n_items].value = value_of(entry);
                pointers[m.n_items] = &pairs[m.n_items];
                m.n_items++;
        }
        e.body_case = CAIRN__CONTROL__ENVELOPE__BODY_EXCHANGE_ITEMS;
        e.exchange_items = &m;
        server_reply(to, &e, NULL, 0);
        return 0;
}
