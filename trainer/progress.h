/* SPDX-License-Identifier: Apache-2.0
 *
 * progress.h - what a person sees: one line that is rewritten on a terminal (at most ten times a
 * second), some plain lines elsewhere. One thread.
 */
#ifndef CAIRN_TRAINER_PROGRESS_H
#define CAIRN_TRAINER_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
        bool is_terminal, is_quiet; /* quiet: sentences only */
        bool is_silent;             /* nothing at all: another rank speaks for the group */
        int64_t steps, first_step;  /* of the run; first of this process */
        uint64_t begin_ns, next_ns;
        int64_t plain_every;
};

void progress_init(struct progress *p, int64_t steps, int64_t step_done, bool is_quiet,
                   uint64_t now_ns);
/* Whether a line is due; so callers gather its numbers only then. */
bool progress_is_due(const struct progress *p, int64_t step, uint64_t now_ns);
/* saved_step -1: nothing committed yet. */
void progress_step(struct progress *p, int64_t step, float loss, double rate, int64_t saved_step,
                   uint64_t now_ns);
/* A sentence of its own; ends the rewritten line. */
void progress_say(struct progress *p, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
/* Replaces the rewritten line; nothing elsewhere. */
void progress_wait(struct progress *p, const char *what, double seconds);

#endif
