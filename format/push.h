/* SPDX-License-Identifier: Apache-2.0
 *
 * push.h - what a saver and the helper thread of its trainer (the pusher) say to each other where
 * the saver cannot read the state itself: memory of a GPU, memory that the trainer has from
 * elsewhere. One packet each on a SEQPACKET socketpair that libcairn makes and hands over with each
 * seal; its ends outlive savers and agents, so a packet may be for somebody who is gone.
 *
 *   saver -> pusher   PUSH_COPY   [staging]   the tensors of `seal` to their places in staging, for
 *                                             the claim {seq, attempt} that the saver holds
 *                     PUSH_PROBE  [staging]   some of them, to learn how fast that is
 *   pusher -> saver   PUSH_DONE               of `order`: nothing of it writes staging any more
 *
 * The saver is the copier: it claims and ends the claim. The pusher looks at the word before each
 * chunk and stops when the claim is gone. Until DONE staging belongs to the order. `order` is a
 * time in nanoseconds, so that no two savers of a session give the same.
 *
 * Threads: one on each end. Neither verb waits.
 */
#ifndef CAIRN_FORMAT_PUSH_H
#define CAIRN_FORMAT_PUSH_H

#include "base/status.h"
#include <stdbool.h>

#define PUSH_MAGIC "CRNPUSH1"

enum push_verb { PUSH_COPY = 1, PUSH_PROBE = 2, PUSH_DONE = 3 };

struct push_packet {
        char magic[8];
        uint32_t verb;
        int32_t status; /* DONE: enum cairn_status */
        uint64_t order, seal;
        uint64_t seq; /* COPY: the claim */
        uint32_t attempt;
        uint32_t final; /* DONE: the trainer cannot copy any more, ever */
        uint64_t bytes; /* DONE: copied, in */
        uint64_t copy_ns;
        char text[256]; /* DONE: why not, or a warning */
};

/* Magic is filled in; the descriptor (-1: none) stays the caller's. BUSY: the other end does not
 * read. */
int push_send(int socket, struct push_packet *p, int fd);
/* *ret_fd is the caller's, -1: none came. BUSY: nothing is there; PEER: the other end is closed;
 * CORRUPT: no packet of ours. */
int push_receive(int socket, struct push_packet *ret, int *ret_fd);

#endif
