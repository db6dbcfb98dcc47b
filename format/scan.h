/* SPDX-License-Identifier: Apache-2.0
 *
 * scan.h - the read-only view of a run's folder: generations, checkpoints, attempts, lineage. Used
 * by the agent's store process to judge an intent and by the tools; changes nothing on disk.
 * Validity of a checkpoint is COMMIT plus matching manifests' digests (checkpoint_check), never its
 * name.
 */
#ifndef CAIRN_SCAN_H
#define CAIRN_SCAN_H

#include "format/file.h"
#include "format/names.h"

#define SCAN_NODE_BYTES 64

enum checkpoint_validity {
        CHECKPOINT_UNCHECKED = 0,
        CHECKPOINT_VALID = 1,
        CHECKPOINT_FLAGGED =
                2, /* valid, but never chosen by itself: suspect ending or non-finite state */
        CHECKPOINT_DAMAGED =
                3, /* error says why; attempts: not complete, or not possible to roll forward */
        CHECKPOINT_ROLLABLE = 4, /* an attempt on the lineage whose manifests are all there and make
                                    a whole checkpoint */
};
struct scan_checkpoint {
        char name[NAME_BYTES]; /* directory */
        int64_t step;          /* attempts: of their manifests, -1 if unknown */
        uint64_t generation;
        uint32_t attempt; /* attempts only */
        bool is_attempt;  /* .pending or .stale directory */
        bool pinned;
        bool on_lineage; /* of the newest started generation */
        enum checkpoint_validity validity;
        uint64_t bytes; /* data, from COMMIT */
        uint64_t time_ns;
        uint32_t record_crc32c; /* of COMMIT */
        struct cairn_error error;
};
struct scan_generation {
        uint64_t generation;
        bool started; /* has GEN-n.start */
        int64_t parent_step;
        uint64_t parent_generation; /* 0: none */
        char parent[NAME_BYTES];
        uint32_t world;           /* 0: the claim cannot be read */
        struct cairn_error error; /* status 0, or why claim or start cannot be used */
        /* In the folder of one node of several: that node's ranks in this generation. */
        uint32_t node_first, node_ranks;
};
/* A node of a generation in node-local stores, with its ranks. */
struct scan_node {
        char node[SCAN_NODE_BYTES];
        uint32_t first_rank, ranks;
};
struct run_scan {
        struct scan_generation *generations; /* ascending */
        size_t generation_count;
        struct scan_checkpoint *checkpoints; /* ascending (generation, step); attempts after them */
        size_t checkpoint_count;
        uint64_t generation_max; /* highest claim, started or not; 0: none */
        bool finished; /* by the newest started generation: one that started later goes on */
        char finished_reason[128];
        int64_t finished_step;
        /* marks/NODE: this folder holds the ranks of that node alone, each other node has its own.
         * Attempts that are ROLLABLE and checkpoints that are VALID are so as far as this node's
         * part goes. "": it holds all. */
        char node[SCAN_NODE_BYTES];
        struct scan_node *nodes; /* of the newest generation that names them, by first_rank */
        size_t node_count;
};

/* Open a store directory (read-only) and check its marker. NOTFOUND: no such directory; MISMATCH:
 * no or foreign marker; UNREACHABLE: cannot be listed. */
int store_open(const struct io_ops *io, const char *path, int *ret_dirfd,
               struct cairn_error *reterr);
#define STORE_SHARED 1
#define STORE_NODE_LOCAL 2
struct store_marker {
        uint8_t id[16];
        uint32_t kind;
};
/* Of a store that is open; as store_open. */
int store_read_marker(const struct io_ops *io, int dirfd, const char *path,
                      struct store_marker *ret, struct cairn_error *reterr);
/* The run's folder beneath it; NOTFOUND if the run does not exist. */
int run_open(const struct io_ops *io, int store_dirfd, const char *run, int *ret_dirfd,
             struct cairn_error *reterr);
/* check_digests: false = names, COMMIT records, size and header of INDEX (validity UNCHECKED or
 * FLAGGED, or DAMAGED), true = also the digests of INDEX and all manifests and the size of each
 * data file. Attempts on the lineage are always judged. A checkpoint that disappears meanwhile is
 * left out, after another look at what took its place. Errors are of the folder as a whole: it
 * cannot be listed, a file cannot be read for want of permission or memory, the mark of the end is
 * damaged. */
int run_scan(const struct io_ops *io, int run_dirfd, const char *run, bool check_digests,
             struct run_scan *ret, struct cairn_error *reterr);
void run_scan_done(struct run_scan *scan);
/* Is this state on the lineage of the newest started generation? Looks at the generations alone. */
bool scan_on_lineage(const struct run_scan *scan, uint64_t generation, int64_t step);
/* After a scan without digests: those of the newest candidate (scan_newest), and of the next one
 * where it is damaged, until it is what a resume takes. */
int run_scan_check_newest(const struct io_ops *io, int run_dirfd, const char *run,
                          struct run_scan *scan, struct cairn_error *reterr);

/* The node whose folder this is; "": it holds all ranks. Which ranks a node has in a generation: a
 * block of them, count 0: none. */
int node_read(const struct io_ops *io, int run_dirfd, char ret[SCAN_NODE_BYTES],
              struct cairn_error *reterr);
void node_ranks(const Cairn__Format__Generation *g, const char *node, uint32_t *ret_first,
                uint32_t *ret_count);
/* Whose manifests and data of a checkpoint this folder holds: all `world` ranks, or those of its
 * node, which is named. */
int checkpoint_here(const struct io_ops *io, int run_dirfd, uint64_t generation, uint32_t world,
                    struct scan_node *ret, struct cairn_error *reterr);

/* Newest candidate to resume from on the lineage of the newest started generation: highest
 * (generation, step) that is VALID or UNCHECKED, or an attempt that is ROLLABLE (is_attempt; to be
 * rolled forward first). `skip` of them are passed over (fall back from damaged ones). NULL: none.
 */
const struct scan_checkpoint *scan_newest(const struct run_scan *scan, size_t skip);
const struct scan_checkpoint *scan_find_step(const struct run_scan *scan,
                                             int64_t step); /* usable ones first, then
                                                               those on the lineage */

/* COMMIT, INDEX and every manifest that is to be here (checkpoint_here): digests, agreement,
 * coverage; data files' sizes and headers.
 * Without `data`, no data bytes are read; with it every chunk and tensor CRC is checked.
 * *ret_tensors etc. for the report (NULL allowed). */
struct verify_result {
        uint64_t files, tensors, bytes;
        struct scan_node here; /* whose ranks these were; node "": all */
        uint32_t world;
};
int checkpoint_check(const struct io_ops *io, int run_dirfd, const char *name, const char *run,
                     bool data, struct verify_result *ret, struct cairn_error *reterr);
/* What it means that a file of a checkpoint is not there (r and *reterr NOTFOUND, any other is
 * returned as it is): CORRUPT, unless the folder is gone, too: then it was pruned meanwhile,
 * NOTFOUND with that sentence. The checks here have done this already. */
int checkpoint_missing(const struct io_ops *io, int run_dirfd, const char *name, int r,
                       struct cairn_error *reterr);
/* INDEX and COMMIT of a checkpoint, checked against each other. */
int checkpoint_load(const struct io_ops *io, int run_dirfd, const char *name, struct arena *arena,
                    struct file_content *ret_index, struct file_content *ret_commit,
                    struct cairn_error *reterr);

#endif
