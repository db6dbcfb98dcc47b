/* SPDX-License-Identifier: Apache-2.0
 *
 * outage.h - what people are told while a run's checkpoints fail or its storage does not answer:
 * one line for each cause, one when a checkpoint is committed again. What fails at every attempt
 * would otherwise fill the log with the same sentence, and storage that hangs would be silent
 * itself.
 *
 *     outage_init(run);
 *     outage_failed(run, attempt, &error);   // for each attempt that failed
 *     outage_pump(run);                      // with each run_pump
 *     outage_over(run);                      // at each commit
 *     outage_done(run);
 *
 * Embedded in its run (run.h); the loop's thread.
 */
#ifndef CAIRN_AGENT_OUTAGE_H
#define CAIRN_AGENT_OUTAGE_H

#include "agent/loop.h"
#include "base/log.h"

/* Storage that takes longer than that for what is quick is said to be silent. */
#define OUTAGE_SILENT_NS (3 * NSEC_PER_SEC)
#define OUTAGE_CAUSES_MAX 4

struct run;
struct outage {
        struct {
                int status, system_code;
        } causes[OUTAGE_CAUSES_MAX]; /* that were told */
        size_t cause_count;
        uint64_t failures, begin_ns;
        uint64_t late_ns; /* since when an answer is overdue; 0: none is */
        struct loop_timer timer;
};

void outage_init(struct run *run);
void outage_done(struct run *run);
void outage_failed(struct run *run, uint32_t attempt, const struct cairn_error *error);
/* For what could not be tidied up: in an outage that was told it is no news. */
enum log_level outage_level(const struct run *run);
void outage_pump(struct run *run);
void outage_over(struct run *run);

#endif
