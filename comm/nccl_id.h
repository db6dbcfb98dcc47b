/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_id.h - a unique id of NCCL, made by a child process. Each id that a process makes leaves a
 * thread and a socket in it for good, and a group that comes back makes many; the ranks meet at
 * that socket, so that the child has to live until they have.
 *
 *     nccl_id_start(&child, &e);                    // cairn-nccl-id, found by locate.h
 *     while (!(r = nccl_id_read(&child, &id, 100 ms, &e))) ...      // 1: read
 *     ... publish, meet ...
 *     nccl_id_end(&child);
 *
 * The child ends by itself when this process does. Its side is comm/main.c: the id's bytes on
 * standard output, then it waits for the end of its standard input.
 */
#ifndef CAIRN_COMM_NCCL_ID_H
#define CAIRN_COMM_NCCL_ID_H

#include "base/status.h"
#include "comm/nccl_abi.h"
#include <sys/types.h>

struct nccl_id_child {
        pid_t pid; /* 0: none */
        int input, output;
        size_t got;
};
#define NCCL_ID_CHILD_INIT \
        { .input = -1, .output = -1 }

int nccl_id_start(struct nccl_id_child *child, struct cairn_error *reterr);
/* Waits for at most that long. 1: *ret is filled. 0: not yet. PEER: it has ended. */
int nccl_id_read(struct nccl_id_child *child, struct nccl_id *ret, int milliseconds,
                 struct cairn_error *reterr);
void nccl_id_end(struct nccl_id_child *child); /* idempotent */

#endif
