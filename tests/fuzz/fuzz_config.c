/* SPDX-License-Identifier: Apache-2.0
 *
 * cairnd's configuration file: any bytes give a configuration within its limits or a sentence.
 */
#include "agent/config.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_config(const struct config *c) {
        FUZZ_CHECK(memchr(c->store, 0, sizeof c->store) && memchr(c->socket, 0, sizeof c->socket));
        FUZZ_CHECK(memchr(c->group, 0, sizeof c->group));
        FUZZ_CHECK(c->keep_last >= 1);
        FUZZ_CHECK(c->stop_deadline_s >= 1 && c->stop_deadline_s <= 86400);
        FUZZ_CHECK(c->log_level >= LOG_LEVEL_ERROR && c->log_level <= LOG_LEVEL_DEBUG);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct config *c = malloc(sizeof *c);
        char path[64];
        uint64_t number;

        FUZZ_CHECK(c);
        int fd = fuzz_memfd(bytes, count);
        (void) snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        config_init(c);
        int r = config_load(c, path, &e);
        if (r < 0)
                fuzz_check_error(r, &e);
        check_config(c);
        r = config_check(c, &e);
        if (r < 0)
                fuzz_check_error(r, &e);
        (void) close(fd);
        char *text = malloc(count + 1);
        FUZZ_CHECK(text);
        memcpy(text, bytes, count);
        text[count] = '\0';
        (void) config_parse_bytes(text, &number);
        free(text);
        free(c);
        return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed) {
        return fuzz_mutate_plain(bytes, count, max, seed);
}
