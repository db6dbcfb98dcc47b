/* SPDX-License-Identifier: Apache-2.0
 *
 * copier.h - take one cut: claim the word, copy every tensor and the host state, hand the word
 * back. What was copied is a snapshot if and only if copier_take returns 0.
 *
 * Runs on the saver's main thread. The trainer may revoke the copy at any time (the gate), and
 * cairnd may give its checkpoint up; then it is VOID, the staging's content is worthless, and
 * nothing else has happened.
 */
#ifndef CAIRN_AGENT_COPIER_H
#define CAIRN_AGENT_COPIER_H

#include "agent/source.h"
#include "agent/staging.h"

struct copied {
        struct cut_word word;
        int64_t step;
        unsigned char
                *payload; /* host values of this cut; source->payload_bytes; the caller's buffer */
};

/* What cairnd says meanwhile, and how the bytes come. `fetch`: NULL where the saver can read the
 * state; else it brings all tensors into staging, and 0 means that they are there. `hold`, NULL but
 * for a group's demanded cut, is called between the claim and the first byte: the state stands
 * still, and nothing is copied before the other ranks are known to stand at the same step; not 0:
 * given up. `given_up`, before each chunk: the checkpoint that it is for has failed elsewhere. */
struct copier_orders {
        int (*hold)(void *context, const struct copied *copied, struct cairn_error *reterr);
        bool (*given_up)(void *context);
        int (*fetch)(void *context, const struct copied *copied, struct cairn_error *reterr);
        void *context;
};
/* 0: a snapshot lies in staging. BUSY: nothing was asked for, or the trainer is in its update (its
 * end will ring). VOID: a copy was begun and given up; error says why. STALE: the state follows an
 * inventory that is not here; declined. `orders` may be NULL. */
int copier_take(struct control_page *page, const struct source *source, struct staging *staging,
                bool demanded, const struct copier_orders *orders, struct copied *copied,
                struct cairn_error *reterr);
/* Bytes per second of copying a sample of a state that the saver can read; 0: nothing to copy. */
uint64_t copier_probe(const struct source *source, struct staging *staging,
                      const struct clock_ops *clock);

#endif
