/* SPDX-License-Identifier: Apache-2.0
 *
 * import.h - the last state of a dead trainer in a GPU's memory, copied to staging by a process of
 * its own that lives just for that: neither cairnd nor a saver ever holds a context on a GPU, and
 * what goes wrong there ends nobody else.
 *
 *     TRY(import_copy(&source, staging_fd, given_up, context, &stuck, &e));   // a saver
 *
 * The child (`cairnd --import`) finds the GPU by its own name, opens the slabs' handles, copies in
 * chunks and ends. It ends with its saver, and is killed when it takes too long; where the kernel
 * does not let it go *ret_stuck is true and staging must never be used again.
 *
 * The saver's main thread. Errors: what the child met, TIMEOUT, VOID where `given_up` said so.
 */
#ifndef CAIRN_AGENT_IMPORT_H
#define CAIRN_AGENT_IMPORT_H

#include "agent/source.h"

int import_copy(const struct source *source, int staging_fd, bool (*given_up)(void *context),
                void *context, bool *ret_stuck, struct cairn_error *reterr);
/* The child's main: its exit status. */
int import_main(void);

#endif
