/* SPDX-License-Identifier: Apache-2.0
 *
 * store_view.h - how the tools find what the user names: a store, a run in it, a checkpoint of it.
 * Read-only; needs no agent. A view owns its descriptors and its scan; store_view_done accepts
 * half-built ones.
 *
 * CKPT is a path to a checkpoint's folder, RUN/NAME or RUN (its newest), RUN@STEP; RUN is a name in
 * the store.
 */
#ifndef CAIRN_TOOLS_STORE_VIEW_H
#define CAIRN_TOOLS_STORE_VIEW_H

#include "format/scan.h"
#include <limits.h>

struct store_view {
        char path[PATH_MAX];              /* the store */
        char run[RUN_NAME_BYTES_MAX + 1]; /* "" while no run was asked for */
        char checkpoint[NAME_BYTES];      /* "" unless resolved */
        int store_fd, run_fd;
        struct run_scan scan;
        bool scanned;
};
#define STORE_VIEW_INIT \
        { .store_fd = -1, .run_fd = -1 }

void store_view_done(struct store_view *v);
/* --store, else $CAIRN_STORE, else ./cairn-store. */
const char *store_view_default(const char *option);
/* The run of a command: the argument, else $CAIRN_RUN; API if neither. */
int store_view_run_name(const char *argument, const char **ret, struct cairn_error *reterr);
int store_view_open(struct store_view *v, const char *store, struct cairn_error *reterr);
/* Opens and scans the run. */
int store_view_open_run(struct store_view *v, const char *store, const char *run,
                        struct cairn_error *reterr);
/* Opens store and run of a CKPT argument and fills v->checkpoint. */
int store_view_open_checkpoint(struct store_view *v, const char *store, const char *checkpoint,
                               struct cairn_error *reterr);
/* What a resume would take; NULL: there is nothing. Damaged ones are marked as such in the scan. */
int store_view_newest(struct store_view *v, const struct scan_checkpoint **ret,
                      struct cairn_error *reterr);
const struct scan_checkpoint *store_view_find(const struct store_view *v, const char *checkpoint);

/* "1.5 GiB", "12 min": for people. `text` holds at least 32 bytes; returned. */
/* "node b, ranks 2 to 3 of 4"; "" for a folder that holds all of them. */
const char *human_here(const struct scan_node *here, uint32_t world, char text[128]);
const char *human_bytes(uint64_t bytes, char *text);
const char *human_duration(uint64_t ns, char *text);
uint64_t human_age(uint64_t time_ns); /* now - time, 0 if it lies ahead */

#endif
