/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn demo - the promise, shown: train, kill, resume, compare. Each stage is a `cairn run` as a
 * user would type it; the losses of the interrupted run have to equal the uninterrupted one's bit
 * for bit.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "tools/agent_process.h"
#include "tools/command.h"
#include "tools/process_tree.h"
#include "tools/train_log.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEMO_STAGE_NS_MAX (300 * NSEC_PER_SEC)
#define DEMO_POLL_NS (40 * NSEC_PER_MSEC)
enum { BAR_CELLS = 24, COMMAND_WORDS_MAX = 64 };

struct demo {
        const struct command *command;
        const char *data;
        uint64_t steps, ranks;
        bool terminal;
        char folder[PATH_MAX / 4];
        char cairn[PATH_MAX], trainer[PATH_MAX];
        int64_t killed_at, resumed_from;
        sigset_t signals, former; /* blocked; the mask before that, for what is started */
        int signal;               /* that ended it; 0: none did */
};

static void progress(const struct demo *d, const char *title, int64_t step, double loss,
                     bool last) {
        if (!d->terminal && !last)
                return;
        int filled = (int) ((uint64_t) (step < 0 ? 0 : step) * BAR_CELLS / d->steps);
        printf("%s  %-14s ", d->terminal ? "\r" : "", title);
        for (int i = 0; i < BAR_CELLS; i++)
                fputs(i < filled ? "█" : "░", stdout);
        printf("  step %4" PRId64 "/%" PRIu64, step < 0 ? 0 : step, d->steps);
        if (step > 0)
                printf("  loss %.4f", loss);
        fputs(last ? "\n" : "   ", stdout);
        (void) fflush(stdout);
}

/* Print what a stage wrote, so that a failure explains itself. */
static void show_output(const char *path) {
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        char line[1024];
        while (f && fgets(line, sizeof line, f))
                fprintf(stderr, "    %s", line);
}

static int fail(const struct demo *d, const char *stage, const char *what, const char *output) {
        printf("\n");
        (void) fflush(stdout);
        if (d->signal)
                return 128 + d->signal;
        fprintf(stderr, "cairn demo: %s: %s; its output:\n", stage, what);
        show_output(output);
        fprintf(stderr, "everything is kept in %s\n", d->folder);
        return status_exit_code(CAIRN_ERR_FATAL);
}

static void child_exec(const struct demo *d, const char *run, const char *mode,
                       const char *log_path, int output_fd) {
        char store[PATH_MAX], steps[32], ranks[32], batch[32];
        (void) snprintf(store, sizeof store, "%s/store", d->folder);
        (void) snprintf(steps, sizeof steps, "%" PRIu64, d->steps);
        (void) snprintf(ranks, sizeof ranks, "%" PRIu64, d->ranks);
        (void) snprintf(batch, sizeof batch, "%" PRIu64, d->ranks > 1 ? 8 / d->ranks : 4);
        const char *words[COMMAND_WORDS_MAX] = {d->cairn,
                                                "run",
                                                "--run",
                                                run,
                                                "--store",
                                                store,
                                                "--mode",
                                                mode,
                                                "--every",
                                                "20steps",
                                                "--nnodes",
                                                "1",
                                                "--nproc-per-node",
                                                ranks,
                                                "--",
                                                d->trainer,
                                                "--steps",
                                                steps,
                                                "--log",
                                                log_path,
                                                "--batch",
                                                batch,
                                                "--global-batch",
                                                "8",
                                                "--dropout",
                                                "0.1",
                                                "--ema",
                                                "0.99",
                                                "--warmup",
                                                "20",
                                                "--decay",
                                                "cosine",
                                                "--loss-scale",
                                                "dynamic",
                                                "--eval-every",
                                                "60",
                                                d->ranks > 1 ? "--zero" : NULL,
                                                "1"};
        size_t count = 0;
        while (words[count])
                count++;
        if (d->data) {
                words[count++] = "--data";
                words[count++] = d->data;
        }
        (void) prctl(PR_SET_PDEATHSIG, SIGTERM); /* it trains for nobody else */
        (void) sigprocmask(SIG_SETMASK, &d->former, NULL);
        if (dup2(output_fd, STDOUT_FILENO) < 0 || dup2(output_fd, STDERR_FILENO) < 0)
                _exit(70);
        /* Always a private agent, its socket in the demo's folder: a demo leaves no trace in a
         * fleet, and another one, or a run of these names, is not in its way. */
        (void) setenv("CAIRN_SOCKET", "", 1);
        (void) setenv("XDG_RUNTIME_DIR", d->folder, 1);
        (void) execv(d->cairn, (char *const *) words);
        _exit(71);
}

static pid_t start(const struct demo *d, const char *run, const char *mode, const char *log_path,
                   const char *output_path) {
        _cleanup_close_ int output =
                open(output_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (output < 0)
                return -1;
        pid_t pid = fork();
        if (pid == 0)
                child_exec(d, run, mode, log_path, output);
        return pid;
}

/* A while, or until somebody wants the end. */
static void nap(struct demo *d) {
        const struct timespec pause = {.tv_nsec = DEMO_POLL_NS};
        int number = sigtimedwait(&d->signals, NULL, &pause);
        if (number > 0)
                d->signal = number;
}

/* Follow a stage until its process ends or the log reaches `stop_at` (0: never). Returns the wait
 * status in *ret_status, or 1 when stop_at was reached, or -1 on a time-out or a signal. */
static int follow(struct demo *d, pid_t pid, const char *title, const char *log_path,
                  int64_t stop_at, int *ret_status) {
        uint64_t deadline_ns = clock_now(&clock_system) + DEMO_STAGE_NS_MAX;
        struct train_log_tail tail = {.step = -1};
        for (;;) {
                pid_t ended = waitpid(pid, ret_status, WNOHANG);
                train_log_last(log_path, &tail);
                progress(d, title, tail.step, tail.loss, false);
                if (ended == pid) {
                        progress(d, title, tail.step, tail.loss, true);
                        return 0;
                }
                if (stop_at > 0 && tail.step >= stop_at) {
                        progress(d, title, tail.step, tail.loss, true);
                        return 1;
                }
                if (d->signal || clock_now(&clock_system) > deadline_ns)
                        return -1;
                nap(d);
        }
}

static int run_to_end(struct demo *d, const char *title, const char *run, const char *mode,
                      const char *log_path) {
        char output[PATH_MAX];
        (void) snprintf(output, sizeof output, "%s/%s-%s.output", d->folder, run, mode);
        pid_t pid = start(d, run, mode, log_path, output);
        if (pid < 0)
                return fail(d, title, strerror(errno), output);
        int wait_status = 0;
        int r = follow(d, pid, title, log_path, 0, &wait_status);
        if (r < 0) {
                process_tree_kill(pid);
                (void) waitpid(pid, &wait_status, 0);
                return fail(d, title, "it did not end within five minutes", output);
        }
        if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
                return fail(d, title, "it failed", output);
        return 0;
}

/* A step that nobody chose: between half and four fifths of the run. */
static int64_t random_step(const struct demo *d) {
        uint32_t random = 0;
        if (getrandom(&random, sizeof random, 0) != sizeof random)
                random = (uint32_t) getpid();
        uint64_t from = d->steps / 2, to = d->steps * 4 / 5;
        return (int64_t) (from + random % (to - from + 1));
}

static int run_and_kill(struct demo *d, const char *title, const char *log_path) {
        char output[PATH_MAX];
        (void) snprintf(output, sizeof output, "%s/interrupted.output", d->folder);
        pid_t pid = start(d, "interrupted", "fresh", log_path, output);
        if (pid < 0)
                return fail(d, title, strerror(errno), output);
        int wait_status = 0;
        int r = follow(d, pid, title, log_path, random_step(d), &wait_status);
        if (r != 1) {
                process_tree_kill(pid);
                (void) waitpid(pid, &wait_status, 0);
                return fail(d, title,
                            r < 0 ? "it did not get there within five minutes"
                                  : "it ended by itself",
                            output);
        }
        size_t killed = process_tree_kill(pid);
        (void) waitpid(pid, &wait_status, 0);
        struct train_log_tail tail = {.step = -1};
        train_log_last(log_path, &tail);
        d->killed_at = tail.step;
        printf("                 SIGKILL to all %zu processes at step %" PRId64
               ", trainer and agent alike: the machine is gone\n",
               killed, d->killed_at);
        return 0;
}

/* One rank of the group is gone; `cairn run` is to start all of them again by itself. */
static int run_and_kill_rank(struct demo *d, const char *title, const char *log_path) {
        char output[PATH_MAX];
        (void) snprintf(output, sizeof output, "%s/interrupted.output", d->folder);
        pid_t pid = start(d, "interrupted", "fresh", log_path, output);
        if (pid < 0)
                return fail(d, title, strerror(errno), output);
        int wait_status = 0;
        int r = follow(d, pid, title, log_path, random_step(d), &wait_status);
        pid_t rank = r == 1 ? process_tree_find(pid, "RANK=1") : 0;
        if (rank > 0) {
                (void) kill(rank, SIGKILL);
                struct train_log_tail tail = {.step = -1};
                train_log_last(log_path, &tail);
                d->killed_at = tail.step;
                printf("                 SIGKILL to rank 1 of %" PRIu64 " at step %" PRId64 "\n",
                       d->ranks, d->killed_at);
                r = follow(d, pid, "  regrouped", log_path, 0, &wait_status);
        }
        if (rank == 0 || r != 0) {
                process_tree_kill(pid);
                (void) waitpid(pid, &wait_status, 0);
                return fail(d, title,
                            rank == 0 ? "rank 1 was not found in it"
                                      : "it did not end within five minutes",
                            output);
        }
        if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
                return fail(d, title, "it failed", output);
        return 0;
}

static int compare(struct demo *d, const char *reference_path, const char *resumed_path) {
        struct train_log_comparison c;
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (train_log_compare(reference_path, resumed_path, &c, &e) < 0) {
                printf("    comparison   ✗\n");
                (void) fflush(stdout);
                (void) command_fail(d->command, &e);
                fprintf(stderr, "everything is kept in %s\n", d->folder);
                return status_exit_code(CAIRN_ERR_MISMATCH);
        }
        printf("  %d comparison   %zu of %zu lines equal bit for bit: every loss, rate and sample "
               "count\n",
               d->ranks > 1 ? 3 : 4, c.equal, c.lines);
        return 0;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
        return remove(path);
}

static void remove_folder(const struct demo *d) {
        if (nftw(d->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0)
                fprintf(stderr, "cairn demo: could not remove %s, ignoring\n", d->folder);
}

/* Whoever ends it wants everything ended that it started. Where SIGHUP is ignored (nohup) it goes
 * on. */
static void block_signals(struct demo *d) {
        struct sigaction hang_up;
        (void) sigemptyset(&d->signals);
        (void) sigaddset(&d->signals, SIGINT);
        (void) sigaddset(&d->signals, SIGTERM);
        if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
                (void) sigaddset(&d->signals, SIGHUP);
        (void) sigprocmask(SIG_BLOCK, &d->signals, &d->former);
}

/* The step that the resumed run says it continued from: its restore line is in the output. */
static void show_restore_line(const struct demo *d) {
        char path[PATH_MAX], line[1024];
        (void) snprintf(path, sizeof path, "%s/interrupted%s.output", d->folder,
                        d->ranks > 1 ? "" : "-resume");
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f))
                if (strncmp(line, "start resume", 12) == 0)
                        printf("                 %s", line);
}

static int stages(struct demo *d) {
        char reference[PATH_MAX], interrupted[PATH_MAX];
        (void) snprintf(reference, sizeof reference, "%s/reference.jsonl", d->folder);
        (void) snprintf(interrupted, sizeof interrupted, "%s/interrupted.jsonl", d->folder);
        int r = run_to_end(d, "1 reference", "reference", "fresh", reference);
        if (r == 0 && d->ranks > 1)
                r = run_and_kill_rank(d, "2 interrupted", interrupted);
        else if (r == 0)
                r = run_and_kill(d, "2 interrupted", interrupted);
        if (r == 0 && d->ranks == 1)
                r = run_to_end(d, "3 resumed", "interrupted", "resume", interrupted);
        if (r != 0)
                return r;
        show_restore_line(d);
        return compare(d, reference, interrupted);
}

static int name_folder(struct demo *d, struct cairn_error *reterr) {
        const char *temporary = getenv("TMPDIR");
        if (!temporary || !*temporary)
                temporary = "/tmp";
        int n = snprintf(d->folder, sizeof d->folder, "%s/cairn-demo-XXXXXX", temporary);
        if ((size_t) n + sizeof "/cairn/interrupted.sock" >
            sizeof((struct sockaddr_un *) NULL)->sun_path)
                return error_set(reterr, CAIRN_ERR_API, "make a folder in TMPDIR", temporary,
                                 "the name is too long for a socket in it: set TMPDIR to a shorter "
                                 "one, such as /tmp");
        return 0;
}

int command_demo(const struct command *self, int argc, char **argv) {
        struct demo d = {
                .command = self, .steps = 240, .ranks = 1, .terminal = isatty(STDOUT_FILENO)};
        bool keep = false;
        size_t count;
        const struct option_row rows[] = {
                {"--data", "FILE", OPTION_STRING, &d.data,
                 "text to train on (default: this system's licence texts)", NULL},
                {"--steps", "N", OPTION_COUNT, &d.steps,
                 "optimizer steps (default 240, at least 50)", NULL},
                {"--ranks", "N", OPTION_COUNT, &d.ranks,
                 "1, 2, 4 or 8: with several one of them is killed, and the group comes back",
                 NULL},
                {"--keep", NULL, OPTION_FLAG, &keep, "keep logs and checkpoints", NULL},
        };
        struct cairn_error e = CAIRN_ERROR_INIT;
        int r = options_parse(self, OPTION_ROWS(rows), argc, argv, NULL, 0, &count, NULL);
        if (r != 0)
                return r < 0 ? status_exit_code(CAIRN_ERR_API) : 0;
        if (d.steps < 50 || d.steps > 1000000)
                return command_fail_text(self, CAIRN_ERR_API, "--steps takes 50 to 1000000");
        if (d.ranks != 1 && d.ranks != 2 && d.ranks != 4 && d.ranks != 8)
                return command_fail_text(self, CAIRN_ERR_API, "--ranks takes 1, 2, 4 or 8");
        if (d.data && access(d.data, R_OK) < 0) {
                (void) error_set_errno(&e, errno, "read --data", d.data);
                return command_fail(self, &e);
        }
        if (name_folder(&d, &e) < 0)
                return command_fail(self, &e);
        if (agent_process_find("cairn", d.cairn, sizeof d.cairn, &e) < 0 ||
            agent_process_find("cairn-train", d.trainer, sizeof d.trainer, &e) < 0)
                return command_fail(self, &e);
        if (!mkdtemp(d.folder)) {
                (void) error_set_errno(&e, errno, "make a folder for the demo", d.folder);
                return command_fail(self, &e);
        }
        printf("\nCairn trains a small GPT on %s, kills %s without warning and resumes it.\n\n",
               d.data ? d.data : "the licence texts of this system", d.ranks > 1 ? "a rank" : "it");
        uint64_t start_ns = clock_now(&clock_system);
        block_signals(&d);
        r = stages(&d);
        if (d.signal && !keep) {
                fprintf(stderr, "cairn demo: ended by signal %d (%s); nothing of it is left\n",
                        d.signal, strsignal(d.signal));
                remove_folder(&d);
        }
        if (r != 0)
                return r;
        printf("\n  ✓ nothing was lost: the resumed run is the uninterrupted one. %.0f seconds.\n",
               (double) (clock_now(&clock_system) - start_ns) / 1e9);
        if (keep)
                printf("    logs and checkpoints: %s\n", d.folder);
        else
                remove_folder(&d);
        puts("    next: cairn run -- YOUR COMMAND      (client/cairn.h shows what a trainer "
             "calls)\n");
        return 0;
}
