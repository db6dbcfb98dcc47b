/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/postmortem.h"
#include "agent/attempt.h"
#include "base/log.h"
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#define REAPED_WAIT_NS (2 * NSEC_PER_SEC) /* from the death until its runner tells of it */
#define TRIES_MAX 3
#define SAVERS_MAX 3
#define SHELL_SIGNAL_BASE 128 /* what shells and many wrappers make of a child's signal */

/* ---- how it ended ---- */

/* After these the fault may have scribbled on the state before it was noticed. */
static bool is_fault(int signal_number) {
        return signal_number == SIGSEGV || signal_number == SIGBUS || signal_number == SIGABRT ||
               signal_number == SIGILL || signal_number == SIGFPE;
}

static struct saver_ending ending_unknown(void) {
        return (struct saver_ending){.kind = ENDING_UNKNOWN, .suspect = true};
}

/* A wrapper's status says how the trainer ended only where it passes a signal on, as shells do. */
static struct saver_ending ending_of(int wait_status, bool is_trainer) {
        struct saver_ending e = ending_unknown();
        if (WIFSIGNALED(wait_status) && is_trainer) {
                e = (struct saver_ending){.kind = ENDING_SIGNALLED, .code = WTERMSIG(wait_status)};
                e.suspect = is_fault(e.code);
        } else if (WIFEXITED(wait_status)) {
                int code = WEXITSTATUS(wait_status), signal_number = code - SHELL_SIGNAL_BASE;
                if (is_trainer)
                        e = (struct saver_ending){.kind = ENDING_EXITED, .code = code};
                else if (signal_number > 0 && signal_number < NSIG)
                        e = (struct saver_ending){.kind = ENDING_SIGNALLED, .code = signal_number};
                e.suspect = e.kind == ENDING_UNKNOWN || is_fault(signal_number);
        }
        return e;
}

void postmortem_reaped(struct session *s, int wait_status, pid_t pid) {
        if (s->ending.kind == ENDING_ALIVE)
                s->ending = ending_of(wait_status, pid == s->pid);
}

/* Linux 6.15 and newer tell it of any process through its pidfd, whoever reaped it, as soon as
 * that was done (include/uapi/linux/pidfd.h, which older systems' headers lack). */
struct pidfd_exit {
        uint64_t mask, cgroup_id;
        uint32_t pids[3], users[8];
        int32_t exit_code;
};
#define PIDFD_GET_EXIT _IOWR(0xff, 11, struct pidfd_exit)
#define PIDFD_EXIT_BIT (UINT64_C(1) << 3)

enum exit_word { EXIT_NEVER_TOLD, EXIT_NOT_YET, EXIT_TOLD };

static enum exit_word ask_kernel(int pidfd, int *ret_wait_status) {
        struct pidfd_exit e = {.mask = PIDFD_EXIT_BIT};
        static_assert(sizeof e == 64, "the first version of the kernel's struct pidfd_info");
        if (ioctl(pidfd, PIDFD_GET_EXIT, &e) < 0)
                return EXIT_NEVER_TOLD;
        *ret_wait_status = e.exit_code;
        return e.mask & PIDFD_EXIT_BIT ? EXIT_TOLD : EXIT_NOT_YET;
}

/* False while its runner or the kernel may still tell; the kernel knows more than the status of
 * a wrapper. */
static bool learn_ending(struct run *run, struct session *s) {
        int status = 0;
        if (s->ending.kind == ENDING_EXITED || s->ending.kind == ENDING_SIGNALLED)
                return true;
        enum exit_word word = ask_kernel(s->pidfd, &status);
        if (word == EXIT_TOLD) {
                s->ending = ending_of(status, true);
                return true;
        }
        bool runner_may_tell =
                s->ending.kind == ENDING_ALIVE && server_reach(&run->runner) && !run->orphaned;
        if ((word == EXIT_NOT_YET || runner_may_tell) &&
            loop_now(&run->agent->loop) < s->death_ns + REAPED_WAIT_NS)
                return false;
        s->ending = ending_unknown();
        return true;
}

/* ---- is there something to take? ---- */

bool postmortem_pending(const struct session *s) {
        return s->postmortem != POSTMORTEM_OVER;
}

static void over(struct session *s, const char *why) {
        s->postmortem = POSTMORTEM_OVER;
        if (why)
                log_event(LOG_LEVEL_WARNING, "run=%s rank=%u post_mortem=none reason=\"%s\"",
                          s->run->name, s->rank, why);
}

/* NULL: yes; "" there is nothing that is not committed; else why it cannot be taken. */
static const char *obstacle(const struct run *run, const struct session *s) {
        struct cut_word w = cut_read(s->page);
        if (w.phase == CUT_UPDATING)
                return w.seq > 0 ? "it died inside an update" : "";
        /* seq 1 is what it started from: restored, or fresh. */
        if (w.seq <= 1 || w.seq <= atomic_load(&s->page->committed_seq) || run->finish.done)
                return "";
        if (run->fenced)
                return "a newer generation of the run exists elsewhere";
        if (s->closed)
                return "the process lives on and its memory may have changed";
        if (s->elsewhere)
                return "some of its tensors were not in memory of cairn_alloc";
        if (s->inventory_fd < 0 || atomic_load(&s->page->seal_number) != s->seal)
                return "its last inventory did not arrive";
        if (s->postmortem_tries >= TRIES_MAX || s->saver_deaths > SAVERS_MAX)
                return "each try failed";
        return NULL;
}

/* Are all ranks dead, with nothing in flight? */
static bool group_is_still(const struct run *run) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct session *s = run->sessions[i];
                if (s && (!s->dead || run_session_in_flight(run, s)))
                        return false;
        }
        return true;
}

/* A checkpoint needs the same step of every rank. */
static bool group_is_level(const struct run *run, int64_t step) {
        if (run->local_count < run->world)
                return false; /* nothing is known of the other nodes' */
        for (uint32_t i = 0; i < run->local_count; i++) {
                const struct session *s = run->sessions[i];
                if (!s || s->state != SESSION_SETTLING || obstacle(run, s) ||
                    atomic_load(&s->page->last_step) != step)
                        return false;
        }
        return true;
}

static void judge(struct run *run, struct session *s) {
        const char *why = obstacle(run, s);
        if (!why && !group_is_level(run, atomic_load(&s->page->last_step)))
                why = "the ranks did not stop at one step";
        if (why) {
                over(s, *why ? why : NULL);
                return;
        }
        if (s->postmortem == POSTMORTEM_UNDECIDED)
                log_event(LOG_LEVEL_INFO,
                          "run=%s rank=%u post_mortem=wanted step=%lld ending=%u code=%d "
                          "suspect=%d",
                          run->name, s->rank, (long long) atomic_load(&s->page->last_step),
                          s->ending.kind, s->ending.code, s->ending.suspect);
        s->postmortem = POSTMORTEM_WANTED;
}

/* Also while other ranks are in flight: they wait for this one's try after a void cut. */
static void order(struct run *run) {
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                if (s && s->postmortem == POSTMORTEM_WANTED && !run_session_in_flight(run, s) &&
                    !obstacle(run, s))
                        session_take_last(s);
        }
}

void postmortem_pump(struct run *run) {
        bool told = true;
        order(run);
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                /* At once where that is certain: nobody needs to wait for it. */
                if (s && s->state == SESSION_SETTLING && postmortem_pending(s) &&
                    cut_read(s->page).phase == CUT_UPDATING)
                        judge(run, s);
        }
        if (!group_is_still(run))
                return;
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                if (s && s->state == SESSION_SETTLING && postmortem_pending(s) && !obstacle(run, s))
                        told = learn_ending(run, s) && told;
        }
        for (uint32_t i = 0; i < run->local_count; i++) {
                struct session *s = run->sessions[i];
                if (s && s->state == SESSION_SETTLING && postmortem_pending(s) &&
                    s->postmortem != POSTMORTEM_ORDERED && (told || obstacle(run, s)))
                        judge(run, s);
        }
        order(run);
}

/* ---- what is lost ---- */

void postmortem_settled(struct run *run, const struct session *s) {
        int64_t last = atomic_load(&s->page->last_step);
        int64_t kept = run->resumable_step > 0 ? run->resumable_step : 0;
        run->died_step = cut_read(s->page).seq > 0 ? last : -1;
        /* Ranks are level: one of them counts. */
        if (s->rank != 0 || run->died_step <= kept)
                return;
        run->lost_last = (uint64_t) (last - kept);
        if (run->finish.done) /* nothing will be resumed; the runner says what there is */
                return;
        run->lost_steps += run->lost_last;
        log_event(LOG_LEVEL_WARNING, "run=%s rank=%u last_step=%lld resumable_step=%lld lost=%llu",
                  run->name, s->rank, (long long) last, (long long) run->resumable_step,
                  (unsigned long long) run->lost_last);
}
