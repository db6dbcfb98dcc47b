/* SPDX-License-Identifier: Apache-2.0
 *
 * print_json.h - one JSON object on standard output. Takes the reference; returns an exit status
 * (70 where the object could not be built: out of memory).
 */
#ifndef CAIRN_TOOLS_PRINT_JSON_H
#define CAIRN_TOOLS_PRINT_JSON_H

#include <jansson.h>

int print_json(json_t *object);
/* JSON string of bytes that need not be UTF-8: escaped like text for a terminal. */
json_t *json_text(const void *bytes, size_t count);

#endif
