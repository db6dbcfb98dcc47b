/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser of the command line: lines are arguments. What it says holds no control characters.
 */
#include "base/limits.h"
#include "tests/fuzz/fuzz.h"
#include "tools/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARGUMENTS_MAX = 100, POSITIONALS_MAX = 2 };

struct values {
        bool flag, given;
        const char *string;
        uint64_t count, duration;
        int64_t step;
        struct option_list list;
};

static int split(char *text, char **argv) {
        int argc = 0;
        argv[argc++] = (char *) (uintptr_t) "fuzz";
        for (char *line = text; line && argc < ARGUMENTS_MAX;) {
                char *end = strchr(line, '\n');
                if (end)
                        *end++ = '\0';
                argv[argc++] = line;
                line = end;
        }
        argv[argc] = NULL;
        return argc;
}

static int parse(char *text, struct values *v) {
        const struct command self = {.name = "fuzz", .arguments = "A [B]", .summary = "Nothing."};
        const struct option_row rows[] = {
                {"--flag", NULL, OPTION_FLAG, &v->flag, "a flag", NULL},
                {"--string", "TEXT", OPTION_STRING, &v->string, "a text", &v->given},
                {"--count", "N", OPTION_COUNT, &v->count, "a number", NULL},
                {"--step", "N", OPTION_STEP, &v->step, "a step", NULL},
                {"--time", "T", OPTION_DURATION, &v->duration, "a time", NULL},
                {"--list", "K=V", OPTION_LIST, &v->list, "again and again", NULL}};
        const char *positionals[POSITIONALS_MAX];
        char *argv[ARGUMENTS_MAX + 1];
        size_t count = 0;
        int argc = split(text, argv), rest = 0;

        int r = options_parse(&self, OPTION_ROWS(rows), argc, argv, positionals, POSITIONALS_MAX,
                              &count, argc % 2 ? &rest : NULL);
        FUZZ_CHECK(r >= -1 && r <= 1);
        if (r == 0) {
                FUZZ_CHECK(count <= POSITIONALS_MAX && rest <= argc);
                FUZZ_CHECK(v->step >= 0 && v->step <= STEP_MAX);
                FUZZ_CHECK(v->list.count <= 64 && v->given == (v->string != NULL));
        }
        return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct values v = {0};
        char *text = malloc(count + 1), *said = NULL;
        size_t said_bytes = 0;
        FILE *out = stdout, *err = stderr, *memory = open_memstream(&said, &said_bytes);

        FUZZ_CHECK(text && memory);
        if (count)
                memcpy(text, bytes, count);
        text[count] = '\0';
        stdout = stderr = memory;
        int r = parse(text, &v);
        stdout = out;
        stderr = err;
        (void) fclose(memory);
        FUZZ_CHECK((r == 0) == (said_bytes == 0));
        for (size_t i = 0; i < said_bytes; i++)
                FUZZ_CHECK((unsigned char) said[i] >= 0x20 || said[i] == '\n');
        free(said);
        free(text);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_plain(bytes, count, max, seed);
}
