/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warning", "info", "debug"};

static enum log_level log_level_max = LOG_LEVEL_INFO;
static char log_program[32] = "cairn";

void log_init(const char *program, enum log_level level) {
        const char *wanted = getenv("CAIRN_LOG");

        log_level_max = level;
        (void) snprintf(log_program, sizeof log_program, "%s", program);
        for (size_t i = 0; wanted && i < sizeof level_names / sizeof *level_names; i++)
                if (strcmp(wanted, level_names[i]) == 0)
                        log_level_max = (enum log_level) i;
}

static void write_line(const char *line, size_t bytes) {
        /* Nobody can be told about a log that cannot be written. */
        while (write(STDERR_FILENO, line, bytes) < 0 && errno == EINTR)
                ;
}

void log_event(enum log_level level, const char *format, ...) {
        char event[2048], line[4096];
        int saved_errno = errno;
        struct timespec now;
        struct tm utc;
        va_list arguments;

        if (level > log_level_max)
                return;
        va_start(arguments, format);
        int event_bytes = vsnprintf(event, sizeof event, format, arguments);
        va_end(arguments);
        if (event_bytes < 0)
                return;
        if ((size_t) event_bytes >= sizeof event)
                memcpy(event + sizeof event - 4, "...", 4);

        (void) clock_gettime(CLOCK_REALTIME, &now);
        (void) gmtime_r(&now.tv_sec, &utc);
        size_t used = strftime(line, sizeof line, "time=%Y-%m-%dT%H:%M:%S", &utc);
        used += (size_t) snprintf(line + used, sizeof line - used, ".%03ldZ level=%s program=%s ",
                                  now.tv_nsec / 1000000, level_names[level], log_program);
        /* A forgotten escape must not let a name write a second line. */
        (void) text_escape_control(line + used, sizeof line - used - 1, event, strlen(event));
        used += strlen(line + used);
        line[used++] = '\n';
        write_line(line, used);
        errno = saved_errno;
}

void log_error(enum log_level level, const char *what, const struct cairn_error *e) {
        char sentence[1024], what_escaped[128], sentence_escaped[1024];

        (void) error_format(e, sentence, sizeof sentence);
        log_event(
                level, "what=\"%s\" status=%s error=\"%s\"",
                text_escape(what_escaped, sizeof what_escaped, what, strlen(what)),
                status_name(e->status),
                text_escape(sentence_escaped, sizeof sentence_escaped, sentence, strlen(sentence)));
}

/* Bytes of the valid UTF-8 character at the start of s, 0 if there is none. */
static size_t decode_utf8(const unsigned char *s, size_t bytes, uint32_t *ret_code) {
        static const uint32_t code_min[] = {0, 0, 0x80, 0x800, 0x10000};
        size_t length = s[0] < 0x80           ? 1
                        : (s[0] >> 5) == 0x06 ? 2
                        : (s[0] >> 4) == 0x0e ? 3
                        : (s[0] >> 3) == 0x1e ? 4
                                              : 0;
        uint32_t code = length <= 1 ? s[0] : s[0] & (0x7fu >> length);

        if (length == 0 || length > bytes)
                return 0;
        for (size_t i = 1; i < length; i++) {
                if ((s[i] & 0xc0) != 0x80)
                        return 0;
                code = code << 6 | (s[i] & 0x3f);
        }
        if (code < code_min[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
                return 0;
        *ret_code = code;
        return length;
}

/* C0, DEL, C1, separators, and the marks that turn the reading direction of what follows. */
static bool is_control(uint32_t code) {
        return code < 0x20 || (code >= 0x7f && code <= 0x9f) || code == 0x200e || code == 0x200f ||
               (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

static const char *escape(char *target, size_t target_bytes, const char *source,
                          size_t source_bytes, bool quoting) {
        const unsigned char *s = (const unsigned char *) source;
        size_t used = 0, used_with_dots = 0; /* the second: "..." fits behind it */

        if (target_bytes == 0)
                return target;
        for (size_t i = 0; i < source_bytes;) {
                char piece[17];
                uint32_t code = 0;
                size_t length = decode_utf8(s + i, source_bytes - i, &code), piece_bytes = 0;
                bool plain = length > 0 && !is_control(code) &&
                             !(quoting && (code == '"' || code == '\\'));

                if (length == 0)
                        length = 1;
                for (size_t k = 0; k < length; k++)
                        piece_bytes +=
                                (size_t) snprintf(piece + piece_bytes, sizeof piece - piece_bytes,
                                                  plain ? "%c" : "\\x%02x", s[i + k]);
                if (used + piece_bytes >= target_bytes) {
                        size_t dots = target_bytes > 3 ? 3 : target_bytes - 1;
                        memcpy(target + used_with_dots, "...", dots);
                        target[used_with_dots + dots] = '\0';
                        return target;
                }
                memcpy(target + used, piece, piece_bytes);
                used += piece_bytes;
                if (used + 3 < target_bytes)
                        used_with_dots = used;
                i += length;
        }
        target[used] = '\0';
        return target;
}

const char *text_escape(char *target, size_t target_bytes, const char *source,
                        size_t source_bytes) {
        return escape(target, target_bytes, source, source_bytes, true);
}

const char *text_escape_control(char *target, size_t target_bytes, const char *source,
                                size_t source_bytes) {
        return escape(target, target_bytes, source, source_bytes, false);
}

bool text_is_plain(const char *source, size_t source_bytes) {
        for (size_t i = 0; i < source_bytes;) {
                uint32_t code;
                size_t length =
                        decode_utf8((const unsigned char *) source + i, source_bytes - i, &code);
                if (length == 0 || is_control(code))
                        return false;
                i += length;
        }
        return true;
}
