/* SPDX-License-Identifier: Apache-2.0
 *
 * ranks.h - what savers do, for tests of the store: a small, valid data file and manifest whose
 * bytes follow from run, generation and step. Works on any io_ops.
 */
#ifndef CAIRN_TESTS_RANKS_H
#define CAIRN_TESTS_RANKS_H

#include "agent/store.h"

struct ranks_cut {
        const char *run;
        uint64_t generation;
        uint32_t attempt, world;
        int64_t step;
        bool suspect;            /* ended by a fault */
        uint64_t non_finite;     /* tensors */
        uint64_t data_bytes_min; /* larger data files, in whole blocks; 0: two */
};
/* Data -> fdatasync -> manifest -> fsync, as the saver does, into files of attempt_open_rank. */
int ranks_write(const struct io_ops *io, const struct ranks_cut *cut, uint32_t rank, int data_fd,
                int manifest_fd, struct cairn_error *reterr);
/* attempt_open, all ranks written and published; closes what it opened but for the attempt. */
int ranks_attempt(struct store_run *run, const struct ranks_cut *cut, struct attempt *ret,
                  struct cairn_error *reterr);
/* The same and attempt_commit. */
int ranks_commit(struct store_run *run, const struct ranks_cut *cut, struct commit_result *ret,
                 struct cairn_error *reterr);

#endif
