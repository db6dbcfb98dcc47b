/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/sample_log.h"
#include <errno.h>
#include <inttypes.h>

int sample_log_open(FILE **ret, const char *path, uint32_t rank, struct cairn_error *reterr) {
        char name[4096];

        *ret = NULL;
        if (!path)
                return 0;
        (void) snprintf(name, sizeof(name), "%s.%" PRIu32, path, rank);
        *ret = fopen(name, "ae");
        return *ret ? 0 : error_set_errno(reterr, errno, "open log (--sample-log)", name);
}

void sample_log_write(FILE *log, const struct corpus *c, uint64_t position, uint64_t count) {
        if (!log)
                return;
        for (uint64_t i = position; i < position + count; i++)
                (void) fprintf(log, "%" PRIu64 " %" PRIu64 "\n", i, corpus_sample(c, i));
        (void) fflush(log);
}
