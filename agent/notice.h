/* SPDX-License-Identifier: Apache-2.0
 *
 * notice.h - this machine is about to go away, or may be: one event {source, kind, deadline, id},
 * whoever it comes from (an operator who rehearses it, today).
 *
 *     run_notice(run, &to, m, &e)       told: planned, logged, answered; the runner is told, too
 *     run_notice_check(run)             a step of the pump: ends the trainers when it is time
 *     notice_check_start(a, name, ...)  a job does not start under an active notice: PREEMPTED
 *     notice_take_up(run)               this agent was restarted in the middle of one
 *
 * The plan goes backwards from the deadline: what ending takes, then what committing takes at the
 * measured bandwidth. A notice that stops the run stays active until its deadline, also for an
 * agent that is started meanwhile: it lies in RUN.notice beside the agent's socket. Of a rebalance
 * hint nothing is left once its snapshot is taken.
 *
 * In a group the plan is that of this node's ranks; the cut is the group's, and so is the end: all
 * nodes stop as by `cairn stop`. Only here nothing is started again until the deadline.
 *
 * Times are the loop's. The loop's thread.
 */
#ifndef CAIRN_AGENT_NOTICE_H
#define CAIRN_AGENT_NOTICE_H

#include "base/clock.h"
#include "base/status.h"
#include "format/control.pb-c.h"
#include <stdbool.h>

#define NOTICE_TEXT_BYTES 64
#define NOTICE_NS_MAX (24 * 3600 * NSEC_PER_SEC)

enum notice_decision {
        NOTICE_CUT,    /* take a cut now */
        NOTICE_COMMIT, /* commit what is staged: there is no time for another */
        NOTICE_FINISH, /* let what is being written go on as far as it gets */
        NOTICE_NONE,   /* there is nothing that is not committed */
        NOTICE_DECISION_COUNT
};
struct notice_budget {
        uint64_t left_ns;      /* for committing: what ending takes is not part of it */
        uint64_t image_bytes;  /* of a new cut */
        uint64_t flight_count; /* snapshots between cut and commit; they go first */
        uint64_t flight_bytes; /* of them, not written yet */
        uint64_t bandwidth;    /* bytes per second */
        uint64_t overhead_ns;  /* of each commit, whatever its size */
};
/* Where nothing is in flight a cut is taken in any case: there is nothing that it could cost. */
enum notice_decision notice_plan(const struct notice_budget *b, uint64_t *ret_need_ns);
const char *notice_decision_name(enum notice_decision decision);

/* Of a run. */
struct run_notice {
        bool active, stops; /* stops: the run ends; else it was a hint */
        bool planned, stopping;
        char kind[NOTICE_TEXT_BYTES], source[NOTICE_TEXT_BYTES], id[NOTICE_TEXT_BYTES];
        uint64_t deadline_ns, end_ns; /* end_ns: at the latest the trainers are told to end */
        struct notice_budget budget;
        uint64_t need_ns;
        enum notice_decision decision;
};

struct agent;
struct run;
struct reply_to;
/* API: not a notice. */
int run_notice(struct run *run, const struct reply_to *to, const Cairn__Control__NoticeRequest *m,
               struct cairn_error *reterr);
void run_notice_check(struct run *run);
/* It has still to be looked at, again and again. */
bool notice_pending(const struct run *run);
void notice_take_up(struct run *run);
/* `again`: the run goes on, its agent was restarted. */
int notice_check_start(struct agent *a, const char *run, bool again, struct cairn_error *reterr);

#endif
