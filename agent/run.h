/* SPDX-License-Identifier: Apache-2.0
 *
 * run.h - one training job on this node: its generation, its sessions, its attempts at checkpoints
 * and who waits for them.
 *
 *   STARTING -> LIVE -> ENDING -> ENDED
 *
 * Attempts. Files are opened before a copy may start: the store process opens attempt n (run-wide
 * number within the generation), each local saver is armed with its files, cuts, writes; the
 * manifests are published; when all ranks have acknowledged one and the same step, COMMIT. Three
 * attempts exist at a time: while one is committed and one is written, the next is open already, so
 * that a saver is armed again the moment its staging is free. A failed write, a NACK or different
 * steps doom an attempt everywhere; the next one is independent of it.
 *
 * run_pump looks at everything and starts what can be started; it is called after each event and is
 * idempotent.
 */
#ifndef CAIRN_AGENT_RUN_H
#define CAIRN_AGENT_RUN_H

#include "agent/agent.h"
#include "agent/exchange.h"
#include "agent/notice.h"
#include "agent/outage.h"
#include "agent/session.h"

#define RUN_ATTEMPT_COUNT 3
#define RUN_WAITER_COUNT_MAX 64
#define RUN_STORE_TRIES 3
#define RUN_TICK_NS (100 * NSEC_PER_MSEC) /* while somebody waits */
#define RUN_KILL_NS (10 * NSEC_PER_SEC)
#define RUN_BANDWIDTH_ASSUMED (50 * MiB) /* bytes per second, until a write was measured */

enum run_state { RUN_STARTING, RUN_LIVE, RUN_ENDING, RUN_ENDED, RUN_STATE_COUNT };

enum rank_state { RANK_NONE, RANK_ARMED, RANK_CUT, RANK_WRITTEN, RANK_PUBLISHED, RANK_STATE_COUNT };
struct rank_cut {
        enum rank_state state; /* changed by attempt.c alone, which counts */
        int parcel;            /* data and manifest, until armed */
        uint64_t seq, bytes, cut_ns;
        int64_t step;
        unsigned tries;
        struct saver_ending ending; /* of its trainer, where that was dead */
};
/* A demanded cut of several ranks (hold.h). */
enum hold_state { HOLD_IDLE, HOLD_HOLDING, HOLD_GOING, HOLD_STATE_COUNT };
enum hold_rank_state { HOLD_RANK_NONE, HOLD_RANK_ASKED, HOLD_RANK_HELD, HOLD_RANK_VOID };
struct hold_rank {
        enum hold_rank_state state;
        int64_t step; /* HELD */
};
struct run_hold {
        enum hold_state state;
        uint32_t attempt; /* that all ranks are armed with */
        unsigned tries;
        int64_t step; /* to be held at, or later */
        uint64_t deadline_ns, after_ns;
        uint32_t rank_count, held_count, void_count;
        struct hold_rank *ranks; /* of the whole world, since it was last begun; or NULL */
};
enum attempt_state {
        ATTEMPT_EMPTY,
        ATTEMPT_OPENING,
        ATTEMPT_OPEN,
        ATTEMPT_COMMITTING,
        ATTEMPT_DISCARDING
};
struct run_attempt {
        enum attempt_state state;
        struct run *run;
        uint32_t number;
        uint64_t since_ns; /* when it was begun */
        unsigned tries;
        bool doomed;
        bool recorded;                  /* node-local stores: INDEX and COMMIT are on all nodes */
        struct commit_result heard;     /* member: what the leader has committed */
        bool told;                      /* a group's members are to open it, too */
        bool follow_told, follow_heard; /* some rank of the group was cut, at follow_step */
        int64_t follow_step;
        uint64_t follow_ns;
        struct cairn_error error; /* why */
        /* The whole world's and this node's ranks as they were when it was opened. A member of a
         * group hears of its own ranks only. */
        uint32_t world, first_rank, local_count;
        struct rank_cut *ranks; /* of the world; unless EMPTY */
        uint32_t counts[RANK_STATE_COUNT];
        bool is_uneven;               /* another rank was cut at other_step */
        int64_t step, other_step;     /* of the first rank that was cut */
        uint64_t first_ns, newest_ns; /* when the first one was cut, and the last one so far */
};
struct group;
struct run_waiter {
        bool used, internal, wait;
        bool notice; /* internal, and the notice's */
        struct run *run;
        bool forwarded;               /* the group's leader takes the cut and answers */
        uint64_t peer_nonce, peer_id; /* not 0: another node's agent waits for it */
        bool tagging; /* the checkpoint exists; the store process gives it the tag */
        struct reply_to to;
        uint64_t deadline_ns, since_ns;
        char tag[136];
        uint64_t seq[SESSION_COUNT_MAX]; /* of this node's ranks: a cut at or after it */
};
struct run_store_call;
struct run {
        struct agent *agent;
        enum run_state state;
        char name[RUN_NAME_BYTES_MAX + 1];
        char store[STORE_PATH_BYTES];
        char run_dir[STORE_PATH_BYTES];
        uid_t uid;
        uint32_t world;
        uint32_t first_rank, local_count; /* the ranks of this node: SESSION_COUNT_MAX at most */
        uint16_t master_port;             /* MASTER_PORT of all ranks, on the node of rank 0 */
        struct group *group;              /* NULL: a run of this node alone */
        uint64_t generation, restart, every_steps, every_ns;
        uint32_t keep_last;
        enum start_mode mode, intent;
        char checkpoint[STORE_PATH_BYTES];
        int64_t checkpoint_step;
        Cairn__Control__Start
                *start; /* the last request, unpacked on the heap: overrides, conversions */
        struct reply_to start_reply;
        bool start_pending; /* waits for the predecessor's sessions */
        struct wire_fds start_fds;
        struct store_message *start_request;

        struct reply_to runner;
        int runner_fd;
        struct loop_source runner_source;
        struct loop_timer kill_timer, every_timer, tick_timer;
        bool orphaned;            /* its runner is gone */
        uint64_t expect_until_ns; /* taken up again: until then its trainers come back */

        /* Of this node's ranks, from first_rank on; the newest. By rank: run_session. */
        struct session *sessions[SESSION_COUNT_MAX];
        struct held_hello successors[SESSION_COUNT_MAX];
        struct exchange exchange; /* between the ranks of this generation */

        struct run_attempt attempts[RUN_ATTEMPT_COUNT];
        uint32_t attempt_last;
        uint32_t open_wanted[RUN_ATTEMPT_COUNT]; /* what the leader told to open; 0: none */
        unsigned open_failures; /* in a row; opening again waits longer each time */
        uint64_t open_after_ns;
        unsigned write_failures; /* in a row; from the second one on savers are armed later */
        uint64_t arm_after_ns;
        struct run_store_call *store_calls; /* callbacks that will come */
        unsigned unretained;                /* commits since the last pruning was asked for */
        unsigned retain_failures;           /* of it in a row */
        bool retaining, pumping, pump_again, fenced;

        struct outage outage;
        uint64_t demand_last; /* number of the last demand that was forwarded */
        struct run_hold hold;
        struct run_waiter waiters[RUN_WAITER_COUNT_MAX];
        struct run_notice notice;
        struct { /* cairn stop */
                bool active, cut_demanded, termed, answered, told;
                bool preempted; /* because of some node's notice */
                struct reply_to replies[8];
                size_t reply_count;
                uint64_t half_ns, deadline_ns;
                int64_t resumable_before; /* when it was asked for */
        } stop;
        struct {
                struct reply_to replies[SESSION_COUNT_MAX];
                uint32_t count;
                bool sent, done;
                char reason[128];
                int64_t step;
        } finish;
        struct {
                struct reply_to reply;
                bool wanted, sent;
                char reason[256];
                int32_t code;
                uint64_t deadline_ns;
        } end;

        /* what people see */
        char committed_name[NAME_BYTES];
        int64_t committed_step; /* -1: none in this generation, nor its parent */
        bool committed_flagged; /* not finite: kept, and not what a restart begins from */
        int64_t resumable_step; /* of the newest one that is not flagged; -1: none */
        uint64_t committed_seq, committed_bytes, committed_ns; /* loop time; 0: not by this agent */
        uint64_t commit_ns; /* the newest one took that long from its cut on; 0: none yet */
        uint64_t attempts_failed, checkpoints_committed;
        uint64_t cuts_skipped;  /* the ranks were not level there */
        uint64_t failed_before; /* attempts_failed when the newest checkpoint was committed */
        uint64_t lost_steps, lost_last; /* finished, but in no checkpoint to resume from */
        int64_t died_step;              /* the last finished one of this generation, -1: none */
        int64_t postmortem_step;        /* taken after a death in it; -1: none */
        int64_t flagged_step; /* committed after the resumable one, but flagged; -1: none */
        struct cairn_error last_error;
};

/* Start of a runner; answers itself. */
int run_start(struct agent *a, struct connection *c, const struct reply_to *to,
              const Cairn__Control__Start *m, struct wire_fds *fds, struct cairn_error *reterr);
/* Hello of a trainer, for a run that is LIVE: Welcome, Wait or an error. */
int run_hello(struct run *run, struct held_hello *hello, struct cairn_error *reterr);
int run_rank_exit(struct run *run, const struct reply_to *to, const Cairn__Control__RankExit *m,
                  struct cairn_error *reterr);
/* Whose trainers live: answers ExchangeRanks. */
void run_answer_ranks(const struct run *run, const struct reply_to *to);
int run_exchange_put(struct run *run, uint32_t rank, const Cairn__Control__ExchangePut *m,
                     const struct reply_to *to, struct cairn_error *reterr);
int run_snapshot(struct run *run, const struct reply_to *to,
                 const Cairn__Control__SnapshotRequest *m, struct cairn_error *reterr);
int run_stop(struct run *run, const struct reply_to *to, uint64_t duration_ns,
             struct cairn_error *reterr);
int run_finish(struct run *run, struct session *s, const struct reply_to *to,
               const Cairn__Control__Finish *m, struct cairn_error *reterr);
int run_end(struct run *run, const struct reply_to *to, const char *reason, int32_t code,
            struct cairn_error *reterr);
void run_runner_gone(struct run *run);
void run_free(struct run *run);
/* group.c: its start was refused, and the other nodes are told: it stays until they were. */
bool run_is_telling(const struct run *run);
void run_pump(struct run *run);
/* Is it one of this node's? Then its place in the tables of those. */
static inline bool run_is_local(const struct run *run, uint32_t rank) {
        return rank >= run->first_rank && rank - run->first_rank < run->local_count;
}
/* NULL: it has none, or runs on another node. */
struct session *run_session(const struct run *run, uint32_t rank);
bool run_sessions_ended(const struct run *run);
/* Is anything of this session between its cut and its commit? */
bool run_session_in_flight(const struct run *run, const struct session *s);

/* Told by sessions. */
void run_session_cut(struct run *run, struct session *s, const struct saver_message *m);
void run_session_held(struct run *run, struct session *s, const struct saver_message *m);
void run_session_void(struct run *run, struct session *s, const struct saver_message *m);
void run_session_written(struct run *run, struct session *s, const struct saver_message *m);
void run_session_saver_lost(struct run *run, struct session *s, const struct cairn_error *error);
void run_session_disarmed(struct run *run, struct session *s, uint32_t attempt);
void run_session_ended(struct run *run, struct session *s);

/* Bytes per second for limits: measured, else assumed. */
uint64_t run_bandwidth(const struct run *run);
/* Send a request to the run's store; keeps the run alive until the answer. */
int run_store_request(struct run *run, struct store_message *m, agent_store_fn reply, void *context,
                      struct cairn_error *reterr);

/* When the oldest request was made that the store has not answered; 0: there is none. */
uint64_t run_store_asked_ns(const struct run *run);

const char *run_state_name(enum run_state state);

#endif
