/* SPDX-License-Identifier: Apache-2.0 */
#include "client/override.h"
#include <string.h>

#define STEP_PREFIX "step/"
#define NEAR_MAX 5   /* that are named */
#define KNOWN_MAX 12 /* where none comes near */
#define KEY_BYTES 64 /* longer ones are compared by their beginning */
#define LABEL_BYTES 80

static bool is_known(const char *key, const struct registry *r, const struct stored *s) {
        size_t prefix = sizeof STEP_PREFIX - 1;
        if (registry_description(r, key, strlen(key)) || pair_find(s->texts, s->text_count, key) ||
            strcmp(key, "step") == 0)
                return true;
        for (size_t i = 0; strncmp(key, STEP_PREFIX, prefix) == 0 && i < r->tensor_count; i++)
                if (strcmp(r->tensors[i].name, key + prefix) == 0)
                        return true;
        return false;
}

static size_t least(size_t a, size_t b) {
        return a < b ? a : b;
}

/* How many letters have to be added, left out or changed. */
static size_t distance(const char *a, const char *b) {
        size_t a_bytes = strnlen(a, KEY_BYTES), b_bytes = strnlen(b, KEY_BYTES);
        size_t row[KEY_BYTES + 1];
        for (size_t k = 0; k <= b_bytes; k++)
                row[k] = k;
        for (size_t i = 0; i < a_bytes; i++) {
                size_t before = row[0]++;
                for (size_t k = 0; k < b_bytes; k++) {
                        size_t change = before + (a[i] != b[k]);
                        before = row[k + 1];
                        row[k + 1] = least(change, least(row[k], before) + 1);
                }
        }
        return row[b_bytes];
}

/* Misspelt, or without what stands before the dot. */
static bool is_near(const char *key, const char *candidate) {
        const char *dot = strchr(candidate, '.');
        return distance(key, candidate) <= 2 || (dot && distance(key, dot + 1) <= strlen(key) / 4);
}

struct search {
        const char *key;
        struct textbuf known, near;
};

static void look_at(struct search *s, const char *candidate) {
        char label[LABEL_BYTES];
        name_label(candidate, strlen(candidate), label, sizeof label);
        textbuf_item(&s->known, "%s", label);
        if (is_near(s->key, candidate))
                textbuf_item(&s->near, "%s", label);
}

static int refuse(const char *key, const struct registry *r, const struct stored *s,
                  struct cairn_error *reterr) {
        struct search search = {.key = key};
        char label[LABEL_BYTES];
        struct textbuf names = {0};
        for (size_t i = 0; i < r->description_count; i++)
                look_at(&search, r->descriptions[i].key);
        for (size_t i = 0; i < s->text_count; i++)
                if (!registry_description(r, s->texts[i].key, strlen(s->texts[i].key)))
                        look_at(&search, s->texts[i].key);
        bool any = search.near.item_count > 0;
        textbuf_join(&names, any ? &search.near : &search.known, any ? NEAR_MAX : KNOWN_MAX);
        (void) error_set(reterr, CAIRN_ERR_API, "override", "--override",
                         "the trainer has no setting %s; %s %.300s",
                         name_label(key, strlen(key), label, sizeof label),
                         any                       ? "did you mean"
                         : search.known.item_count ? "it has"
                                                   : "it describes",
                         search.known.item_count ? textbuf_string(&names) : "none");
        textbuf_done(&search.near);
        textbuf_done(&search.known);
        textbuf_done(&names);
        return CAIRN_ERR_API;
}

int override_check(const struct pair *overrides, const _Atomic bool *asked, size_t count,
                   const struct registry *r, const struct stored *s, struct cairn_error *reterr) {
        for (size_t i = 0; i < count; i++)
                if (!asked[i] && !is_known(overrides[i].key, r, s))
                        return refuse(overrides[i].key, r, s, reterr);
        return 0;
}
