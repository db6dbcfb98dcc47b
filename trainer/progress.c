/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/progress.h"
#include <inttypes.h>
#include <stdarg.h>

enum { REDRAW_NS = 100 * 1000 * 1000 };

void progress_init(struct progress *p, int64_t steps, int64_t step_done, bool is_quiet,
                   uint64_t now_ns) {
        *p = (struct progress){.is_terminal = isatty(STDOUT_FILENO) == 1,
                               .is_quiet = is_quiet,
                               .steps = steps,
                               .first_step = step_done + 1,
                               .begin_ns = now_ns,
                               .plain_every = steps / 10 > 0 ? steps / 10 : 1};
}

bool progress_is_due(const struct progress *p, int64_t step, uint64_t now_ns) {
        if (p->is_quiet || p->is_silent)
                return false;
        return p->is_terminal ? now_ns >= p->next_ns
                              : step % p->plain_every == 0 || step == p->first_step;
}

void progress_step(struct progress *p, int64_t step, float loss, double rate, int64_t saved_step,
                   uint64_t now_ns) {
        char saved[48] = "";
        double seconds = (double) (now_ns - p->begin_ns) * 1e-9;
        double speed = seconds > 0 ? (double) (step - p->first_step + 1) / seconds : 0;

        if (saved_step >= 0)
                (void) snprintf(saved, sizeof(saved), "  saved %" PRId64, saved_step);
        (void) printf("%sstep %" PRId64 "/%" PRId64 "  loss %.4f  lr %.3g  %.0f steps/s%s%s",
                      p->is_terminal ? "\r" : "", step, p->steps, (double) loss, rate, speed, saved,
                      p->is_terminal ? "\033[K" : "\n");
        (void) fflush(stdout);
        p->next_ns = now_ns + REDRAW_NS;
}

void progress_say(struct progress *p, const char *format, ...) {
        va_list arguments;

        if (p->is_silent)
                return;
        if (p->is_terminal && p->next_ns > 0)
                (void) printf("\r\033[K");
        va_start(arguments, format);
        (void) vprintf(format, arguments);
        va_end(arguments);
        (void) putchar('\n');
        (void) fflush(stdout);
}

void progress_wait(struct progress *p, const char *what, double seconds) {
        if (!p->is_terminal || p->is_quiet || p->is_silent)
                return;
        (void) printf("\r%s … %.0f s\033[K", what, seconds);
        (void) fflush(stdout);
        p->next_ns = 1;
}
