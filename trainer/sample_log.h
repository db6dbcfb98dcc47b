/* SPDX-License-Identifier: Apache-2.0
 *
 * sample_log.h - which samples this rank has learnt, for a rehearsal: a line "position sample"
 * each, in FILE.RANK. Appended to, never cut: a step that is learnt again after a restart is there
 * twice, with the same lines. One thread.
 */
#ifndef CAIRN_TRAINER_SAMPLE_LOG_H
#define CAIRN_TRAINER_SAMPLE_LOG_H

#include "trainer/corpus.h"
#include <stdio.h>

/* path NULL: *ret is NULL, and nothing is written. */
int sample_log_open(FILE **ret, const char *path, uint32_t rank, struct cairn_error *reterr);
void sample_log_write(FILE *log, const struct corpus *c, uint64_t position, uint64_t count);

#endif
