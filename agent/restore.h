/* SPDX-License-Identifier: Apache-2.0
 *
 * restore.h - finding and opening a checkpoint that is named by NAME (in the run), RUN/NAME (in the
 * store) or a path (of any store). The verb restore_open is in store.h.
 */
#ifndef CAIRN_AGENT_RESTORE_H
#define CAIRN_AGENT_RESTORE_H

#include "agent/store.h"

struct checkpoint_place {
        int run_fd; /* directory in which the checkpoint lies; owned */
        char name[NAME_BYTES];
        char run[RUN_NAME_BYTES_MAX + 1]; /* as its COMMIT says */
        int64_t step;
        uint64_t generation;
        uint32_t world;
        uint32_t index_crc32c; /* of the whole INDEX */
        uint64_t index_bytes;
};
/* NOTFOUND if it names nothing. Reads COMMIT only. */
int checkpoint_place_open(struct store *store, const char *run, const char *checkpoint,
                          struct checkpoint_place *ret, struct cairn_error *reterr);
void checkpoint_place_done(struct store *store, struct checkpoint_place *place);

/* INDEX as a sealed memfd, if it is the one that COMMIT names, and whose data files are here.
 * Whether the manifests agree with it was proven by the commit and is again when a start chooses
 * the checkpoint: each rank reads INDEX alone, for there may be thousands. */
int restore_open_index(struct store *store, const struct checkpoint_place *place,
                       int *ret_index_memfd, struct scan_node *ret_here,
                       struct cairn_error *reterr);
/* Data files of ranks first .. first + count - 1, headers checked; all or none. */
int restore_open_files(struct store *store, const struct checkpoint_place *place, uint32_t first,
                       uint32_t count, int *ret_fds, struct cairn_error *reterr);

#endif
