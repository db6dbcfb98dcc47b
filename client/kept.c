/* SPDX-License-Identifier: Apache-2.0 */
#include "client/kept.h"
#include <stdlib.h>
#include <string.h>

struct kept_value *kept_new(const char *key, const void *value, size_t bytes) {
        size_t key_bytes = strlen(key);
        struct kept_value *v = malloc(sizeof *v + key_bytes + 1 + bytes);
        if (!v)
                return NULL;
        *v = (struct kept_value){.key_bytes = key_bytes, .value_bytes = bytes};
        memcpy(v->bytes, key, key_bytes + 1);
        if (bytes)
                memcpy(v->bytes + key_bytes + 1, value, bytes);
        return v;
}

void kept_set(struct kept_value **list, struct kept_value *v) {
        while (*list && strcmp((*list)->bytes, v->bytes) != 0)
                list = &(*list)->next;
        struct kept_value *old = *list;
        v->next = old ? old->next : NULL;
        *list = v;
        free(old);
}

bool kept_copy(const struct kept_value *list, struct kept_value **ret) {
        struct kept_value **end = ret;
        for (*ret = NULL; list; list = list->next) {
                *end = kept_new(list->bytes, kept_bytes(list), list->value_bytes);
                if (!*end) {
                        kept_done(ret);
                        return false;
                }
                end = &(*end)->next;
        }
        return true;
}

void kept_done(struct kept_value **list) {
        while (*list) {
                struct kept_value *v = *list;
                *list = v->next;
                free(v);
        }
}
