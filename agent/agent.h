/* SPDX-License-Identifier: Apache-2.0
 *
 * agent.h - all of cairnd's state, built by main and passed to whoever needs it.
 *
 *     agent_init(&a, &config, &agent_ops_processes, program, &e);
 *     agent_run(&a, &e);         // the loop, until a signal, the runner's death or the last End
 *     agent_done(&a);
 *
 * One thread owns everything below. It calls the kernel for sockets, memfds, procfs and signals
 * only; path operations on stores go to the store process, bytes to the savers (struct agent_ops,
 * which tests replace). Modules: server (who speaks), run (generation, attempts at checkpoints,
 * demands), session (one trainer process), status (what people see).
 */
#ifndef CAIRN_AGENT_AGENT_H
#define CAIRN_AGENT_AGENT_H

#include "agent/config.h"
#include "agent/loop.h"
#include "agent/saver.h"
#include "agent/server.h"
#include "agent/store.h"

#define AGENT_RUN_COUNT_MAX 32
#define AGENT_HELD_COUNT_MAX SESSION_COUNT_MAX
#define AGENT_HELD_NS (30 * NSEC_PER_SEC)
/* A trainer that lost its agent comes back within this time (RECONNECT_NS, and some slack). */
#define AGENT_REATTACH_NS (3 * RECONNECT_NS)

struct agent;
struct run;
struct session;

/* `reply` and `fds` live during the call; descriptors that are not taken are closed. */
typedef void (*agent_store_fn)(void *context, const struct store_message *reply,
                               struct wire_fds *fds);
struct agent_ops {
        /* Ask the process of that store; exactly one callback follows, later, unless this fails. */
        int (*store_request)(struct agent *a, const char *store_path,
                             const struct store_message *request, agent_store_fn reply,
                             void *context, struct cairn_error *reterr);
        /* Messages reach session_saver_message, the end session_saver_ended. */
        int (*saver_start)(struct session *s, struct cairn_error *reterr);
        int (*saver_send)(struct session *s, const struct saver_message *m, const int *fds,
                          size_t fd_count);
        void (*saver_stop)(struct session *s);
        /* Forget a saver, or all store processes, at once (the agent ends). */
        void (*saver_forget)(struct session *s);
        void (*store_done)(struct agent *a);
};
extern const struct agent_ops agent_ops_processes;

/* A Hello that came before its run's Start (the agent was restarted). */
struct held_hello {
        struct reply_to to; /* connection NULL: free */
        struct wire_fds fds;
        char run[RUN_NAME_BYTES_MAX + 1];
        uint32_t rank;
        uint64_t session_id, generation;
        uint8_t secret[16];
        bool has_secret;
        uint64_t since_ns, deadline_ns;
};

struct agent_store;
struct upkeep;
struct agent {
        struct config config;
        const struct agent_ops *ops;
        const char *program; /* what savers and store processes are */
        struct loop loop;
        struct server server;
        struct agent_store *stores; /* list; processes.c */
        struct upkeep *upkeeps;     /* list; upkeep.c */
        struct run *runs[AGENT_RUN_COUNT_MAX];
        struct session *sessions[SESSION_COUNT_MAX];
        struct held_hello held[AGENT_HELD_COUNT_MAX];
        uint64_t session_id_last;
        int signal_fd, runner_fd;
        struct loop_source signal_source, runner_source;
        struct loop_timer held_timer, end_timer;
        bool stopping;    /* a signal came: no new runs */
        bool runner_gone; /* embedded: whoever started it died */
        bool had_run;
        uint64_t linger_until_ns; /* trainers that come back until then are told that it is over */
        uint64_t stop_deadline_ns;
};

int agent_init(struct agent *a, const struct config *config, const struct agent_ops *ops,
               const char *program, struct cairn_error *reterr);
int agent_run(struct agent *a, struct cairn_error *reterr);
void agent_done(struct agent *a);
/* Called where a run or session ended: forgets it, and ends the loop when nothing is left to do. */
void agent_reap(struct agent *a);
struct run *agent_find_run(struct agent *a, const char *name);
/* Welcome what was held for this run. */
void agent_release_held(struct agent *a, struct run *run);
/* The runner is gone: tell those that wait for a run which is not there, or could not be taken up.
 */
void agent_refuse_orphans(struct agent *a);

#endif
