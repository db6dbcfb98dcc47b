/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/hold.h"
#include "agent/attempt.h"
#include "agent/group.h"
#include "base/log.h"
#include "base/states.h"

static const struct state_row hold_states[HOLD_STATE_COUNT] = {
        [HOLD_IDLE] = {"idle", STATE_TO(HOLD_HOLDING)},
        [HOLD_HOLDING] = {"holding", STATE_TO(HOLD_GOING) | STATE_TO(HOLD_IDLE)},
        [HOLD_GOING] = {"going", STATE_TO(HOLD_IDLE)},
};

static void set_state(struct run *run, enum hold_state to, const char *why) {
        struct run_hold *h = &run->hold;
        const char *name = state_table_step(hold_states, HOLD_STATE_COUNT, h->state, to);
        log_event(LOG_LEVEL_DEBUG, "run=%s attempt=%u hold=%s step=%lld reason=\"%s\"", run->name,
                  h->attempt, name, (long long) h->step, why);
        h->state = to;
}

bool hold_active(const struct run *run) {
        return run->hold.state != HOLD_IDLE;
}

static bool is_local(const struct run *run, uint32_t rank) {
        return rank >= run->first_rank && rank < run->first_rank + run->local_count;
}

/* The attempt that every rank is armed with and none was cut in; 0: there is none. */
static uint32_t common_attempt(const struct run *run) {
        uint32_t number = 0;
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct session *s = run->sessions[run->first_rank + i];
                if (!s || !s->page || s->dead || !s->armed_attempt || s->disarming || s->writing ||
                    (i > 0 && s->armed_attempt != number))
                        return 0;
                number = s->armed_attempt;
        }
        return attempts_untouched(run, number) ? number : 0;
}

static void let_go(struct run *run, const char *why) {
        struct run_hold *h = &run->hold;
        for (uint32_t i = 0; i < run->world; i++)
                if (run->sessions[i] && h->ranks[i].state != HOLD_RANK_NONE)
                        session_release(run->sessions[i]);
        group_tell_release(run);
        set_state(run, HOLD_IDLE, why);
        h->after_ns = loop_now(&run->agent->loop) + HOLD_PAUSE_NS;
}

static void ask(struct run *run, uint32_t rank) {
        struct run_hold *h = &run->hold;
        struct session *s = run->sessions[rank];
        h->ranks[rank] = (struct hold_rank){.state = HOLD_RANK_ASKED};
        if (!is_local(run, rank))
                group_tell_hold(run, h->attempt, rank, h->step);
        else if (session_hold(s, h->step) < 0)
                h->ranks[rank].state = HOLD_RANK_VOID; /* its saver is gone */
}

static void begin(struct run *run) {
        struct run_hold *h = &run->hold;
        uint64_t now_ns = loop_now(&run->agent->loop);
        uint32_t attempt = now_ns >= h->after_ns ? common_attempt(run) : 0;
        if (!attempt)
                return;
        *h = (struct run_hold){.attempt = attempt, .deadline_ns = now_ns + HOLD_NS, .step = 0};
        set_state(run, HOLD_HOLDING, "demanded");
        for (uint32_t i = 0; i < run->world; i++)
                ask(run, i);
}

/* All are held: go, or let those behind catch up. */
static void level(struct run *run) {
        struct run_hold *h = &run->hold;
        int64_t highest = INT64_MIN, lowest = INT64_MAX;
        for (uint32_t i = 0; i < run->world; i++) {
                if (h->ranks[i].state != HOLD_RANK_HELD)
                        return;
                highest = h->ranks[i].step > highest ? h->ranks[i].step : highest;
                lowest = h->ranks[i].step < lowest ? h->ranks[i].step : lowest;
        }
        h->step = highest;
        if (lowest == highest) {
                set_state(run, HOLD_GOING, "level");
                for (uint32_t i = 0; i < run->world; i++)
                        if (run->sessions[i])
                                session_go(run->sessions[i]);
                group_tell_go(run, h->attempt);
        } else if (++h->tries > HOLD_TRIES_MAX)
                let_go(run, "the ranks did not get level");
        else
                for (uint32_t i = 0; i < run->world; i++)
                        if (h->ranks[i].step < highest)
                                ask(run, i);
}

/* What ends it early; NULL: nothing. */
static const char *obstacle(const struct run *run) {
        const struct run_hold *h = &run->hold;
        if (h->state == HOLD_HOLDING && loop_now(&run->agent->loop) >= h->deadline_ns)
                return "the ranks were not level in time";
        for (uint32_t i = 0; i < run->world; i++) {
                const struct session *s = run->sessions[i];
                if (is_local(run, i) && (!s || s->dead))
                        return "a rank died";
                if (h->ranks[i].state == HOLD_RANK_VOID)
                        return "a rank went on";
        }
        return NULL;
}

void hold_pump(struct run *run, bool wanted) {
        struct run_hold *h = &run->hold;
        if (h->state == HOLD_IDLE) {
                if (wanted)
                        begin(run);
                return;
        }
        if (h->state == HOLD_GOING) {
                if (attempts_cut_count(run, h->attempt) == run->world)
                        set_state(run, HOLD_IDLE, "cut");
                else if (obstacle(run))
                        let_go(run, obstacle(run));
                return;
        }
        const char *why = wanted ? obstacle(run) : "nobody waits any more";
        if (why)
                let_go(run, why);
        else
                level(run);
}

void hold_held(struct run *run, uint32_t rank, uint32_t attempt, int64_t step) {
        struct run_hold *h = &run->hold;
        if (h->state == HOLD_HOLDING && attempt == h->attempt)
                h->ranks[rank] = (struct hold_rank){.state = HOLD_RANK_HELD, .step = step};
        else if (run->sessions[rank]) /* nobody would ever say go */
                session_release(run->sessions[rank]);
        else
                group_tell_release(run);
}

void hold_void(struct run *run, uint32_t rank) {
        struct hold_rank *r = &run->hold.ranks[rank];
        /* What was let go in order to be held at a later step says so, too. */
        if (r->state == HOLD_RANK_HELD)
                r->state = HOLD_RANK_VOID;
}
