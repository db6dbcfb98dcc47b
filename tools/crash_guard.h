/* SPDX-License-Identifier: Apache-2.0
 *
 * crash_guard.h - tells a run that makes progress between its failures from one that fails at the
 * same place again and again.
 *
 *     crash_guard_started(&g, step);                  // a life begins; -1: from the beginning
 *     crash_guard_settled(&g, committed, died);       // it is over; -1: none, unknown
 *     if (crash_guard_failed(&g)) ...                 // it ended by a failure: here again?
 *
 * What counts is the step of the death, the last finished one, not the newest checkpoint: a cut
 * taken after the death makes a new checkpoint in each life. Two deaths in a row at one step, and
 * the checkpoint that the second life started from is passed over, together with newer ones, until
 * something newer than ever before is committed. What fails at the same step from three older
 * checkpoints, too, would fail from all of them.
 */
#ifndef CAIRN_CRASH_GUARD_H
#define CAIRN_CRASH_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#define CRASH_GUARD_BACK_MAX 3

struct crash_guard {
        int64_t best_step;   /* the newest that was ever committed, -1: none */
        int64_t start_step;  /* of the present life, -1: from the beginning */
        int64_t died_step;   /* of the present life */
        int64_t failed_step; /* where the last failure was, -1: unknown */
        int64_t before_step; /* only checkpoints before it are tried; 0: all */
        uint64_t restarts;   /* without a new checkpoint */
        unsigned back_count; /* how often an older checkpoint was to be tried, likewise */
};
#define CRASH_GUARD_INIT \
        { .best_step = -1, .start_step = -1, .died_step = -1, .failed_step = -1 }

void crash_guard_started(struct crash_guard *g, int64_t step);
void crash_guard_settled(struct crash_guard *g, int64_t committed_step, int64_t died_step);
/* True: the second failure at this step; before_step is set. Once a life. */
bool crash_guard_failed(struct crash_guard *g);
/* After crash_guard_failed: another life would be in vain. */
bool crash_guard_is_hopeless(const struct crash_guard *g);

#endif
