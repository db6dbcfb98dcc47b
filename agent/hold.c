/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/hold.h"
#include "agent/attempt.h"
#include "agent/group.h"
#include "base/log.h"
#include "base/states.h"
#include <stdlib.h>

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

static void set_rank(struct run_hold *h, uint32_t rank, enum hold_rank_state state, int64_t step) {
        struct hold_rank *r = &h->ranks[rank];
        h->held_count -= r->state == HOLD_RANK_HELD;
        h->void_count -= r->state == HOLD_RANK_VOID;
        *r = (struct hold_rank){.state = state, .step = step};
        h->held_count += state == HOLD_RANK_HELD;
        h->void_count += state == HOLD_RANK_VOID;
}

/* The attempt that every rank is armed with and none was cut in; 0: there is none. */
static uint32_t common_attempt(const struct run *run) {
        uint32_t number = 0;
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct session *s = run->sessions[i];
                if (!s || !s->page || s->dead || !s->armed_attempt || s->disarming || s->writing ||
                    (i > 0 && s->armed_attempt != number))
                        return 0;
                number = s->armed_attempt;
        }
        return attempts_untouched(run, number) ? number : 0;
}

static void let_go(struct run *run, const char *why) {
        struct run_hold *h = &run->hold;
        for (uint32_t i = 0; i < run->local_count; i++)
                if (run->sessions[i])
                        session_release(run->sessions[i]);
        group_tell_release(run);
        set_state(run, HOLD_IDLE, why);
        h->after_ns = loop_now(&run->agent->loop) + HOLD_PAUSE_NS;
}

/* All that are not held at this step; another node's together, as far as they follow each other. */
static void ask_below(struct run *run, int64_t step) {
        struct run_hold *h = &run->hold;
        uint32_t count = 0; /* of other nodes, before this one */
        for (uint32_t i = 0; i <= h->rank_count; i++) {
                bool asks = i < h->rank_count &&
                            (h->ranks[i].state != HOLD_RANK_HELD || h->ranks[i].step < step);
                bool is_local = run_is_local(run, i);
                if (count > 0 && (!asks || is_local)) {
                        group_tell_hold(run, h->attempt, i - count, count, h->step);
                        count = 0;
                }
                if (!asks)
                        continue;
                set_rank(h, i, HOLD_RANK_ASKED, 0);
                if (!is_local)
                        count++;
                else if (session_hold(run_session(run, i), h->step) < 0)
                        set_rank(h, i, HOLD_RANK_VOID, 0); /* its saver is gone */
        }
}

static void begin(struct run *run) {
        struct run_hold *h = &run->hold;
        uint64_t now_ns = loop_now(&run->agent->loop);
        uint32_t attempt = now_ns >= h->after_ns ? common_attempt(run) : 0;
        struct hold_rank *ranks = attempt ? calloc(run->world, sizeof *ranks) : NULL;
        if (!ranks)
                return;
        free(h->ranks);
        *h = (struct run_hold){.attempt = attempt,
                               .deadline_ns = now_ns + HOLD_NS,
                               .rank_count = run->world,
                               .ranks = ranks};
        set_state(run, HOLD_HOLDING, "demanded");
        ask_below(run, 0);
}

void hold_done(struct run *run) {
        if (run->hold.state != HOLD_IDLE)
                set_state(run, HOLD_IDLE, "the ranks are over");
        free(run->hold.ranks);
        run->hold = (struct run_hold){0};
}

/* All are held: go, or let those behind catch up. */
static void level(struct run *run) {
        struct run_hold *h = &run->hold;
        int64_t highest = INT64_MIN, lowest = INT64_MAX;
        if (h->held_count < h->rank_count)
                return;
        for (uint32_t i = 0; i < h->rank_count; i++) {
                highest = h->ranks[i].step > highest ? h->ranks[i].step : highest;
                lowest = h->ranks[i].step < lowest ? h->ranks[i].step : lowest;
        }
        h->step = highest;
        if (lowest == highest) {
                set_state(run, HOLD_GOING, "level");
                for (uint32_t i = 0; i < run->local_count; i++)
                        if (run->sessions[i])
                                session_go(run->sessions[i]);
                group_tell_go(run, h->attempt);
        } else if (++h->tries > HOLD_TRIES_MAX)
                let_go(run, "the ranks did not get level");
        else
                ask_below(run, highest);
}

/* What ends it early; NULL: nothing. */
static const char *obstacle(const struct run *run) {
        const struct run_hold *h = &run->hold;
        if (h->state == HOLD_HOLDING && loop_now(&run->agent->loop) >= h->deadline_ns)
                return "the ranks were not level in time";
        for (uint32_t i = 0; i < run->local_count; i++)
                if (!run->sessions[i] || run->sessions[i]->dead)
                        return "a rank died";
        return h->void_count > 0 ? "a rank went on" : NULL;
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
        struct session *s = run_session(run, rank);
        if (h->state == HOLD_HOLDING && attempt == h->attempt && rank < h->rank_count)
                set_rank(h, rank, HOLD_RANK_HELD, step);
        else if (s) /* nobody would ever say go */
                session_release(s);
        else
                group_tell_release_rank(run, rank);
}

void hold_void(struct run *run, uint32_t rank) {
        struct run_hold *h = &run->hold;
        /* What was let go in order to be held at a later step says so, too. */
        if (rank < h->rank_count && h->ranks[rank].state == HOLD_RANK_HELD)
                set_rank(h, rank, HOLD_RANK_VOID, 0);
}
