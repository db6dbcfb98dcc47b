/* SPDX-License-Identifier: Apache-2.0
 *
 * train_log.h - the trainer's log as the demo and the tests read it: JSON lines whose fields, all
 * but "seconds", have to be the same text in an interrupted and in an uninterrupted run.
 */
#ifndef CAIRN_TOOLS_TRAIN_LOG_H
#define CAIRN_TOOLS_TRAIN_LOG_H

#include "base/status.h"

struct train_log_tail {
        int64_t step; /* of the last complete line with a loss; left as it was where there is none
                       */
        double loss;
};
void train_log_last(const char *path, struct train_log_tail *ret);

struct train_log_comparison {
        size_t lines, equal;
};
/* MISMATCH at the first line that differs, with both. */
int train_log_compare(const char *reference_path, const char *other_path,
                      struct train_log_comparison *ret, struct cairn_error *reterr);

#endif
