/* SPDX-License-Identifier: Apache-2.0
 *
 * The harm: SIGKILL, SIGSTOP and a store that answers nothing, and their end. Processes are held by
 * pidfd from the moment they are chosen, so that no signal can reach another one.
 */
#include "base/cleanup.h"
#include "tests/e2e/kill_parts.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#define STUCK_MS 100 /* a process that SIGKILL has not ended by then waits in the kernel */
/* The next scheduled snapshot gets stuck within that time. */
#define HANG_NS_MIN (150 * NSEC_PER_MSEC)
/* Now and then an outage in which a gate could expire twice. */
#define LONG_NS_MIN (2 * GATE_NS + 500 * NSEC_PER_MSEC)
enum { LONG_EVERY = 50, LONG_FIRST = 7 };
#define SPAN_NS_MIN (50 * NSEC_PER_MSEC)

/* From 50 ms to 3.2 s, mostly short. */
static uint64_t choose_span(struct driver *d) {
        uint64_t a = random_next(d) % 6, b = random_next(d) % 6;
        uint64_t base = SPAN_NS_MIN << (a < b ? a : b);
        return base + random_next(d) % base;
}

/* Mostly one kind, sometimes two, sometimes the whole machine. */
static unsigned choose_kinds(struct driver *d) {
        uint64_t dice = random_next(d) % 100;
        unsigned first = 1u << (1 + random_next(d) % 5), second = 1u << (1 + random_next(d) % 5);
        return dice < 60 ? first : dice < 85 ? first | second : KINDS_ALL;
}

struct fault fault_choose(struct driver *d) {
        uint64_t dice = random_next(d) % 100;
        struct fault f = {0};
        if (d->rounds % LONG_EVERY == LONG_FIRST) {
                f.until_ns = LONG_NS_MIN + random_next(d) % NSEC_PER_SEC;
                f.hang = d->on_hanging_store && dice < 50;
                f.stop = f.hang ? 0 : 1u << PROCESS_SAVER;
        } else if (d->on_hanging_store && dice < 24) {
                f.hang = true;
                f.until_ns = HANG_NS_MIN + choose_span(d);
                if (dice >= 6)
                        f.kill = choose_kinds(d);
                if (dice >= 18)
                        f.stop = choose_kinds(d);
        } else if (dice < 64)
                f.kill = choose_kinds(d);
        else {
                f.until_ns = choose_span(d);
                f.stop = choose_kinds(d);
                if (dice >= 86)
                        f.kill = choose_kinds(d);
        }
        if (f.kill && f.until_ns) {
                f.kill_ns = random_next(d) % f.until_ns;
                f.kill_ns = f.kill_ns < NSEC_PER_SEC ? f.kill_ns : NSEC_PER_SEC;
        }
        return f;
}

/* Replaced by rename: the store never sees half of it. */
static void set_weather(struct driver *d, const char *words) {
        char path[DRIVER_PATH_BYTES];
        (void) snprintf(path, sizeof path, "%s.new", d->weather);
        FILE *f = fopen(path, "we");
        if (!f || fprintf(f, "%s\n", words) < 0 || fclose(f) != 0 || rename(path, d->weather) < 0)
                perror(path);
}

static int hold(pid_t pid) {
        return (int) syscall(SYS_pidfd_open, pid, 0);
}

static bool signal_held(int pidfd, int signal_number) {
        return syscall(SYS_pidfd_send_signal, pidfd, signal_number, NULL, 0) == 0;
}

static void stop_kinds(struct driver *d, unsigned kinds) {
        static struct process_entry tree[DESCENDANTS_MAX];
        size_t count = kinds ? descendants(tree) : 0;
        for (size_t i = 0; i < count && d->stopped_count < STOPPED_MAX; i++) {
                if (!(kinds & 1u << tree[i].kind) || tree[i].pid == d->snapshot)
                        continue;
                struct victim v = {.pidfd = hold(tree[i].pid), .kind = tree[i].kind};
                if (v.kind == PROCESS_TRAINER) {
                        d->steps.stop_begin_ns = now_ns();
                        d->steps.stop_end_ns = 0;
                }
                if (v.pidfd >= 0 && signal_held(v.pidfd, SIGSTOP)) {
                        d->stopped[d->stopped_count++] = v;
                        d->stops[v.kind]++;
                } else if (v.pidfd >= 0)
                        (void) close(v.pidfd);
        }
}

void fault_begin(struct driver *d, const struct fault *fault) {
        if (fault->stop || fault->hang)
                steps_outage(&d->steps);
        if (fault->hang) {
                set_weather(d, "hang");
                d->store_hangs++;
        }
        stop_kinds(d, fault->stop);
}

bool fault_kill(struct driver *d, unsigned kinds) {
        static struct process_entry tree[DESCENDANTS_MAX];
        struct victim held[DESCENDANTS_MAX];
        size_t count = descendants(tree), held_count = 0;
        bool agent_left = false;
        for (size_t i = 0; i < count; i++) {
                bool is_chosen = kinds & 1u << tree[i].kind && tree[i].pid != d->snapshot;
                int pidfd = is_chosen ? hold(tree[i].pid) : -1;
                if (pidfd >= 0 && signal_held(pidfd, SIGKILL)) {
                        d->kills[tree[i].kind]++;
                        d->runner_killed = d->runner_killed || tree[i].pid == d->runner;
                } else
                        agent_left = agent_left || tree[i].kind == PROCESS_AGENT;
                if (pidfd >= 0)
                        held[held_count++] = (struct victim){pidfd, tree[i].kind};
        }
        /* Only where storage hangs a process can outlive its SIGKILL. */
        uint64_t until_ns = now_ns() + STUCK_MS * NSEC_PER_MSEC;
        for (size_t i = 0; i < held_count; i++) {
                struct pollfd p = {.fd = held[i].pidfd, .events = POLLIN};
                if (poll(&p, 1, clock_poll_timeout(&clock_system, until_ns)) == 0)
                        d->stuck[held[i].kind]++;
                (void) close(held[i].pidfd);
        }
        return agent_left;
}

void fault_end(struct driver *d) {
        if (d->weather)
                set_weather(d, "");
        while (d->stopped_count > 0) {
                struct victim *v = &d->stopped[--d->stopped_count];
                (void) signal_held(v->pidfd, SIGCONT); /* or it was killed meanwhile */
                (void) close(v->pidfd);
                if (v->kind == PROCESS_TRAINER)
                        d->steps.stop_end_ns = now_ns();
        }
}
