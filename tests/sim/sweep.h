/* SPDX-License-Identifier: Apache-2.0
 *
 * sweep.h - what the parts of test_fault_sweep share: a trainer whose state follows from its step,
 * so that whoever reads it back knows each bit, and the look at a store from outside.
 */
#ifndef CAIRN_TESTS_SWEEP_H
#define CAIRN_TESTS_SWEEP_H

#include "base/clock.h"
#include "base/limits.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SWEEP_RUN "sweep"
#define SWEEP_SAMPLES_PER_STEP 1000
/* The gate's deadline of a state so small, and what a busy machine may add to a step. */
#define SWEEP_STEP_NS_MAX (GATE_DEADLINE_NS_MIN + 4 * NSEC_PER_SEC)
enum { SWEEP_TENSORS = 4 };

/* Together more than three chunks of a copy and two requests of a write. */
struct sweep_tensor {
        const char *name;
        uint32_t role; /* enum cairn_role */
        uint64_t count;
};
extern const struct sweep_tensor sweep_tensors[SWEEP_TENSORS];
float sweep_value(size_t tensor, int64_t step, uint64_t element);
/* The first element whose bits are not those of the step; the tensor's count if all are. */
uint64_t sweep_difference(size_t tensor, int64_t step, const float *data);

/* `--train LOG STEPS again|leave|spoil`, below `cairn run`: up to STEPS and at least one commit. A
 * restore that fails is tried again in the same process, or left to the next one; `spoil` changes
 * one element after it. Appends lines to LOG:
 *
 *     start | restored STEP | refused TEXT | asked STEP | committed STEP | failed TEXT | end
 *     wrong TEXT                         what must never be
 */
int sweep_trainer_main(int argc, char **argv);

/* Every checkpoint that is visible in the run's folder is valid to the last byte and holds the
 * state of its step, and none is without a name that says so. *ret_newest: what a start would
 * resume from, which may still be an attempt; -1: nothing. False: `problem` says what is wrong. */
bool sweep_store_check(const char *store, int64_t *ret_newest, char *problem, size_t bytes);

#endif
