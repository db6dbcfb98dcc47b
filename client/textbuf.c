/* SPDX-License-Identifier: Apache-2.0 */
#include "client/textbuf.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void textbuf_done(struct textbuf *t) {
        free(t->data);
        *t = (struct textbuf){0};
}

void textbuf_clear(struct textbuf *t) {
        t->length = 0;
        t->item_count = 0;
        if (t->data)
                t->data[0] = 0;
}

const char *textbuf_string(const struct textbuf *t) {
        return t->data ? t->data : "";
}

/* Room for `bytes` more and the terminator. */
static bool textbuf_reserve(struct textbuf *t, size_t bytes) {
        if (bytes < t->capacity - t->length)
                return true;
        if (bytes > SIZE_MAX / 4 || t->length > SIZE_MAX / 4)
                return false;
        size_t capacity = (t->length + bytes + 64) * 2;
        char *data = realloc(t->data, capacity);
        if (!data)
                return false;
        data[t->length] = 0;
        t->data = data;
        t->capacity = capacity;
        return true;
}

static void textbuf_append(struct textbuf *t, const char *s, size_t bytes) {
        if (!textbuf_reserve(t, bytes))
                return;
        memcpy(t->data + t->length, s, bytes);
        t->length += bytes;
        t->data[t->length] = 0;
}

__attribute__((format(printf, 2, 0))) static void textbuf_vadd(struct textbuf *t,
                                                               const char *format,
                                                               va_list arguments) {
        va_list again;
        va_copy(again, arguments);
        int needed = vsnprintf(NULL, 0, format, again);
        va_end(again);
        if (needed < 0 || !textbuf_reserve(t, (size_t) needed))
                return;
        (void) vsnprintf(t->data + t->length, (size_t) needed + 1, format, arguments);
        t->length += (size_t) needed;
}

void textbuf_add(struct textbuf *t, const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        textbuf_vadd(t, format, arguments);
        va_end(arguments);
}

void textbuf_item(struct textbuf *t, const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        textbuf_vadd(t, format, arguments);
        va_end(arguments);
        textbuf_append(t, "\n", 1);
        t->item_count++;
}

/* Bytes of the UTF-8 sequence at s, 0 if it is none. */
static size_t utf8_sequence(const unsigned char *s, size_t bytes) {
        size_t n = s[0] < 0x80   ? 1
                   : s[0] < 0xc2 ? 0
                   : s[0] < 0xe0 ? 2
                   : s[0] < 0xf0 ? 3
                   : s[0] < 0xf5 ? 4
                                 : 0;
        if (n == 0 || n > bytes)
                return 0;
        for (size_t i = 1; i < n; i++)
                if ((s[i] & 0xc0) != 0x80)
                        return 0;
        return n;
}

void textbuf_json(struct textbuf *t, const char *s, size_t bytes) {
        textbuf_append(t, "\"", 1);
        for (size_t i = 0; i < bytes;) {
                unsigned char byte = (unsigned char) s[i];
                size_t n = utf8_sequence((const unsigned char *) s + i, bytes - i);
                if (byte == '"' || byte == '\\')
                        textbuf_add(t, "\\%c", byte);
                else if (byte < 0x20 || n == 0)
                        textbuf_add(t, "\\u%04x", byte);
                else
                        textbuf_append(t, s + i, n);
                i += n ? n : 1;
        }
        textbuf_append(t, "\"", 1);
}

void textbuf_json_items(struct textbuf *t, const struct textbuf *items) {
        const char *s = textbuf_string(items);
        textbuf_append(t, "[", 1);
        for (size_t i = 0; *s; i++) {
                size_t bytes = strcspn(s, "\n");
                if (i > 0)
                        textbuf_append(t, ",", 1);
                textbuf_json(t, s, bytes);
                s += bytes + (s[bytes] == '\n');
        }
        textbuf_append(t, "]", 1);
}

void textbuf_join(struct textbuf *t, const struct textbuf *items, size_t count_max) {
        const char *s = textbuf_string(items);
        size_t i = 0;
        for (; *s && i < count_max; i++) {
                size_t bytes = strcspn(s, "\n");
                if (i > 0)
                        textbuf_append(t, "; ", 2);
                textbuf_append(t, s, bytes);
                s += bytes + (s[bytes] == '\n');
        }
        if (items->item_count > i)
                textbuf_add(t, "; and %zu more", items->item_count - i);
}
