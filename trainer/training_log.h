/* SPDX-License-Identifier: Apache-2.0
 *
 * training_log.h - the loss curve as JSON lines, one write(2) a line:
 *
 *     {"step":12,"loss":3.2,"loss_bits":"404ccccd","lr":0.0006,"samples":96,"seconds":0.513}
 *     {"step":12,"eval_loss":3.3,"eval_loss_bits":"40533333","seconds":0.601}
 *
 * A step's line is written inside its update, before the state becomes the cut of that step: a cut
 * never lacks its line. An evaluation belongs to the interval after its step. training_log_open
 * therefore cuts the file back to the restored step without that step's evaluation: the run will
 * write those lines again. A file that is not such a log is refused, never cut; the log of a run
 * that starts anew is kept as FILE.previous. A link is not followed: others may write into a run's
 * folder.
 */
#ifndef CAIRN_TRAINER_TRAINING_LOG_H
#define CAIRN_TRAINER_TRAINING_LOG_H

#include "base/status.h"
#include <stdbool.h>

struct training_log {
        int fd; /* -1: no log */
        bool failed;
};

/* path NULL: no log. Lines after `step` are cut off; keep_previous: a step of 0 moves the file
 * aside instead. *ret_last_step: of the last line kept, 0 if none. */
int training_log_open(struct training_log *l, const char *path, int64_t step, bool keep_previous,
                      int64_t *ret_last_step, struct cairn_error *reterr);
void training_log_close(struct training_log *l);

struct training_log_step {
        int64_t step, samples;
        float loss;
        double rate, seconds;
};
struct training_log_evaluation {
        int64_t step;
        float loss, ema_loss;
        bool has_ema;
        double seconds;
};
/* The first failure is reported on standard error; training goes on. */
void training_log_write_step(struct training_log *l, const struct training_log_step *line);
void training_log_write_evaluation(struct training_log *l,
                                   const struct training_log_evaluation *line);

#endif
