/* SPDX-License-Identifier: Apache-2.0
 *
 * ending.h - why a run ends at a step boundary, decided by all ranks together, and what is done
 * then: one more snapshot, and the record that the run is finished.
 *
 *     TRY(ending_decide(&t, &end, &e));          // all ranks, at the same step
 *     if (end != TRAIN_GOES_ON)
 *             code = ending_carry_out(&t, end);  // exit status
 */
#ifndef CAIRN_TRAINER_ENDING_H
#define CAIRN_TRAINER_ENDING_H

#include "base/status.h"

enum { EXIT_PREEMPTED = 75 }; /* of a trainer that had SIGTERM */

/* In the order of their weight: one rank's reason is every rank's, and the first one counts. */
enum train_end {
        TRAIN_GOES_ON,
        TRAIN_COMPLETED,
        TRAIN_EARLY_STOP,
        TRAIN_TIME_IS_UP,
        TRAIN_HOPELESS,   /* non-finite gradients in a row */
        TRAIN_TERMINATED, /* SIGTERM: preempted */
        TRAIN_STOP_ASKED, /* by the operator: cairn stop, Ctrl-C */
        TRAIN_STOP_AT,
};

struct train;

int ending_decide(struct train *t, enum train_end *ret, struct cairn_error *reterr);
int ending_carry_out(struct train *t, enum train_end end);

#endif
