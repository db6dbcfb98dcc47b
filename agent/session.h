/* SPDX-License-Identifier: Apache-2.0
 *
 * session.h - one trainer process (one rank of one run) as cairnd sees it: its control page, slabs,
 * inventory, staging, saver, and how it ends.
 *
 *   HELLO -> WELCOMED -> SEALING -> SEALED -> RESTORING -> ACTIVE <-> RESEALING
 *                                                \-> (each) -> SETTLING -> ENDED
 *
 * The trainer's death is its pidfd's, never end-of-file. Then the session settles: what was cut is
 * written and committed (memory is in memfds, it does not need its owner), within a limit; the
 * saver is ended; only then may a successor of (run, rank) be welcomed. A saver's death costs its
 * cut: the page is revoked, a new saver gets every descriptor and a new staging. A saver that
 * cannot be reaped is abandoned together with its staging.
 *
 * Owned by the agent's list; freed by agent_reap once ENDED. Attempts at checkpoints belong to the
 * run (run.h), which is told through run_session_*.
 */
#ifndef CAIRN_AGENT_SESSION_H
#define CAIRN_AGENT_SESSION_H

#include "agent/agent.h"
#include "agent/saver_link.h"

enum session_state {
        SESSION_HELLO,
        SESSION_WELCOMED,
        SESSION_SEALING,
        SESSION_SEALED,
        SESSION_RESTORING,
        SESSION_ACTIVE,
        SESSION_RESEALING,
        SESSION_SETTLING,
        SESSION_ENDED,
        SESSION_STATE_COUNT
};

struct session_restore {
        struct reply_to reply; /* of Restore */
        struct reply_to inventory_reply;
        int plan_fd;
        uint64_t staging_bytes, range_count;
        uint32_t world, first, count; /* count: ranks whose files are here */
        uint32_t next;      /* ranks before it have been sent, as far as they are needed */
        uint32_t unflushed; /* files that the saver has not been told to read */
        bool wanted, opened, files_pending;
        bool begun; /* this saver has the plan */
        unsigned tries;
        uint64_t bytes, read_ns;
};

enum postmortem_state {
        POSTMORTEM_UNDECIDED,
        POSTMORTEM_WANTED,  /* to be ordered as soon as a saver has files */
        POSTMORTEM_ORDERED, /* the saver was told; its answer makes it WANTED again, to be judged */
        POSTMORTEM_OVER     /* nothing to take, taken, or given up */
};

struct session {
        struct agent *agent;
        struct run *run;
        uint64_t id;
        uint32_t rank;
        enum session_state state;
        uint8_t secret[16];
        bool reattached, dead, closed, finished;
        struct reply_to hello; /* connection: NULL-able, see server_reach */
        pid_t pid;
        int pidfd;
        struct loop_source pid_source;
        struct loop_timer timer; /* settling's limit */
        uint64_t limit_ns;

        int page_fd, event_fd;
        struct control_page *page;
        struct loop_source event_source; /* rings are declined while there is no saver */

        int slab_fds[SLAB_COUNT_MAX];
        uint64_t slab_bytes[SLAB_COUNT_MAX];
        uint32_t slab_kinds[SLAB_COUNT_MAX];
        uint32_t slab_count;
        struct cairn_error slab_error; /* nobody waits for SlabBatch: the seal tells */

        int inventory_fd, host_fd, staging_fd;
        int push_fd;        /* where the trainer copies (format/push.h); else -1 */
        uint64_t elsewhere; /* tensors in memory that ends with the trainer */
        char device[40];    /* the GPU's UUID as text; "": the host */
        uint64_t seal, image_bytes, tensor_count, staging_bytes;
        uint64_t gate_deadline_ns, copy_rate, write_rate; /* bytes per second; 0: not measured */
        struct reply_to seal_reply;

        struct saver_link saver;
        bool saver_ready, saver_sealed, saver_stopping;
        bool no_room;          /* for staging; said, and tried again; snapshots are BUSY */
        unsigned saver_deaths; /* since the last thing that went well */
        struct loop_timer respawn_timer;
        uint64_t respawn_ns;

        uint32_t armed_attempt; /* 0: the saver has no files */
        bool disarming, writing;
        struct saver_ending ending;
        enum postmortem_state postmortem;
        unsigned postmortem_tries;
        bool is_parked, is_ended; /* park.h: held by us at its step; killed for another's failure */
        struct cut_word parked;
        uint64_t death_ns;
        uint64_t take_seq; /* what the saver was told to take since it was armed */

        struct session_restore restore;
        struct reply_to exit_reply; /* RankExit that waits */
        uint64_t exit_ns;
        struct cairn_error last_error;
        uint64_t word_seen, word_since_ns; /* since when the trainer is where it is */
};

struct session_hello {
        uint32_t rank;
        uint64_t session_id; /* not 0: it was welcomed before; fds: pidfd, page */
        const uint8_t *secret;
        struct reply_to to;
        pid_t pid;
};

/* Make a session and welcome it. Takes descriptors from `fds`. */
int session_open(struct run *run, const struct session_hello *hello, struct wire_fds *fds,
                 struct session **ret, struct cairn_error *reterr);
/* The same trainer came back over a new connection, the session is known here. */
int session_rebind(struct session *s, const struct session_hello *hello,
                   struct cairn_error *reterr);
void session_free(struct session *s);

/* Messages of its trainer (server_fn without the lookup). */
int session_slabs(struct session *s, const struct reply_to *to, const Cairn__Control__SlabBatch *m,
                  struct wire_fds *fds, struct cairn_error *reterr);
int session_seal(struct session *s, const struct reply_to *to, const Cairn__Control__Seal *m,
                 struct wire_fds *fds, struct cairn_error *reterr);
int session_inventory(struct session *s, const struct reply_to *to, struct cairn_error *reterr);
int session_restore(struct session *s, const struct reply_to *to, const Cairn__Control__Restore *m,
                    struct wire_fds *fds, struct cairn_error *reterr);
int session_restore_done(struct session *s, const struct reply_to *to, int status,
                         struct cairn_error *reterr);

/* The saver's side (agent_ops). */
void session_saver_message(struct session *s, const struct saver_message *m, struct wire_fds *fds);
void session_saver_ended(struct session *s, bool reaped, int wait_status);

/* The process is gone (its pidfd, or its reaper says so). */
void session_died(struct session *s);
void session_signal(struct session *s, int signal_number);
/* It is gone, whether or not that was noticed, or dying: its memory is being dumped. */
bool session_is_ending(const struct session *s);
/* Nothing of it is in flight any more, or the limit passed: end the saver, then ENDED. */
void session_finish_settling(struct session *s);
bool session_settled(const struct session *s);

/* For the run: hand out files, ask for a cut, take files back. */
bool session_can_arm(const struct session *s);
int session_arm(struct session *s, uint32_t attempt, int parcel);
/* Also while they are copied or written to, which ends with run_session_void or _written then. */
void session_disarm(struct session *s);
void session_take(struct session *s, uint64_t seq);
/* A group's cut (hold.h): claim and hold the state at `step` or later; then one of the others. */
int session_hold(struct session *s, int64_t step);
void session_go(struct session *s);
void session_release(struct session *s);
/* Of a dead trainer: arm, order, start a saver where there is none, whatever comes next. */
void session_take_last(struct session *s);
void session_ring(struct session *s);
/* A copy is under way, or a request is about to be claimed. */
bool session_copying(const struct session *s);
struct cut_word session_word(struct session *s); /* and keeps word_since_ns */
/* The first STABLE state ends the registration, whether or not the trainer said so. */
void session_refresh(struct session *s);

const char *session_state_name(enum session_state state);

#endif
