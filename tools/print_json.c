/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/print_json.h"

#include "base/cleanup.h"
#include "base/log.h"
#include <stdio.h>

int print_json(json_t *object) {
        int r = object ? json_dumpf(object, stdout, JSON_INDENT(2)) : -1;
        json_decref(object);
        putchar('\n');
        return r == 0 && fflush(stdout) == 0 ? 0 : status_exit_code(CAIRN_ERR_NOMEM);
}

json_t *json_text(const void *bytes, size_t count) {
        json_t *plain = json_stringn(bytes, count);
        if (plain)
                return plain;
        size_t escaped_bytes = 4 * count + 1;
        _cleanup_free_ char *escaped = malloc(escaped_bytes);
        return escaped ? json_string(text_escape(escaped, escaped_bytes, bytes, count)) : NULL;
}
