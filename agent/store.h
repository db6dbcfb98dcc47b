/* SPDX-License-Identifier: Apache-2.0
 *
 * store.h - the store process: one child of cairnd per store, which does every path operation, so
 * that the event loop never blocks on storage. Both ends are the same binary and the child dies
 * with its agent (PR_SET_PDEATHSIG and end-of-file), so requests are plain structs over a SEQPACKET
 * socketpair; descriptors by SCM_RIGHTS.
 *
 * Layers:  store_link.c (loop side: queue of requests, one in flight, time-outs)  ->  store.c
 * (child's main: receives a request, calls one verb, replies)  ->  the verbs below, each a pure
 * sequence of io_ops calls, so that the simulator runs them without processes.
 *
 * A request is answered once, in order. A time-out of store_link means *outcome unknown*: the child
 * is killed and replaced, and the next one looks again (every verb is idempotent: asking again for
 * what has happened reports it). One owner per kind of change: generation.c claims, fences, rolls
 * forward; commit.c creates attempts, publishes manifests, commits; retention.c renames to .trash
 * and deletes; marks.c writes marks. Nobody else changes a store.
 *
 * Folders that people move under a run that goes on. A checkpoint is begun only where the run's
 * path leads to the folder that is open: moved away, it is refused with where the folder is now
 * (CANNOT_WRITE); removed, the path is looked at anew: a copy that was put back is taken, a store
 * without the run gets its folder with the generation again (generation_remake), and without a
 * store the error says so. Whatever fails in a folder that is not at its place says that it is not.
 */
#ifndef CAIRN_AGENT_STORE_H
#define CAIRN_AGENT_STORE_H

#include "base/clock.h"
#include "base/io.h"
#include "format/names.h"
#include "format/scan.h"

#define STORE_PATH_BYTES 4096
#define STORE_NOTE_BYTES 1024

/* Modes as on the wire. */
enum start_mode { START_FRESH = 1, START_RESUME = 2, START_AUTO = 3, START_INIT_FROM = 4 };

/* An open store in the child. */
struct store {
        const struct io_ops *io;
        const struct clock_ops *clock;
        char path[STORE_PATH_BYTES];
        int fd;
};
struct store_run {
        struct store *store;
        char run[RUN_NAME_BYTES_MAX + 1];
        int fd;
        int lock_fd; /* marks/LOCK, held (OFD lock or flock) while the run lives; -1 */
};

/* ---- generation.c ---- */
struct start_request {
        char run[RUN_NAME_BYTES_MAX + 1];
        uint32_t world;
        enum start_mode mode;
        bool has_from_step, create_store, is_restart;
        bool grouped; /* several nodes: no lock is taken, the rendezvous' leases say who lives */
        bool again;   /* its runner has held the lock before: BUSY while it is held, not EXISTS */
        int64_t from_step;
        uint64_t restart;
        char init_from[STORE_PATH_BYTES]; /* CKPT: directory name in this run, RUN/NAME, or a path
                                             to a checkpoint */
        uint32_t skip_newest;             /* crash-loop guard: pass over that many */
        uint64_t generation_min; /* of a restart: the generation that it follows must be there */
        int64_t before_step;     /* the like, not 0: only steps before it, if there are any */
        char overrides[4096];    /* "k=v\n..." as recorded in GEN */
};
struct start_reply {
        uint64_t generation;
        enum start_mode decided;           /* FRESH, RESUME, INIT_FROM */
        char checkpoint[STORE_PATH_BYTES]; /* to restore, or init-from source */
        int64_t checkpoint_step;           /* -1: none */
        uint64_t checkpoint_generation;
        uint32_t checkpoint_world;
        bool finished; /* auto on a finished run: nothing was changed */
        char finished_reason[128];
        /* STORE_REOPEN: the newest checkpoint of the generation itself; "": none */
        char committed[NAME_BYTES];
        int64_t committed_step;
        uint64_t committed_bytes;
        char note[STORE_NOTE_BYTES]; /* fell back from ..., rolled forward ... */
};
/* Judge on a read-only scan, then make a generation exactly in the order of docs/FORMAT.md: claim
 * GEN-n exclusively -> rename older .pending-* to .stale-* -> roll forward a complete stale attempt
 * on the lineage -> fsync the run's directory
 * -> choose the parent -> link GEN-n.start whole. A refused start changes nothing. Takes the run's
 * lock (kept in `run->lock_fd`); EXISTS: living. Refusals, each with its own sentence: fresh on a
 * used run EXISTS (says how to resume), resume of nothing NOTFOUND, finished FINISHED, foreign
 * store MISMATCH, all damaged CORRUPT, only flagged CORRUPT naming
 * --from, store unlisted UNREACHABLE, unwritable CANNOT_WRITE. */
int generation_start(struct store *store, const struct start_request *request,
                     struct store_run *ret_run, struct start_reply *ret,
                     struct cairn_error *reterr);
int store_create(const struct io_ops *io, const struct clock_ops *clock, const char *path,
                 uint32_t kind, struct cairn_error *reterr);
void store_run_done(struct store_run *run); /* releases the lock */

/* ---- commit.c ---- */
struct attempt { /* one attempt at a checkpoint by this generation's leader */
        uint64_t generation;
        uint32_t attempt;
        uint32_t world;
        int dir_fd; /* pending directory */
        char name[NAME_BYTES];
        bool reopened; /* by a successor of the process that created it (attempt_reopen) */
        bool doomed; /* a write or sync failed, or it is committed: nothing more may be done with it
                      */
};
/* mkdir .pending-g-a, fsync the run's directory, look for a higher GEN (STALE), create rank files
 * exclusively. */
int attempt_open(struct store_run *run, uint64_t generation, uint32_t attempt, uint32_t world,
                 struct attempt *ret, struct cairn_error *reterr);
/* Data file (O_DIRECT is the saver's choice, by fcntl F_SETFL) and manifest file under a temporary
 * name, both created exclusively and opened for reading and writing. */
int attempt_open_rank(struct attempt *a, const struct io_ops *io, uint32_t rank, int *ret_data_fd,
                      int *ret_manifest_fd, struct cairn_error *reterr);
/* The saver wrote and fsynced data, then manifest: rename to its name, fsync(pending dir): the
 * rank's acknowledgement. */
int attempt_publish_manifest(struct attempt *a, const struct io_ops *io, uint32_t rank,
                             struct cairn_error *reterr);
/* Leader: check for a higher GEN, merge manifests -> INDEX, COMMIT -> fsync each -> fsync(pending
 * dir) -> rename to <step>-g<generation> -> fsync(run dir). If that name exists and is a valid
 * checkpoint of the same cut: it stays and is what *ret describes, with `existed` (B03b: writing a
 * step that exists has a defined result). Success means durable. */
struct commit_result {
        char name[NAME_BYTES];
        int64_t step;
        uint64_t bytes;
        bool existed, flagged;
};
int attempt_commit(struct store_run *run, struct attempt *a, uint32_t reason, const char *tag,
                   struct commit_result *ret, struct cairn_error *reterr);
/* Failed or unwanted: unlink its files, remove the directory, never reuse them. */
int attempt_discard(struct store_run *run, struct attempt *a, struct cairn_error *reterr);
void attempt_done(struct attempt *a, const struct io_ops *io);

/* ---- retention.c ---- */
/* Keep the newest keep_last verified checkpoints of the lineage; never the parent of the newest
 * generation, a pinned one or the last one; rename to .trash-*, fsync, delete. Also deletes .trash
 * and finished .stale leftovers. */
int retention_run(struct store_run *run, uint32_t keep_last, uint32_t *ret_deleted,
                  struct cairn_error *reterr);
/* The same as an operator asks for it. */
struct prune {
        uint32_t keep_last;  /* 0: all */
        uint64_t keep_every; /* verified checkpoints of steps that are multiples stay; 0: no such */
        bool dry_run;        /* only say what would go */
        /* Attempts of this generation with lower numbers are over; 0: none is known to be. */
        uint64_t generation;
        uint32_t attempts_before;
        uint32_t deleted;
        uint64_t bytes;    /* of their data */
        uint64_t slice_ns; /* to be deleting for; 0: as long as it takes */
        bool more;         /* there is more to be deleted: ask again */
        char *names;       /* a line each, as many whole ones as fit; NULL allowed */
        size_t names_bytes;
};
int retention_prune(struct store_run *run, struct prune *prune, struct cairn_error *reterr);

/* ---- marks.c ---- */
int mark_finished(struct store_run *run, const char *reason, int64_t step, uint64_t generation,
                  struct cairn_error *reterr);
int mark_tag(struct store_run *run, const char *checkpoint, const char *tag,
             struct cairn_error *reterr);
/* A pinned checkpoint is never deleted by retention. Unpinning what is not pinned is no error. */
int mark_pin(struct store_run *run, const char *checkpoint, bool pinned,
             struct cairn_error *reterr);
int mark_exit(struct store_run *run, int code, const char *reason, int64_t step,
              struct cairn_error *reterr); /* exit.json */

/* ---- restore.c: descriptors for a restore ---- */
/* INDEX bytes as a sealed memfd, data files of all ranks opened read-only (O_DIRECT where
 * possible). The digest of INDEX and the headers are checked first. */
int restore_open(struct store *store, const char *run, const char *checkpoint, int *ret_index_memfd,
                 int *ret_data_fds, uint32_t fds_max, uint32_t *ret_world,
                 struct cairn_error *reterr);

/* ---- messages between store_link.c and store.c ---- */
enum store_verb {
        STORE_START = 1,
        STORE_ATTEMPT_OPEN,
        STORE_PUBLISH_MANIFEST,
        STORE_COMMIT,
        STORE_DISCARD,
        STORE_RETAIN,
        STORE_FINISHED,
        STORE_EXIT,
        STORE_RESTORE_OPEN,
        STORE_RESTORE_FILES,
        STORE_END_RUN,
        STORE_TAG,
        STORE_PIN,
        STORE_UNPIN,
        STORE_REOPEN, /* store_link's own, after a child was replaced */
        /* node_store.h */
        STORE_LOOK,
        STORE_SURVEY,
        STORE_PARTS,
        STORE_COMPOSE,
        STORE_RECORDS,
        STORE_RECORD,
        STORE_RENAME,
        STORE_SETTLE
};
struct store_message {
        uint64_t id;
        enum store_verb verb;
        int status;               /* reply */
        struct cairn_error error; /* reply */
        char run[RUN_NAME_BYTES_MAX + 1];
        uint64_t generation;
        uint32_t attempt, rank, world, reason, keep_last, first, count;
        uint64_t keep_every, bytes; /* RETAIN */
        bool dry_run, more;         /* RETAIN; more: its reply, as in prune */
        bool remade; /* ATTEMPT_OPEN's reply: the run's folder was gone and is there again, empty */
        /* STORE_REOPEN by a new agent: nothing of the former one runs, finish what it left. Never
         * where
         * only the store process was replaced, whose agent's attempts live on. */
        bool take_up;
        bool grouped; /* as in start_request */
        bool has_fd;  /* a descriptor goes along, which stays the caller's (COMPOSE and later) */
        int fd;
        uint64_t of_generation; /* PARTS, COMPOSE, RECORDS: the attempt's; they need no open run */
        int64_t step;
        int32_t code;
        char name[STORE_PATH_BYTES]; /* checkpoint, tag, reason; RETAIN's reply: what was deleted */
        union {
                struct start_request start;
                struct start_reply started;
                struct commit_result committed;
        };
};
/* The child's main loop on `socket`; returns its exit status. Holds the open runs and attempts. */
int store_main(int socket, const char *path);

#endif
