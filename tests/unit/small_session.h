/* SPDX-License-Identifier: Apache-2.0
 *
 * small_session.h - a trainer of a handful of tensors against fake_agent.h, for the tests of
 * libcairn's calls.
 */
#ifndef CAIRN_TESTS_SMALL_SESSION_H
#define CAIRN_TESTS_SMALL_SESSION_H

#include "client/cairn.h"
#include "tests/unit/fake_agent.h"

struct small_session {
        struct cairn *c;
        float *w, *m, *v, *step, *stat; /* w m v: [4, 3]; stat: anytime, [4] */
        uint16_t *half;                 /* bf16 [5] */
        int64_t truth, samples;
        uint64_t seed;
        double best;
        unsigned char rng[16];
        uint64_t rng_bytes;
        /* set before small_declare to make it differ */
        bool reversed; /* registers in the opposite order */
        bool wide_w;   /* w is [4, 4] */
        enum cairn_dtype half_dtype;
        enum cairn_role w_role;
        bool without_best, with_extra_value, with_extra_tensor, without_v;
        const char *layers; /* config.layers */
        const char *blas;   /* numerics.blas */
        char *workers;      /* free.workers */
};

void small_init(struct small_session *s);
int small_open(struct small_session *s, struct fake_agent *a);
void small_declare(struct small_session *s); /* allocates, registers, describes */
void small_fill(struct small_session *s, int salt);
uint32_t small_digest(const struct small_session *s);
/* One update that changes everything. */
void small_update(struct small_session *s, int64_t step);
/* open, declare, fill, seal, restore in a session without a checkpoint */
void small_begin(struct small_session *s, struct fake_agent *a);
/* Train to `step`, take a cut, close; the agent then serves it. */
void small_make_checkpoint(struct small_session *s, struct fake_agent *a, int64_t step);

#endif
