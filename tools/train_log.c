/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/train_log.h"

#include "base/cleanup.h"
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 1024, TAIL_BYTES = 4096 };

void train_log_last(const char *path, struct train_log_tail *ret) {
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        if (!f || fseek(f, 0, SEEK_END) != 0)
                return;
        long bytes = ftell(f);
        if (bytes < 0 || fseek(f, bytes > TAIL_BYTES ? bytes - TAIL_BYTES : 0, SEEK_SET) != 0)
                return;
        char line[LINE_BYTES];
        while (fgets(line, sizeof line, f)) {
                int64_t step;
                double loss;
                if (strchr(line, '\n') &&
                    sscanf(line, "{\"step\":%" SCNd64 ",\"loss\":%lf", &step, &loss) == 2) {
                        ret->step = step;
                        ret->loss = loss;
                }
        }
}

/* Cut the line's "seconds" field out: it is the last one, or it is not there. */
static void drop_seconds(char *line) {
        char *seconds = strstr(line, ",\"seconds\":");
        if (seconds)
                *seconds = '\0';
        else
                line[strcspn(line, "\n")] = '\0';
}

int train_log_compare(const char *reference_path, const char *other_path,
                      struct train_log_comparison *ret, struct cairn_error *reterr) {
        _cleanup_fclose_ FILE *reference = fopen(reference_path, "re");
        if (!reference)
                return error_set_errno(reterr, errno, "open log", reference_path);
        _cleanup_fclose_ FILE *other = fopen(other_path, "re");
        if (!other)
                return error_set_errno(reterr, errno, "open log", other_path);
        char a[LINE_BYTES], b[LINE_BYTES];
        *ret = (struct train_log_comparison){0};
        for (;;) {
                bool more_a = fgets(a, sizeof a, reference), more_b = fgets(b, sizeof b, other);
                if (!more_a && !more_b)
                        break;
                ret->lines++;
                if (!more_a || !more_b)
                        return error_set(reterr, CAIRN_ERR_MISMATCH, "compare logs", other_path,
                                         "line %zu is missing in %s", ret->lines,
                                         more_a ? other_path : reference_path);
                drop_seconds(a);
                drop_seconds(b);
                if (strcmp(a, b) != 0)
                        return error_set(reterr, CAIRN_ERR_MISMATCH, "compare logs", other_path,
                                         "line %zu differs: reference %.200s, this run %.200s",
                                         ret->lines, a, b);
                ret->equal++;
        }
        if (ret->lines == 0)
                return error_set(reterr, CAIRN_ERR_MISMATCH, "compare logs", other_path,
                                 "both logs are empty");
        return 0;
}
