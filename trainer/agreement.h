/* SPDX-License-Identifier: Apache-2.0
 *
 * agreement.h - do all ranks begin with the same? Each lists what it was told, a line each; digests
 * are compared, and where they differ the lines, so that every rank can say what differs and on
 * which rank.
 *
 *     struct agreement a = {0};
 *     agreement_add(&a, "checkpoint", "%s", name);
 *     r = agreement_check(&a, &group, &e);        // MISMATCH on all ranks, or 0 on all
 *     agreement_done(&a);
 *
 * Owner: the caller. One thread.
 */
#ifndef CAIRN_TRAINER_AGREEMENT_H
#define CAIRN_TRAINER_AGREEMENT_H

#include "trainer/group.h"

struct agreement {
        char *text; /* "key value\n" ... */
        size_t bytes, capacity;
        bool failed; /* no memory */
};

/* Values are one line. */
void agreement_add(struct agreement *a, const char *key, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
int agreement_check(struct agreement *a, struct group *g, struct cairn_error *reterr);
void agreement_done(struct agreement *a);

/* The first few differences, as a sentence: "config.lr is 0.1 on rank 0 and 0.2 on rank 1". texts:
 * one a rank, each terminated. */
void agreement_explain(const char *const *texts, uint32_t world, char *ret, size_t bytes);

#endif
