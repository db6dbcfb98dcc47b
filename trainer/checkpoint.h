/* SPDX-License-Identifier: Apache-2.0
 *
 * checkpoint.h - all that the trainer does with libcairn, in the order of a run. checkpoint.c is
 * the example to follow when another trainer is connected.
 *
 *     checkpoint_open(&cp, &settings, compute);   // what did the operator decide?
 *     checkpoint_override(&cp, &settings, &error);
 *     checkpoint_restore(&cp, &settings, &corpus, &state, "gloo");
 *     loop: checkpoint_update_begin, all stores of the update, checkpoint_update_end
 *     checkpoint_last(&cp, step, timeout, wait, argument);  // one more snapshot, committed
 *     checkpoint_finish(&cp, "completed");
 *     checkpoint_close(&cp);
 *
 * A negative result leaves its sentence in checkpoint_error_text. After the restore no failure ends
 * training: each kind is reported once on standard error, and counted.
 */
#ifndef CAIRN_TRAINER_CHECKPOINT_H
#define CAIRN_TRAINER_CHECKPOINT_H

#include "trainer/corpus.h"
#include "trainer/state.h"

struct checkpoint {
        struct cairn *cairn;
        struct cairn_session session;
        struct cairn_report report;
        uint64_t failures;
        uint64_t reported; /* bit -status */
};

/* compute: whose memory the state will be in. */
int checkpoint_open(struct checkpoint *cp, const struct settings *s, const struct compute *compute);
int checkpoint_override(struct checkpoint *cp, struct settings *s, struct cairn_error *reterr);
/* collectives: what sums over ranks are made by. */
int checkpoint_restore(struct checkpoint *cp, const struct settings *s, const struct corpus *corpus,
                       struct state *st, const char *collectives);
void checkpoint_update_begin(struct checkpoint *cp);
void checkpoint_update_end(struct checkpoint *cp, int64_t step);
int64_t checkpoint_saved_step(const struct checkpoint *cp); /* -1: none yet */
/* wait(seconds so far, argument) is called about once a second. */
int checkpoint_last(struct checkpoint *cp, double timeout_s,
                    void (*wait)(double seconds, void *argument), void *argument,
                    int64_t *ret_step);

static inline bool checkpoint_should_stop(const struct checkpoint *cp) {
        return cairn_should_stop(cp->cairn);
}
static inline int checkpoint_finish(struct checkpoint *cp, const char *reason) {
        return cairn_finish(cp->cairn, reason);
}
static inline const char *checkpoint_error_text(const struct checkpoint *cp) {
        return cairn_error_text(cp->cairn);
}
static inline int checkpoint_exit_code(const struct checkpoint *cp) {
        return cairn_exit_code(cp->cairn);
}
static inline void checkpoint_close(struct checkpoint *cp) {
        cairn_close(cp->cairn);
        cp->cairn = NULL;
}

#endif
