/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/crash_guard.h"

void crash_guard_started(struct crash_guard *g, int64_t step) {
        g->start_step = step;
        g->died_step = -1;
        if (step > g->best_step)
                g->best_step = step;
}

void crash_guard_settled(struct crash_guard *g, int64_t committed_step, int64_t died_step) {
        if (died_step > g->died_step)
                g->died_step = died_step;
        if (committed_step <= g->best_step)
                return;
        g->best_step = committed_step;
        g->restarts = g->back_count = 0;
        if (committed_step > g->before_step)
                g->before_step = 0;
}

bool crash_guard_failed(struct crash_guard *g) {
        bool again = g->died_step >= 0 && g->died_step == g->failed_step && g->start_step > 0;
        /* One that died before it trained says nothing about a step. */
        if (g->died_step >= 0)
                g->failed_step = g->died_step;
        if (again) {
                g->before_step = g->start_step;
                g->back_count++;
        }
        return again;
}

bool crash_guard_is_hopeless(const struct crash_guard *g) {
        return g->back_count > CRASH_GUARD_BACK_MAX;
}
