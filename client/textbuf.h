/* SPDX-License-Identifier: Apache-2.0
 *
 * textbuf.h - text that grows: error lists and reports. Zeroed is empty; textbuf_done frees. When
 * memory runs out the text stops growing and stays terminated. Owned by the caller, one thread at a
 * time.
 */
#ifndef CAIRN_CLIENT_TEXTBUF_H
#define CAIRN_CLIENT_TEXTBUF_H

#include <stddef.h>

struct textbuf {
        char *data; /* NULL while empty */
        size_t length, capacity;
        size_t item_count; /* lines added by textbuf_item */
};

void textbuf_done(struct textbuf *t);
void textbuf_clear(struct textbuf *t); /* keeps the memory */
const char *textbuf_string(const struct textbuf *t);
void textbuf_add(struct textbuf *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same, ended by a newline and counted. */
void textbuf_item(struct textbuf *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes; bytes that are not UTF-8 appear as U+00XX. */
void textbuf_json(struct textbuf *t, const char *s, size_t bytes);
/* The items as a JSON array of strings. */
void textbuf_json_items(struct textbuf *t, const struct textbuf *items);
/* At most `count_max` items, separated by "; ", then "and N more". */
void textbuf_join(struct textbuf *t, const struct textbuf *items, size_t count_max);

#endif
