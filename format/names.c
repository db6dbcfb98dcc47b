/* SPDX-License-Identifier: Apache-2.0 */
#include "format/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool is_run_character(char c) {
        return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-';
}

int name_check_run(const char *run, struct cairn_error *reterr) {
        size_t bytes = strnlen(run, RUN_NAME_BYTES_MAX + 1);
        const char *operation = "check run name";

        if (bytes == 0)
                return error_set(reterr, CAIRN_ERR_API, operation, "run",
                                 "the name is empty; give one of 1 to %d characters",
                                 RUN_NAME_BYTES_MAX);
        if (bytes > RUN_NAME_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, operation, run,
                                 "the name is longer than %d characters", RUN_NAME_BYTES_MAX);
        for (size_t i = 0; i < bytes; i++)
                if (!is_run_character(run[i]))
                        return error_set(reterr, CAIRN_ERR_API, operation, run,
                                         "character %zu is not one of A-Z a-z 0-9 . _ -", i + 1);
        if (run[0] == '.' || run[0] == '-')
                return error_set(reterr, CAIRN_ERR_API, operation, run,
                                 "the name may not begin with '%c'", run[0]);
        if (strncmp(run, "GEN-", 4) == 0 || strcmp(run, STORE_MARKER_NAME) == 0)
                return error_set(reterr, CAIRN_ERR_API, operation, run,
                                 "the name is one of the store's own");
        return 0;
}

/* Every name below fits for every argument; the last byte is never needed. */
#define PRINT(name, ...) ((void) snprintf((name), NAME_BYTES, __VA_ARGS__))

void name_generation(char *name, uint64_t generation) {
        PRINT(name, "GEN-%04" PRIu64, generation);
}

void name_generation_start(char *name, uint64_t generation) {
        PRINT(name, "GEN-%04" PRIu64 ".start", generation);
}

void name_checkpoint(char *name, int64_t step, uint64_t generation) {
        PRINT(name, "%012" PRId64 "-g%04" PRIu64, step, generation);
}

void name_pending(char *name, uint64_t generation, uint32_t attempt) {
        PRINT(name, ".pending-g%04" PRIu64 "-a%06" PRIu32, generation, attempt);
}

void name_stale(char *name, uint64_t generation, uint32_t attempt, uint64_t fenced_by) {
        PRINT(name, ".stale-g%04" PRIu64 "-a%06" PRIu32 "-by%04" PRIu64, generation, attempt,
              fenced_by);
}

void name_trash(char *name, const char *of) {
        /* Never ".trash-.stale-": one dot is enough to hide it. */
        PRINT(name, ".trash-%.*s", NAME_BYTES - 8, of[0] == '.' ? of + 1 : of);
}

void name_manifest(char *name, uint32_t rank) {
        PRINT(name, "rank-%05" PRIu32 ".manifest", rank);
}

void name_data(char *name, uint32_t rank) {
        PRINT(name, "rank-%05" PRIu32 ".data", rank);
}

void name_pin(char *name, const char *checkpoint) {
        PRINT(name, "PIN-%.*s", NAME_BYTES - 5, checkpoint);
}

void name_tag(char *name, const char *checkpoint) {
        PRINT(name, "TAG-%.*s", NAME_BYTES - 5, checkpoint);
}

/* Parsers read numbers loosely and then compare with the name that these numbers make: signs,
 * spaces, missing or surplus zeros and overflow all end there. */
static bool read_number(const char **at, uint64_t *ret) {
        uint64_t v = 0;
        const char *p = *at;

        for (; *p >= '0' && *p <= '9'; p++)
                if (__builtin_mul_overflow(v, 10, &v) ||
                    __builtin_add_overflow(v, (uint64_t) (*p - '0'), &v))
                        return false;
        if (p == *at)
                return false;
        *at = p;
        *ret = v;
        return true;
}

static bool read_text(const char **at, const char *text) {
        size_t bytes = strlen(text);
        if (strncmp(*at, text, bytes) != 0)
                return false;
        *at += bytes;
        return true;
}

bool name_parse_generation(const char *name, uint64_t *ret_generation, bool *ret_is_start) {
        char again[NAME_BYTES];
        const char *p = name;
        uint64_t generation;

        if (!read_text(&p, "GEN-") || !read_number(&p, &generation))
                return false;
        bool is_start = *p != '\0';
        if (is_start)
                name_generation_start(again, generation);
        else
                name_generation(again, generation);
        if (strcmp(name, again) != 0)
                return false;
        *ret_generation = generation;
        *ret_is_start = is_start;
        return true;
}

bool name_parse_checkpoint(const char *name, int64_t *ret_step, uint64_t *ret_generation) {
        char again[NAME_BYTES];
        const char *p = name;
        uint64_t step, generation;

        if (!read_number(&p, &step) || step > STEP_MAX || !read_text(&p, "-g") ||
            !read_number(&p, &generation))
                return false;
        name_checkpoint(again, (int64_t) step, generation);
        if (strcmp(name, again) != 0)
                return false;
        *ret_step = (int64_t) step;
        *ret_generation = generation;
        return true;
}

bool name_parse_pending(const char *name, uint64_t *ret_generation, uint32_t *ret_attempt) {
        char again[NAME_BYTES];
        const char *p = name;
        uint64_t generation, attempt;

        if (!read_text(&p, ".pending-g") || !read_number(&p, &generation) || !read_text(&p, "-a") ||
            !read_number(&p, &attempt) || attempt > UINT32_MAX)
                return false;
        name_pending(again, generation, (uint32_t) attempt);
        if (strcmp(name, again) != 0)
                return false;
        *ret_generation = generation;
        *ret_attempt = (uint32_t) attempt;
        return true;
}

bool name_parse_stale(const char *name, uint64_t *ret_generation, uint32_t *ret_attempt) {
        char again[NAME_BYTES];
        const char *p = name;
        uint64_t generation, attempt, fenced_by;

        if (!read_text(&p, ".stale-g") || !read_number(&p, &generation) || !read_text(&p, "-a") ||
            !read_number(&p, &attempt) || attempt > UINT32_MAX || !read_text(&p, "-by") ||
            !read_number(&p, &fenced_by))
                return false;
        name_stale(again, generation, (uint32_t) attempt, fenced_by);
        if (strcmp(name, again) != 0)
                return false;
        *ret_generation = generation;
        *ret_attempt = (uint32_t) attempt;
        return true;
}
