/* SPDX-License-Identifier: Apache-2.0
 *
 * Names found in a store, and everything else that is one line of text: what is parsed is made
 * again to the same bytes; what is printed moves no terminal.
 */
#include "base/log.h"
#include "format/dtype.h"
#include "format/names.h"
#include "tests/fuzz/fuzz.h"
#include "tools/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_checkpoint(const char *text) {
        char again[NAME_BYTES], mark[NAME_BYTES];
        uint64_t generation;
        int64_t step;

        if (!name_parse_checkpoint(text, &step, &generation))
                return;
        FUZZ_CHECK(step >= 0 && step <= STEP_MAX);
        name_checkpoint(again, step, generation);
        FUZZ_CHECK(strcmp(text, again) == 0);
        name_pin(mark, again);
        name_tag(mark, again);
}

static void check_path_names(const char *text) {
        char again[NAME_BYTES];
        uint64_t generation;
        uint32_t attempt;
        bool start;

        check_checkpoint(text);
        if (name_parse_generation(text, &generation, &start)) {
                if (start)
                        name_generation_start(again, generation);
                else
                        name_generation(again, generation);
                FUZZ_CHECK(strcmp(text, again) == 0);
        }
        if (name_parse_pending(text, &generation, &attempt)) {
                name_pending(again, generation, attempt);
                FUZZ_CHECK(strcmp(text, again) == 0);
        }
        if (name_parse_stale(text, &generation, &attempt))
                FUZZ_CHECK(strlen(text) < NAME_BYTES);
        if (name_check_run(text, NULL) == 0) {
                FUZZ_CHECK(strlen(text) <= RUN_NAME_BYTES_MAX && !strchr(text, '/'));
                FUZZ_CHECK(*text != '.' && *text != '-' && *text);
        }
}

/* No control character of any kind, and UTF-8 throughout. */
static void check_printable(const char *text) {
        const unsigned char *p = (const unsigned char *) text;
        while (*p) {
                unsigned more = *p < 0x80 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
                FUZZ_CHECK(*p >= 0x20 && *p != 0x7f && (*p < 0x80 || *p >= 0xc2) && *p < 0xf5);
                FUZZ_CHECK(*p != 0xc2 || p[1] >= 0xa0); /* the terminal controls of eight bits */
                for (p++; more; more--, p++)
                        FUZZ_CHECK(*p >= 0x80 && *p < 0xc0);
        }
}

static void check_escapes(const char *text, size_t bytes, size_t room) {
        char *target = malloc(room);
        struct cairn_error e = CAIRN_ERROR_INIT;

        FUZZ_CHECK(target);
        check_printable(text_escape(target, room, text, bytes));
        FUZZ_CHECK(!strchr(target, '"'));
        check_printable(text_escape_control(target, room, text, bytes));
        (void) error_set(&e, CAIRN_ERR_CORRUPT, text, text, "%s", text);
        check_printable(error_format(&e, target, room));
        free(target);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct fuzz_input in = {bytes, count};
        size_t room = 4 + fuzz_u8(&in);
        char *text = malloc(in.left + 1);
        uint64_t number = 0;

        FUZZ_CHECK(text);
        if (in.left)
                memcpy(text, in.bytes, in.left);
        text[in.left] = '\0';
        check_path_names(text);
        check_escapes(text, in.left, room);
        uint32_t code = dtype_from_name(text);
        FUZZ_CHECK(code == 0 || strcmp(dtype_info(code)->name, text) == 0);
        code = role_from_name(text);
        FUZZ_CHECK(code == 0 || strcmp(role_name(code), text) == 0);
        if (parse_count(text, &number))
                FUZZ_CHECK(*text >= '0' && *text <= '9');
        if (parse_duration(text, &number))
                FUZZ_CHECK(number < UINT64_C(1000000000000000000));
        free(text);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_plain(bytes, count, max, seed);
}
