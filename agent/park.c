/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/park.h"
#include "base/log.h"
#include <signal.h>

enum { EXIT_PREEMPTED = 75 };

enum park_verdict park_judge(const struct park_rank *ranks, uint32_t count, int64_t *ret_step) {
        const struct park_rank *failed = NULL;
        bool all_parked = true, all_there = true;
        for (uint32_t i = 0; i < count; i++) {
                all_there = all_there && ranks[i].is_there;
                if (ranks[i].has_failed && !failed)
                        failed = &ranks[i];
        }
        if (!failed)
                return PARK_NOBODY_FAILED;
        if (!all_there)
                return PARK_IMPOSSIBLE;
        *ret_step = failed->step;
        for (uint32_t i = 0; i < count; i++) {
                const struct park_rank *r = &ranks[i];
                /* One that lives and is in an update may be about to finish this very step. */
                if (r->step > *ret_step ||
                    (r->is_dead && (r->step != *ret_step || r->phase == CUT_UPDATING)))
                        return PARK_IMPOSSIBLE;
                all_parked = all_parked && (r->is_dead || r->is_parked);
        }
        return all_parked ? PARK_LEVEL : PARK_WAIT;
}

static bool ended_well(const struct session *s) {
        return s->ending.kind == ENDING_EXITED &&
               (s->ending.code == 0 || s->ending.code == EXIT_PREEMPTED);
}

/* How it ended is told some milliseconds after its death, in which the others may go on: they are
 * parked at once, and ended when it is known. */
static bool may_have_failed(const struct session *s) {
        return s->dead && s->state == SESSION_SETTLING && !ended_well(s);
}

static bool somebody_failed(const struct run *run) {
        for (uint32_t i = 0; i < run->local_count; i++)
                if (run->sessions[i] && may_have_failed(run->sessions[i]) &&
                    run->sessions[i]->ending.kind != ENDING_ALIVE)
                        return true;
        return false;
}

static void look(const struct run *run, struct park_rank *ranks) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct session *s = run->sessions[i];
                ranks[i] = (struct park_rank){.is_there = s && s->page};
                if (!ranks[i].is_there)
                        continue;
                ranks[i].phase = cut_read(s->page).phase;
                ranks[i].step = atomic_load(&s->page->last_step);
                ranks[i].is_dead = s->dead;
                ranks[i].has_failed = may_have_failed(s);
                ranks[i].is_parked = s->is_parked;
        }
}

static void let_go(struct session *s) {
        if (!s->is_parked)
                return;
        s->is_parked = false;
        cut_copy_abandon(s->page, s->parked);
}

static void park(struct session *s, int64_t step) {
        if (s->dead || s->is_parked || atomic_load(&s->page->last_step) != step ||
            cut_copy_begin(s->page, true, &s->parked) < 0)
                return;
        s->is_parked = true;
}

static void end_all(struct run *run, int64_t step) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                if (s->dead || s->is_ended)
                        continue;
                log_event(LOG_LEVEL_INFO,
                          "run=%s rank=%u step=%lld trainer=ended reason=\"another rank failed\"",
                          run->name, s->rank, (long long) step);
                s->is_ended = true;
                session_signal(s, SIGKILL);
        }
}

void park_pump(struct run *run) {
        struct park_rank ranks[SESSION_COUNT_MAX];
        int64_t step = 0;
        if (run->world < 2 || run->local_count != run->world)
                return;
        for (uint32_t i = 0; i < run->local_count; i++)
                if (run->sessions[i] && run->sessions[i]->dead)
                        let_go(run->sessions[i]); /* its memory stays; the saver may have it now */
        look(run, ranks);
        enum park_verdict verdict = park_judge(ranks, run->local_count, &step);
        if (verdict == PARK_WAIT) {
                for (uint32_t i = 0; i < run->local_count; i++)
                        park(run->sessions[i], step);
                look(run, ranks);
                verdict = park_judge(ranks, run->local_count, &step);
        }
        if (verdict == PARK_LEVEL && somebody_failed(run))
                end_all(run, step);
        else if (verdict != PARK_WAIT && verdict != PARK_LEVEL)
                for (uint32_t i = 0; i < run->local_count; i++)
                        if (run->sessions[i])
                                let_go(run->sessions[i]);
}
