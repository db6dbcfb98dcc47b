/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/print_json.h"

#include "base/cleanup.h"
#include "base/log.h"
#include <stdio.h>
#include <string.h>

/* jansson escapes what JSON demands; a terminal minds DEL and, with ASCII alone, nothing else. */
static int print_part(const char *text, size_t bytes, void *target) {
        while (bytes > 0) {
                const char *del = memchr(text, 0x7f, bytes);
                size_t plain = del ? (size_t) (del - text) : bytes;
                if (fwrite(text, 1, plain, target) != plain)
                        return -1;
                if (!del)
                        break;
                if (fputs("\\u007f", target) < 0)
                        return -1;
                text += plain + 1;
                bytes -= plain + 1;
        }
        return 0;
}

int print_json(json_t *object) {
        int r = object ? json_dump_callback(object, print_part, stdout,
                                            JSON_INDENT(2) | JSON_ENSURE_ASCII)
                       : -1;
        json_decref(object);
        putchar('\n');
        /* That standard output could not be written is for main to say. */
        return r == 0 || ferror(stdout) ? 0 : status_exit_code(CAIRN_ERR_NOMEM);
}

json_t *json_text(const void *bytes, size_t count) {
        json_t *plain = json_stringn(bytes, count);
        if (plain)
                return plain;
        size_t escaped_bytes = 4 * count + 1;
        _cleanup_free_ char *escaped = malloc(escaped_bytes);
        return escaped ? json_string(text_escape(escaped, escaped_bytes, bytes, count)) : NULL;
}
