/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/schedule.h"
#include <math.h>

void schedule_init(struct schedule *h, const struct settings *s) {
        *h = (struct schedule){
                .warmup_samples = s->warmup * s->global_batch,
                .total_samples = s->steps * s->global_batch,
                .step_samples = s->global_batch,
                .decay = (enum settings_decay) s->decay,
                .lr = s->lr,
                .min_lr = s->min_lr,
        };
}

double schedule_rate(const struct schedule *h, int64_t samples_seen) {
        if (samples_seen < h->warmup_samples)
                return h->lr * (double) (samples_seen + h->step_samples) /
                       (double) h->warmup_samples;
        if (h->decay == DECAY_CONSTANT)
                return h->lr;
        if (samples_seen >= h->total_samples)
                return h->min_lr;
        double progress = (double) (samples_seen - h->warmup_samples) /
                          (double) (h->total_samples - h->warmup_samples);
        double weight =
                h->decay == DECAY_LINEAR ? 1.0 - progress : 0.5 * (1.0 + cos(M_PI * progress));
        return h->min_lr + weight * (h->lr - h->min_lr);
}
