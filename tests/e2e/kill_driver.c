/* SPDX-License-Identifier: Apache-2.0
 *
 * kill_driver - does harm at random instants to the trainer, the saver, the agent, the store
 * process and `cairn run`, or to several of them at once, and checks what must hold afterwards:
 *
 *     kill_driver BIN WORK ROUNDS SEED SECONDS STORE [HANGING_STORE FOLDER WEATHER]
 *
 * SECONDS 0: no limit; else fewer rounds may be done. HANGING_STORE is one on passfs, FOLDER the
 * same store past it, WEATHER its control file; without them no store hangs, and the report says
 * so.
 *
 * WORK holds `text`, the corpus. First a run without checkpoints writes the reference log. Then
 * runs train the same model; in each round, after a random time, victims are killed, or stopped
 * (SIGSTOP) and let go on (SIGCONT) after 50 ms to 5 s, or the store hangs for such a time, or all
 * of that at once; `cairn run` has to recover by itself, or where it was a victim itself a second
 * one (--mode auto) has to. What counts:
 *
 *     torn    a log line that is not the reference's, or a checkpoint that does not verify
 *     lost    a checkpoint that was reported committed and is neither in the store nor older than
 *             as many as are kept, or a restart from an older one than was reported before the kill
 *     hang    no further step, or no further commit, within HANG_NS; also orphans that do not end
 *     late    a step that took the gate's deadline (GATE_NS) or longer, but for one in each round,
 *             or one that took GATE_MARGIN_NS longer still; not while the trainer was stopped, nor
 *             while the machine held up this driver, too
 *     broken  `cairn run` ended although nobody killed it, with another status than 0
 *
 * Reported committed is what `cairn snapshot --wait` says. The driver is a subreaper: everything it
 * started stays below it, so it does no harm to anybody else's process.
 */
#include "tests/e2e/kill_parts.h"
#include "tools/train_log.h"
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define HANG_NS (40 * NSEC_PER_SEC)
#define POLL_NS (3 * NSEC_PER_MSEC)
enum { FAILURES_MAX = 5 };

void say(struct driver *d, const char *format, ...) {
        va_list arguments;
        printf("round %" PRIu64 ", %s: ", d->rounds, d->run);
        va_start(arguments, format);
        (void) vprintf(format, arguments);
        va_end(arguments);
        putchar('\n');
        (void) fflush(stdout);
}

uint64_t random_next(struct driver *d) {
        uint64_t x = d->random += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

uint64_t now_ns(void) {
        return clock_now(&clock_system);
}

static void nap(struct driver *d) {
        steps_follow(d);
        clock_system.sleep_ns(clock_system.context, POLL_NS);
}

size_t descendants(struct process_entry *tree) {
        return process_descendants(getpid(), tree, DESCENDANTS_MAX);
}

int64_t last_step(const struct driver *d) {
        struct train_log_tail tail = {.step = 0};
        train_log_last(d->log, &tail);
        return tail.step;
}

static uint64_t failures(const struct driver *d) {
        return d->torn + d->lost + d->hangs + d->broken + d->late;
}

static void kill_everything(struct driver *d) {
        static struct process_entry tree[DESCENDANTS_MAX];
        for (int round = 0; round < 100; round++) {
                size_t count = descendants(tree);
                if (count == 0)
                        break;
                for (size_t i = 0; i < count; i++)
                        (void) kill(tree[i].pid, SIGKILL);
                while (waitpid(-1, NULL, WNOHANG) > 0)
                        ;
                nap(d);
        }
        d->runner = d->snapshot = 0;
}

static void read_answer(struct driver *d) {
        json_error_t error;
        json_t *j = json_load_file(d->answer, 0, &error);
        const char *name = json_string_value(json_object_get(j, "checkpoint"));
        if (name && json_is_true(json_object_get(j, "committed"))) {
                /* A flagged one is there, but nobody said that it would be resumed. */
                if (!json_is_true(json_object_get(j, "flagged")))
                        note_committed(d, name, json_integer_value(json_object_get(j, "step")));
                d->commits++;
                d->probes += d->is_probe;
        } else {
                d->broken++;
                say(d,
                    "✗ `cairn snapshot --wait --json` succeeded without saying what it committed");
        }
        json_decref(j);
}

/* Reap; returns whether `cairn run` ended by itself, its status in *ret. */
static bool reap(struct driver *d, int *ret) {
        bool ended = false;
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
                if (pid == d->runner) {
                        d->runner = 0;
                        *ret = status;
                        ended = !d->runner_killed;
                } else if (pid == d->snapshot) {
                        d->snapshot = 0;
                        if (WIFEXITED(status) && WEXITSTATUS(status) == 0 &&
                            d->snapshot_run == d->run_number)
                                read_answer(d);
                }
        }
        return ended;
}

/* ---- a round ---- */

static void on_runner_end(struct driver *d, int status) {
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && last_step(d) == STEPS_LAST) {
                check_log(d, true);
                check_store(d);
                d->runs_done++;
        } else {
                d->broken++;
                say(d, "✗ `cairn run` ended by itself with wait status %#x at step %" PRId64,
                    (unsigned) status, last_step(d));
        }
        next_run(d);
}

/* Until `until_ns`; runs that end meanwhile are followed by the next one. */
static void let_pass(struct driver *d, uint64_t until_ns) {
        int status;
        while (now_ns() < until_ns) {
                if (reap(d, &status)) {
                        on_runner_end(d, status);
                        start_runner(d);
                }
                nap(d);
        }
}

static void hang(struct driver *d, const char *what) {
        static struct process_entry tree[DESCENDANTS_MAX];
        d->hangs++;
        say(d, "✗ hang: %s within %d s; step %" PRId64 "; processes:", what,
            (int) (HANG_NS / NSEC_PER_SEC), last_step(d));
        size_t count = descendants(tree);
        for (size_t i = 0; i < count; i++)
                printf("    %d %s, parent %d\n", (int) tree[i].pid,
                       process_kind_names[tree[i].kind], (int) tree[i].parent);
        (void) fflush(stdout);
        say_status(d);
        kill_everything(d);
        d->runner_killed = false;
        next_run(d);
}

/* `cairn run` was killed: what it left ends by itself. Only a trainer without an agent
 * may still wait for one: the next run's agent tells it that its time is over. */
static bool wait_for_orphans(struct driver *d, bool agent_left) {
        static struct process_entry tree[DESCENDANTS_MAX];
        uint64_t until_ns = now_ns() + HANG_NS;
        int status;
        do {
                (void) reap(d, &status);
                size_t count = descendants(tree), left = 0;
                for (size_t i = 0; i < count; i++)
                        left += tree[i].pid != d->snapshot && tree[i].kind != PROCESS_OTHER &&
                                !(!agent_left && tree[i].kind == PROCESS_TRAINER);
                if (left == 0)
                        return true;
                nap(d);
        } while (now_ns() < until_ns);
        return false;
}

static size_t trainer_count(void) {
        static struct process_entry tree[DESCENDANTS_MAX];
        size_t count = descendants(tree), trainers = 0;
        for (size_t i = 0; i < count; i++)
                trainers += tree[i].kind == PROCESS_TRAINER;
        return trainers;
}

/* Training goes on and commits again: a demanded snapshot succeeds, or the run comes to its end. */
static void recover(struct driver *d) {
        uint64_t until_ns = now_ns() + HANG_NS, probes = d->probes;
        unsigned run_number = d->run_number;
        int status;
        while (now_ns() < until_ns) {
                if (reap(d, &status)) {
                        on_runner_end(d, status);
                        start_runner(d);
                        return;
                }
                if (d->probes > probes && trainer_count() == 1)
                        break;
                if (d->snapshot == 0 && last_step(d) > 0)
                        start_snapshot(d, true);
                nap(d);
        }
        if (d->run_number != run_number)
                return;
        if (d->probes == probes)
                hang(d, "no further commit");
        else if (trainer_count() > 1)
                hang(d, "an old trainer did not end");
        check_log(d, false);
        check_store(d);
}

/* Harm is done; returns whether what `cairn run` left, if it was a victim, has an agent. */
static bool do_harm(struct driver *d) {
        struct fault fault = fault_choose(d);
        bool agent_left = true;
        fault_begin(d, &fault);
        uint64_t begin_ns = now_ns();
        if (fault.kill) {
                let_pass(d, begin_ns + fault.kill_ns);
                d->must_resume = d->reported;
                if (!fault.until_ns)
                        steps_outage(&d->steps);
                agent_left = fault_kill(d, fault.kill);
        }
        let_pass(d, begin_ns + fault.until_ns);
        fault_end(d);
        return agent_left;
}

/* The longest time from the end of the harm to a commit. */
static void note_recovery(struct driver *d, uint64_t begin_ns) {
        uint64_t took_ns = now_ns() - begin_ns;
        if (took_ns > d->recovery_ns)
                d->recovery_ns = took_ns;
}

static void round_once(struct driver *d) {
        d->rounds++;
        if (d->runner == 0)
                start_runner(d);
        let_pass(d, now_ns() + random_next(d) % (300 * NSEC_PER_MSEC));
        if (d->snapshot == 0 && random_next(d) % 2)
                start_snapshot(d, false);
        let_pass(d, now_ns() + random_next(d) % (60 * NSEC_PER_MSEC));
        bool agent_left = do_harm(d);
        uint64_t begin_ns = now_ns();
        if (d->runner_killed) {
                if (!wait_for_orphans(d, agent_left)) {
                        hang(d, "what `cairn run` left did not end");
                        return;
                }
                d->runner = 0;
                d->runner_killed = false;
                check_log(d, false);
                check_store(d);
                start_runner(d);
        }
        if (random_next(d) % 4 != 0) { /* else the next kill comes while it recovers */
                recover(d);
                note_recovery(d, begin_ns);
        }
}

static void print_kinds(const char *what, const uint64_t *counts) {
        printf("%s", what);
        for (int kind = PROCESS_RUNNER; kind <= PROCESS_TRAINER; kind++)
                printf(" %" PRIu64 " %s%s", counts[kind], process_kind_names[kind],
                       kind < PROCESS_TRAINER ? "," : "");
}

static int report(struct driver *d, uint64_t begin_ns) {
        double seconds = (double) (now_ns() - begin_ns) / 1e9;
        printf("%" PRIu64 " rounds in %.0f s, seed %" PRIu64 ": ", d->rounds, seconds, d->seed);
        print_kinds("killed", d->kills);
        print_kinds("; stopped", d->stops);
        if (d->stores[1])
                printf("; the store hung %" PRIu64 " times", d->store_hangs);
        else
                printf("; the store hung 0 times: NOT SHOWN, none that can hang was mounted");
        if (d->stores[1])
                print_kinds("\nkilled, but stuck in it", d->stuck);
        printf("\n%" PRIu64 " commits reported, %" PRIu64 " runs completed; %" PRIu64
               " steps were held up for the gate's deadline, the longest step took %.3f s, the "
               "longest recovery %.3f s\n",
               d->commits, d->runs_done, d->steps.expired, (double) d->steps.longest_ns / 1e9,
               (double) d->recovery_ns / 1e9);
        printf("%" PRIu64 " torn restores, %" PRIu64 " lost committed checkpoints, %" PRIu64
               " hangs, %" PRIu64 " late steps, %" PRIu64 " broken\n",
               d->torn, d->lost, d->hangs, d->late, d->broken);
        return failures(d) > 0;
}

int main(int argc, char **argv) {
        static struct driver d;
        if (argc != 7 && argc != 10)
                return 64;
        uint64_t rounds = strtoull(argv[3], NULL, 10), seconds = strtoull(argv[5], NULL, 10);
        d = (struct driver){.bin = argv[1], .work = argv[2], .seed = strtoull(argv[4], NULL, 10)};
        d.random = d.seed;
        d.stores[0] = d.read_stores[0] = argv[6];
        if (argc == 10) {
                d.stores[1] = argv[7];
                d.read_stores[1] = argv[8];
                d.weather = argv[9];
        }
        (void) snprintf(d.answer, sizeof d.answer, "%s/answer.json", d.work);
        (void) snprintf(d.reference, sizeof d.reference, "%s/reference.log", d.work);
        if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || !make_reference(&d)) {
                fprintf(stderr, "kill_driver: there is no reference run\n");
                return 70;
        }
        next_run(&d);
        uint64_t begin_ns = now_ns();
        while (d.rounds < rounds && failures(&d) < FAILURES_MAX &&
               (seconds == 0 || now_ns() < begin_ns + seconds * NSEC_PER_SEC))
                round_once(&d);
        fault_end(&d);
        kill_everything(&d);
        return report(&d, begin_ns);
}
