/* SPDX-License-Identifier: Apache-2.0
 *
 * generation_lock.h - one generation of a run's trainers at a time on this machine.
 *
 * Where `cairn run` and its agent died together, nobody ends the trainers that they left. Such a
 * one may go on for as long as a gate's deadline or a collective: it would write into the same
 * files as its successor (a log, an export), and hold the memory of the same device. So each
 * trainer holds a record lock (fcntl(2); shared by the ranks) on the byte of its generation in
 * RUN.trainers in the user's private directory until it ends, and a new one waits until no other
 * byte is held. The kernel lets go of the lock with the process, however that ends; a forked child
 * has none.
 *
 * Any thread; one descriptor in a process for each run, for closing one lets go of all locks.
 */
#ifndef CAIRN_CLIENT_GENERATION_LOCK_H
#define CAIRN_CLIENT_GENERATION_LOCK_H

#include "client/link.h"

/* To be called once the agent has said which generation this is, and before anything is written:
 * the agent also tells those that are left that their time is over. The caller closes *ret_fd at
 * the end. BUSY, with its process id: one was still there at the deadline. Other errors are the
 * link's. */
int generation_lock_take(int *ret_fd, struct link *link, const char *run, uint64_t generation,
                         uint64_t deadline_ns, const struct clock_ops *clock,
                         struct cairn_error *reterr);
/* The end of a run: its file goes, unless some trainer of it lives. */
void generation_lock_remove(const char *run);

#endif
