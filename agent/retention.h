/* SPDX-License-Identifier: Apache-2.0
 *
 * retention.h - deleting, for the other files of the store process: retention.c alone unlinks what
 * others may have seen. The verb is in store.h.
 */
#ifndef CAIRN_AGENT_RETENTION_H
#define CAIRN_AGENT_RETENTION_H

#include "agent/store.h"

/* The names of a directory, malloc'ed; free with names_done. */
struct names {
        char (*items)[NAME_BYTES]; /* longer ones are left out: none is ours */
        size_t count, capacity;
};
int names_list(const struct io_ops *io, int dirfd, const char *object, struct names *ret,
               struct cairn_error *reterr);
void names_done(struct names *names);

/* Rename to .trash-, durably, so that nobody takes a half-deleted directory for a checkpoint.
 * *ret_gone: somebody else renamed or removed it first. */
int retention_trash(struct store_run *run, const char *name, bool *ret_gone,
                    struct cairn_error *reterr);
/* Delete a directory of the run with what is in it. No links are followed. */
int retention_remove_tree(struct store_run *run, const char *name, struct cairn_error *reterr);

#endif
