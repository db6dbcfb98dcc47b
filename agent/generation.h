/* SPDX-License-Identifier: Apache-2.0
 *
 * generation.h - the parts of a start that other files of the store process need. The verb is in
 * store.h.
 */
#ifndef CAIRN_AGENT_GENERATION_H
#define CAIRN_AGENT_GENERATION_H

#include "agent/commit.h"

#define LOCK_NAME "LOCK" /* in marks/ */

/* generation_start for a run whose lock this process holds already (a restart): lock_fd moves into
 * ret_run, on failure it is closed. -1: as generation_start. */
int generation_restart(struct store *store, const struct start_request *request, int lock_fd,
                       struct store_run *ret_run, struct start_reply *ret,
                       struct cairn_error *reterr);
/* The parts of a start that node_store.c does with what the group's leader has decided. */
int generation_fence(struct store_run *run, uint64_t by, struct cairn_error *reterr);
int generation_publish_files(struct store_run *run, const char *name,
                             const struct commit_files *files, struct cairn_error *reterr);
/* GEN-n and GEN-n.start as bytes, which the caller frees. `uuid`: 16 bytes, the same in both. */
int generation_write_claim(const struct start_request *q, uint64_t generation, uint64_t time_ns,
                           const uint8_t *uuid, const struct scan_node *nodes, size_t node_count,
                           void **ret, size_t *ret_bytes, struct cairn_error *reterr);
int generation_write_start(uint64_t generation, const uint8_t *uuid,
                           const struct scan_checkpoint *parent, void **ret, size_t *ret_bytes,
                           struct cairn_error *reterr);
/* The marker of a store in an open directory; EXISTS if there is one. */
int store_create_at(const struct io_ops *io, const struct clock_ops *clock, int dirfd,
                    uint32_t kind, struct cairn_error *reterr);
/* There is no such folder, or an empty one: a store may be made there. */
bool store_folder_is_free(const char *path);
/* Open a run that this agent has started, in a new process, and take its lock again (waits a second
 * for a predecessor that is being killed). STALE if `generation` is not the newest one. */
int store_run_reopen(struct store *store, const char *run, uint64_t generation, bool grouped,
                     struct store_run *ret, struct cairn_error *reterr);
/* The folder of a run that goes on was removed from its store: make it again, with the claim of
 * that generation and no parent, so that what the trainers hold can be saved. */
int generation_remake(struct store *store, const char *run, uint64_t generation, uint32_t world,
                      struct store_run *ret, struct cairn_error *reterr);
/* For a new agent that takes up a generation which it has not started: what the former one wrote
 * but did not commit is committed if it is whole, and else thrown away. No writer of the generation
 * may be left. Adds the newest checkpoint of the generation, and a note, to `ret`. */
int generation_take_up(struct store_run *run, uint64_t generation, struct start_reply *ret,
                       struct cairn_error *reterr);

#endif
