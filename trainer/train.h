/* SPDX-License-Identifier: Apache-2.0
 *
 * train.h - the training loop of one rank. Owns all parts of it; one thread.
 *
 *     train_init(&t, &settings, &error);  // opens the session, restores
 *     code = train_run(&t);               // exit status
 *     train_done(&t);
 *
 * Interval n+1 of the loop: evaluation of step n's weights (if due), why to end, then the step:
 * gradients, gate, update, log line, cut n+1. So a run that resumes at n repeats that evaluation
 * and that decision, and nothing else.
 */
#ifndef CAIRN_TRAINER_TRAIN_H
#define CAIRN_TRAINER_TRAIN_H

#include "trainer/checkpoint.h"
#include "trainer/evaluate.h"
#include "trainer/progress.h"
#include "trainer/schedule.h"
#include "trainer/training_log.h"
#include "trainer/update.h"

enum train_end {
        TRAIN_GOES_ON,
        TRAIN_COMPLETED,
        TRAIN_EARLY_STOP,
        TRAIN_TIME_IS_UP,
        TRAIN_STOP_AT,
        TRAIN_STOP_ASKED, /* by the operator: cairn stop, Ctrl-C */
        TRAIN_TERMINATED, /* SIGTERM: preempted */
        TRAIN_HOPELESS,   /* non-finite gradients in a row */
};

struct train {
        struct settings settings;
        struct corpus corpus;
        struct schedule schedule;
        struct model model;
        struct state state;
        struct network network;
        struct checkpoint checkpoint;
        struct training_log log;
        struct progress progress;

        struct weights weights, average, gradients; /* views of blocks */
        struct layer_weights *layer_views;          /* three times L */
        float *gradient_block;
        uint32_t *inputs, *targets; /* (B, T) */
        int64_t step;               /* done */
        uint64_t begin_ns;
        double seconds_before; /* of earlier processes */
};

/* settings as parsed; they are copied. Failures: *ret_code is the exit status; the sentence is in
 * reterr, or, where that is unset, was printed. */
int train_init(struct train *t, const struct settings *settings, int *ret_code,
               struct cairn_error *reterr);
/* The same without session and log, after checkpoint.cairn was opened: for train_init and tests. */
int train_build(struct train *t, struct cairn_error *reterr);
/* Takes up what a restore brought: the seeds and times of the run's first start go on. */
void train_restored(struct train *t, int64_t step);
/* One step; its loss. */
float train_step(struct train *t);
void train_evaluate(struct train *t);
int train_run(struct train *t);
void train_done(struct train *t);

#endif
