/* SPDX-License-Identifier: Apache-2.0
 *
 * json PATH - prints what lies at a path of the JSON value on standard input, one line a value;
 * exit 1 if it is not JSON or there is nothing. A path is names, array indices or * with dots
 * between; "#" is a count; "a&b" at the end prints both, with a blank between; an empty path only
 * checks the syntax.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t printed;

static void print_value(const json_t *v) {
        if (json_is_string(v)) {
                fputs(json_string_value(v), stdout);
                return;
        }
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
        if (text)
                fputs(text, stdout);
        free(text);
}

static void visit(json_t *v, const char *path);

static void print_fields(const json_t *v, const char *names) {
        char name[256];
        const char *separator = "";
        while (*names) {
                size_t n = strcspn(names, "&");
                (void) snprintf(name, sizeof name, "%.*s", (int) n, names);
                const json_t *field = json_object_get(v, name);
                fputs(separator, stdout);
                print_value(field ? field : json_null());
                separator = " ";
                names += n + (names[n] == '&');
        }
        putchar('\n');
        printed++;
}

static void visit_all(json_t *v, const char *rest) {
        size_t index;
        const char *key;
        json_t *item;
        if (json_is_array(v))
                json_array_foreach(v, index, item) visit(item, rest);
        else
                json_object_foreach(v, key, item) visit(item, rest);
}

static void visit(json_t *v, const char *path) {
        char name[256];
        size_t n = strcspn(path, ".");
        const char *rest = path + n + (path[n] == '.');
        (void) snprintf(name, sizeof name, "%.*s", (int) n, path);
        if (!*path) {
                print_value(v);
                putchar('\n');
                printed++;
        } else if (strcmp(name, "#") == 0) {
                printf("%zu\n", json_is_array(v) ? json_array_size(v) : json_object_size(v));
                printed++;
        } else if (strcmp(name, "*") == 0) {
                visit_all(v, rest);
        } else if (strchr(name, '&')) {
                print_fields(v, name);
        } else {
                json_t *next = json_is_array(v) ? json_array_get(v, strtoul(name, NULL, 10))
                                                : json_object_get(v, name);
                if (next)
                        visit(next, rest);
        }
}

int main(int argc, char **argv) {
        json_error_t error;
        json_t *root = json_loadf(stdin, JSON_DECODE_ANY, &error);
        if (!root || argc != 2) {
                fprintf(stderr, "json: %s\n", root ? "which path?" : error.text);
                return 1;
        }
        if (*argv[1])
                visit(root, argv[1]);
        json_decref(root);
        return printed > 0 || !*argv[1] ? 0 : 1;
}
