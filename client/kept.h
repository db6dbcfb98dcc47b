/* SPDX-License-Identifier: Apache-2.0
 *
 * kept.h - keys and values that this rank put into the exchange, kept for an agent that comes after
 * the present one, which has them in memory only.
 *
 *     struct kept_value *list = NULL;
 *     v = kept_new("key", bytes, count);          // NULL: no memory
 *     kept_set(&list, v);                         // takes v; replaces the one with its key
 *     if (!kept_copy(list, &copy)) ...            // for a thread without the lock
 *     kept_done(&list);
 *
 * Owner: the list owns its values. No locks of its own.
 */
#ifndef CAIRN_CLIENT_KEPT_H
#define CAIRN_CLIENT_KEPT_H

#include <stdbool.h>
#include <stddef.h>

struct kept_value {
        struct kept_value *next;
        size_t key_bytes, value_bytes;
        char bytes[]; /* key, a zero, value */
};

struct kept_value *kept_new(const char *key, const void *value, size_t bytes);
void kept_set(struct kept_value **list, struct kept_value *v);
/* False: no memory, and *ret is empty. */
bool kept_copy(const struct kept_value *list, struct kept_value **ret);
void kept_done(struct kept_value **list);

static inline const void *kept_bytes(const struct kept_value *v) {
        return v->bytes + v->key_bytes + 1;
}

#endif
