/* SPDX-License-Identifier: Apache-2.0
 *
 * push.h - the saver's side of copies that its trainer makes for it (format/push.h).
 *
 *     push_seal(&p, socket, trainer_pidfd, staging_fd);   // takes them; -1, -1, -1: it does not
 *     rate = push_probe(&p, seal, clock, &e);
 *     r = push_copy(&p, page, seal, copied, given_up, context, &e);   // copier_orders.fetch
 *     push_hear(&p);                                      // p.socket is readable
 *     push_done(&p);
 *
 * From an order until its DONE the trainer may write staging: while push_is_lent nothing is copied,
 * and whoever asks is BUSY. The trainer's death ends its copies. A saver that dies in between
 * leaves its staging for good, its successor has another one.
 *
 * The saver's main thread. Errors: VOID, with why; the staging's content is then worthless.
 */
#ifndef CAIRN_AGENT_PUSH_H
#define CAIRN_AGENT_PUSH_H

#include "agent/copier.h"

/* The trainer counts chunks in the page. One that is stopped, or whose GPU hangs, counts none. */
#define PUSH_STILL_NS (10 * NSEC_PER_SEC)

struct push {
        int socket, trainer, staging_fd;
        uint64_t staging_inode;
        uint64_t order;    /* of the newest one */
        bool lent;         /* it is not done */
        bool lost;         /* no order of this trainer's will ever succeed */
        uint64_t still_ns; /* without a chunk, and it is given up */
};
#define PUSH_INIT \
        { .socket = -1, .trainer = -1, .staging_fd = -1, .still_ns = PUSH_STILL_NS }

void push_seal(struct push *p, int socket, int trainer, int staging_fd);
void push_done(struct push *p);
bool push_trainer_copies(const struct push *p); /* alive or not */
bool push_is_lent(const struct push *p);
void push_hear(struct push *p);
/* 0: not known, the error says why. Where it is known and the error is set, that is a warning. */
uint64_t push_probe(struct push *p, uint64_t seal, const struct clock_ops *clock,
                    struct cairn_error *reterr);
int push_copy(struct push *p, const struct control_page *page, uint64_t seal,
              const struct copied *copied, bool (*given_up)(void *context), void *context,
              struct cairn_error *reterr);

#endif
