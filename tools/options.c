/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/command.h"

#include "base/bytes.h"
#include "base/limits.h"
#include "base/log.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPTION_TEXT_BYTES = 512 };

int command_fail(const struct command *self, const struct cairn_error *e) {
        char text[1024];
        fprintf(stderr, "cairn %s: %s\n", self->name, error_format(e, text, sizeof text));
        return status_exit_code(e->status);
}

int command_fail_text(const struct command *self, int status, const char *format, ...) {
        char text[OPTION_TEXT_BYTES], escaped[2 * OPTION_TEXT_BYTES];
        va_list arguments;
        va_start(arguments, format);
        (void) vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        fprintf(stderr, "cairn %s: %s\n", self->name,
                text_escape_control(escaped, sizeof escaped, text, strlen(text)));
        return status_exit_code(status);
}

bool parse_count(const char *text, uint64_t *ret) {
        if (*text < '0' || *text > '9')
                return false; /* strtoull takes signs and blanks */
        char *end;
        errno = 0;
        unsigned long long value = strtoull(text, &end, 10);
        if (errno || *end)
                return false;
        *ret = value;
        return true;
}

bool parse_duration(const char *text, uint64_t *ret_ns) {
        static const struct {
                const char *unit;
                double seconds;
        } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"m", 60}, {"min", 60}, {"h", 3600}};
        if (!((*text >= '0' && *text <= '9') || *text == '.'))
                return false;
        char *end;
        double value = strtod(text, &end);
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
                if (strcmp(end, units[i].unit) != 0)
                        continue;
                double ns = value * units[i].seconds * 1e9;
                if (!(ns >= 0 && ns < 1e18))
                        return false;
                *ret_ns = (uint64_t) ns;
                return true;
        }
        return false;
}

static void print_usage(const struct command *self, const struct option_row *rows,
                        size_t row_count) {
        printf("usage: cairn %s %s\n\n%s\n", self->name, self->arguments, self->summary);
        if (row_count > 0)
                puts("\noptions:");
        for (size_t i = 0; i < row_count; i++) {
                char left[64];
                (void) snprintf(left, sizeof left, "%s%s%s", rows[i].name,
                                rows[i].argument ? " " : "",
                                rows[i].argument ? rows[i].argument : "");
                printf("  %-26s %s\n", left, rows[i].help);
        }
}

/* How many letters differ, roughly: enough to propose what was meant. */
static size_t distance(const char *a, const char *b) {
        size_t different = 0, i = 0;
        for (; a[i] && b[i]; i++)
                different += a[i] != b[i];
        return different + strlen(a + i) + strlen(b + i);
}

static int unknown_option(const struct command *self, const struct option_row *rows,
                          size_t row_count, const char *given) {
        const char *nearest = NULL;
        size_t nearest_distance = 3;
        for (size_t i = 0; i < row_count; i++) {
                size_t d = distance(rows[i].name, given);
                if (d < nearest_distance) {
                        nearest = rows[i].name;
                        nearest_distance = d;
                }
        }
        char name[128];
        text_escape(name, sizeof name, given, strlen(given));
        fprintf(stderr, "cairn %s: unknown option %s%s%s; see `cairn %s --help`\n", self->name,
                name, nearest ? ", did you mean " : "", nearest ? nearest : "", self->name);
        return -1;
}

static int bad_value(const struct command *self, const struct option_row *row, const char *value,
                     const char *wanted) {
        char escaped[128];
        text_escape(escaped, sizeof escaped, value, strlen(value));
        fprintf(stderr, "cairn %s: %s takes %s, not '%s'\n", self->name, row->name, wanted,
                escaped);
        return -1;
}

static int store_value(const struct command *self, const struct option_row *row,
                       const char *value) {
        uint64_t number;
        struct option_list *list;
        switch (row->kind) {
        case OPTION_FLAG:
                *(bool *) row->target = true;
                break;
        case OPTION_STRING:
                if (!*value) /* an unset variable: nobody means the default by that */
                        return bad_value(self, row, value, "a value");
                *(const char **) row->target = value;
                break;
        case OPTION_COUNT:
                if (!parse_count(value, row->target))
                        return bad_value(self, row, value, "a whole number");
                break;
        case OPTION_STEP:
                if (!parse_count(value, &number) || number > STEP_MAX)
                        return bad_value(self, row, value, "a step number");
                *(int64_t *) row->target = (int64_t) number;
                break;
        case OPTION_DURATION:
                if (!parse_duration(value, row->target))
                        return bad_value(self, row, value, "a time like 30s, 10m or 2h");
                break;
        case OPTION_LIST:
                list = row->target;
                if (list->count == sizeof list->items / sizeof list->items[0])
                        return bad_value(self, row, value, "at most 64 values");
                list->items[list->count++] = value;
                break;
        }
        if (row->given)
                *row->given = true;
        return 0;
}

/* Handles argv[*i], which starts with "--"; moves *i over its value. */
static int parse_option(const struct command *self, const struct option_row *rows, size_t row_count,
                        int argc, char **argv, int *i) {
        const char *argument = argv[*i], *equals = strchr(argument, '=');
        size_t name_bytes = equals ? (size_t) (equals - argument) : strlen(argument);
        for (size_t k = 0; k < row_count; k++) {
                const struct option_row *row = &rows[k];
                if (strlen(row->name) != name_bytes || memcmp(row->name, argument, name_bytes) != 0)
                        continue;
                if (row->kind == OPTION_FLAG) {
                        if (equals)
                                return bad_value(self, row, equals + 1, "no value");
                        return store_value(self, row, NULL);
                }
                if (equals)
                        return store_value(self, row, equals + 1);
                if (*i + 1 >= argc || strcmp(argv[*i + 1], "--") == 0) {
                        fprintf(stderr, "cairn %s: %s needs a value (%s)\n", self->name, row->name,
                                row->argument);
                        return -1;
                }
                return store_value(self, row, argv[++*i]);
        }
        return unknown_option(self, rows, row_count, argument);
}

int options_parse(const struct command *self, const struct option_row *rows, size_t row_count,
                  int argc, char **argv, const char **positionals, size_t positional_max,
                  size_t *ret_positional_count, int *ret_rest) {
        size_t count = 0;
        int i = 1;
        for (; i < argc; i++) {
                const char *argument = argv[i];
                if (strcmp(argument, "--") == 0) {
                        i++;
                        break;
                }
                if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
                        print_usage(self, rows, row_count);
                        return 1;
                }
                if (argument[0] == '-' && argument[1] != '\0') {
                        if (parse_option(self, rows, row_count, argc, argv, &i) < 0)
                                return -1;
                        continue;
                }
                if (count == positional_max) {
                        char escaped[128];
                        text_escape(escaped, sizeof escaped, argument, strlen(argument));
                        fprintf(stderr,
                                "cairn %s: one argument too many: '%s'; usage: cairn %s %s\n",
                                self->name, escaped, self->name, self->arguments);
                        return -1;
                }
                positionals[count++] = argument;
        }
        *ret_positional_count = count;
        if (ret_rest)
                *ret_rest = i;
        else if (i < argc) {
                fprintf(stderr, "cairn %s: nothing may follow '--'; usage: cairn %s %s\n",
                        self->name, self->name, self->arguments);
                return -1;
        }
        return 0;
}
