/* SPDX-License-Identifier: Apache-2.0
 *
 * handle.h - the session behind cairn.h, for the files of this room. open.c makes it, seal.c and
 * restore.c bring it to its first cut, loop.c and snapshot.c use it.
 *
 *   OPENED --seal--> SEALED --restore--> STABLE <--update_begin / update_end--> UPDATING
 *
 * Threads: everything belongs to the API thread, but for the page (atomics), `poisoned`, and
 * `error`, which error_lock guards because cairn_snapshot and cairn_snapshot_poll come from any
 * thread.
 */
#ifndef CAIRN_CLIENT_HANDLE_H
#define CAIRN_CLIENT_HANDLE_H

#include "client/binding.h"
#include "client/inventory.h"
#include "client/link.h"
#include "client/pusher.h"
#include "client/stream.h"
#include "client/textbuf.h"
#include "format/cut.h"

enum handle_stage {
        HANDLE_FAILED = 0, /* cairn_open failed: only error_text, exit_code and close */
        HANDLE_OPENED,
        HANDLE_SEALED,
        HANDLE_STABLE,
        HANDLE_UPDATING,
};

struct cairn {
        enum handle_stage stage;
        bool opened;  /* constant after cairn_open: any thread asks */
        bool passive; /* without_checkpoints */
        bool debug_mutation;
        _Atomic bool poisoned;
        const char *fork_guard; /* a page that is wiped in a child; NULL: not available */
        const struct clock_ops *clock;

        char run[RUN_NAME_BYTES_MAX + 1];
        uint32_t rank, world;
        struct layout_ranks writers; /* of replicated tensors */
        uint64_t generation, restart, every_steps;
        enum cairn_start start;
        struct arena strings; /* of Welcome; live as long as the handle */
        const char *checkpoint, *run_dir;
        int64_t checkpoint_step;
        struct pair *overrides, *conversions;
        size_t override_count, conversion_count;
        _Atomic bool *overrides_asked; /* by cairn_override; parallel */

        struct device *device;
        struct stream stream; /* of a GPU's session */
        struct pusher pusher; /* where this process copies */
        struct slabs slabs;
        struct registry registry;
        struct link link;
        bool link_ready;
        uint32_t slabs_linked; /* slabs that the link knows */
        struct control_page *page;
        int ring_fd, generation_fd; /* generation_lock.h */

        struct inventory inventory; /* of the newest seal */
        uint64_t seal_number;
        struct cairn_error refused; /* the first registration that failed since the last seal */
        size_t value_count;         /* values of the newest seal */
        void *payload;
        struct cut_gate gate;
        int64_t step;
        struct stored stored;

        struct textbuf report_text, report_json;
        pthread_mutex_t error_lock;
        struct cairn_error error;
        struct textbuf details;      /* lines beside the error: all mismatches */
        struct textbuf error_string; /* what cairn_error_text returned */
};

/* First line of every call: NULL, poisoned or forked handles end here. */
int handle_check(struct cairn *c, const char *operation, struct cairn_error *reterr);
/* Last line of every call: remembers the error, returns r. */
int handle_end(struct cairn *c, int r, const struct cairn_error *e);
/* A broken invariant: every later call returns FATAL. */
int handle_poison(struct cairn *c, const char *operation, const char *what,
                  struct cairn_error *reterr);
int handle_wrong_stage(struct cairn *c, const char *operation, struct cairn_error *reterr);
void handle_ring(struct cairn *c);
/* Give new slabs to the link. */
int handle_link_slabs(struct cairn *c, struct cairn_error *reterr);
/* The stored INDEX of the checkpoint to start from, fetched once; NOTFOUND when the start is fresh.
 */
int handle_fetch_stored(struct cairn *c, struct cairn_error *reterr);
/* Host values, shadows and steps of the present state published as seq + 1, then STABLE. */
int handle_publish(struct cairn *c, int64_t step, struct cairn_error *reterr);
/* debug_mutation: take the digests; compare them (API names the tensor that changed). Of a GPU's
 * memory they are of a copy. */
int handle_digest_take(struct cairn *c, struct cairn_error *reterr);
int handle_digest_compare(struct cairn *c, struct cairn_error *reterr);

#endif
