/* SPDX-License-Identifier: Apache-2.0
 *
 * train.h - the training loop of one rank. Owns all parts of it; one thread.
 *
 *     train_init(&t, &settings, &code, &error);  // opens the session, meets the others, restores
 *     code = train_run(&t, &error);              // exit status
 *     if (t.compute && t.compute->is_lost) ... _exit(code)
 *     train_done(&t);
 *
 * Interval n+1 of the loop: evaluation of step n's weights (if due), why to end, then the step:
 * gradients, gate, update, log line, cut n+1. So a run that resumes at n repeats that evaluation
 * and that decision, and nothing else.
 *
 * Several ranks compute the gradient of one global batch together and decide together: each finds
 * the same losses, ends at the same step for the same reason, and keeps the same state, but for the
 * part of the optimizer's that is its own (--zero 1). Rank 0 speaks and writes the log.
 */
#ifndef CAIRN_TRAINER_TRAIN_H
#define CAIRN_TRAINER_TRAIN_H

#include "trainer/batch.h"
#include "trainer/checkpoint.h"
#include "trainer/evaluate.h"
#include "trainer/group.h"
#include "trainer/progress.h"
#include "trainer/sample_log.h"
#include "trainer/schedule.h"
#include "trainer/training_log.h"
#include "trainer/update.h"

struct train {
        struct settings settings;
        struct compute *compute;
        struct corpus corpus;
        struct schedule schedule;
        struct model model;
        struct state state;
        struct batch batch;
        struct checkpoint checkpoint;
        struct group group;
        struct training_log log;
        FILE *sample_log;
        struct progress progress;

        struct weights weights, average, gradients; /* views of blocks */
        struct layer_weights *layer_views;          /* three times L */
        float *gradient_block;                      /* of state.shard.whole elements */
        double *sums; /* (host) of squares, one for each SHARD_CHUNK elements of it */
        /* state.running as a step found it, for its second attempt; NULL without one. */
        float *running_before;
        /* The whole average, for evaluations, where the state has only a part of it. */
        float *average_block;
        /* The same in the type that is computed in, where that is narrower. */
        void *average_working;
        int64_t step; /* done */
        uint64_t begin_ns;
        double seconds_before; /* of earlier processes */
};

/* settings as parsed; they are copied. Failures: *ret_code is the exit status; the sentence is in
 * reterr, or, where that is unset, was printed. */
int train_init(struct train *t, const struct settings *settings, int *ret_code,
               struct cairn_error *reterr);
/* The same without session, group and log, after compute, checkpoint.cairn and group were set: for
 * train_init and tests. */
int train_build(struct train *t, struct cairn_error *reterr);
/* Takes up what a restore brought: the run's times and micro-batches go on, its seeds are what the
 * settings say. */
void train_restored(struct train *t, int64_t step);
/* One step; its loss over the global batch. A failure is the group's and leaves the update open:
 * the process has to end. */
int train_step(struct train *t, float *ret_loss, struct cairn_error *reterr);
int train_evaluate(struct train *t, struct cairn_error *reterr);
/* Exit status; where *reterr is set, it says why. */
int train_run(struct train *t, struct cairn_error *reterr);
void train_done(struct train *t);

double train_seconds(const struct train *t); /* of the run, over all restarts */
/* A rehearsal: works so long, and tells the other ranks that it does. */
void train_stall(struct train *t, int64_t milliseconds);

#endif
