/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule.h - the learning rate as a pure function of the samples seen before a step and of the
 * configuration. Nothing of it is stored, so a resumed run cannot repeat or skip a rate, and a
 * stored one cannot be wrong. Any thread.
 */
#ifndef CAIRN_TRAINER_SCHEDULE_H
#define CAIRN_TRAINER_SCHEDULE_H

#include "trainer/settings.h"

struct schedule {
        int64_t warmup_samples, total_samples, step_samples;
        enum settings_decay decay;
        double lr, min_lr;
};

void schedule_init(struct schedule *h, const struct settings *s);
/* Linear from lr/warmup in the first step to lr at the end of the warm-up, then down to min_lr. */
double schedule_rate(const struct schedule *h, int64_t samples_seen);

#endif
