/* SPDX-License-Identifier: Apache-2.0
 *
 * commit.h - what generation.c and retention.c share with commit.c: composing INDEX and COMMIT from
 * durable manifests, and giving a finished directory its final name. The verbs are in store.h.
 *
 * Child of the store process only; blocking; everything through run->store->io.
 */
#ifndef CAIRN_AGENT_COMMIT_H
#define CAIRN_AGENT_COMMIT_H

#include "agent/store.h"

enum { COMMIT_REASON_ROLLED_FORWARD = 5 }; /* manifest.proto, Commit.reason */
#define COMMIT_ARENA_BYTES (16 * GiB)      /* no more than what the manifests need is taken of it */

/* An attempt's directory whose manifests are all there. */
struct commit_source {
        int dir_fd;
        const char *name; /* of the directory, for errors */
        uint64_t generation;
        uint32_t attempt, world;
        uint32_t reason;
        const char *tag;
        /* By rank: the manifests, of which not all lie here; their nodes have looked at the data.
         * NULL: they are read from the directory. */
        const struct commit_part *parts;
};
struct commit_part {
        const void *bytes;
        size_t count;
};
struct commit_files {
        void *index, *record;
        size_t index_bytes, record_bytes;
        int64_t step;
        uint64_t bytes; /* data, all ranks */
        bool flagged;   /* suspect ending or non-finite state: never chosen by itself */
};
/* Manifests of ranks 0..world-1 -> INDEX and COMMIT as bytes; commit_files_done frees. Checks that
 * each data file has the length and the header that its manifest names. Writes nothing. */
int commit_compose(struct store_run *run, const struct commit_source *source,
                   struct commit_files *ret, struct cairn_error *reterr);
void commit_files_done(struct commit_files *files);

/* Rename the complete directory `from` to the name of a checkpoint. A valid checkpoint that has the
 * name already stays (*ret_existed); a damaged one is moved to .trash-. Not yet durable. */
int commit_give_name(struct store_run *run, const char *from, const char *name, bool *ret_existed,
                     struct cairn_error *reterr);
/* COMMIT and INDEX into the attempt's own directory, durable; what is there of them goes. */
int commit_write_files(struct store_run *run, struct attempt *a, const struct commit_files *files,
                       struct cairn_error *reterr);
/* Its name, which is that of what COMMIT in it says, and the last sync. Asked again it finds what
 * happened. */
int commit_rename(struct store_run *run, struct attempt *a, struct commit_result *ret,
                  struct cairn_error *reterr);

/* STALE if the run has a claim above `generation`. */
int commit_check_fenced(struct store_run *run, uint64_t generation, struct cairn_error *reterr);
/* COMMIT of the checkpoint directory `name`. */
int commit_load_record(const struct io_ops *io, int run_fd, const char *name, struct arena *arena,
                       struct file_content *ret, struct cairn_error *reterr);
/* Open an attempt's directory again, in a new process. It is not an error that it is gone (dir_fd
 * -1): commit and publish then look for what became of it. */
int attempt_reopen(struct store_run *run, uint64_t generation, uint32_t attempt, uint32_t world,
                   struct attempt *ret, struct cairn_error *reterr);

#endif
