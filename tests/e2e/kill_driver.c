/* SPDX-License-Identifier: Apache-2.0
 *
 * kill_driver - SIGKILL at random instants to the trainer, the saver, the agent, the store process,
 * `cairn run`, or several of them at once, and what must hold afterwards:
 *
 *     kill_driver BIN WORK ROUNDS SEED SECONDS      (SECONDS 0: no limit; else fewer rounds may be
 * done)
 *
 * WORK holds `text`, the corpus. First a run without checkpoints writes the reference log. Then
 * runs train the same model; in each round, after a random time, victims are killed; `cairn run`
 * has to recover by itself, or where it was a victim itself a second one (--mode auto) has to. What
 * counts:
 *
 *     torn    a log line that is not the reference's, or a checkpoint that does not verify
 *     lost    a checkpoint that was reported committed and is neither in the store nor older than
 * as many as are kept, or a restart from an older one than was reported before the kill hang    no
 * further step, or no further commit, within HANG_NS; also orphans that do not end broken  `cairn
 * run` ended although nobody killed it, with another status than 0
 *
 * Reported committed is what `cairn snapshot --wait` says and what `cairn run` or the trainer
 * print. The driver is a subreaper: everything it started stays below it, so it kills nobody else's
 * process.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "format/scan.h"
#include "tests/e2e/processes.h"
#include "tools/train_log.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define HANG_NS (40 * NSEC_PER_SEC)
#define POLL_NS (3 * NSEC_PER_MSEC)
#define KEEP_LAST 3
#define STEPS "600"
#define STEPS_LAST 600
#define RUN_PATH_BYTES 4096
enum { WORDS_MAX = 64, DESCENDANTS_MAX = 256, LINE_BYTES = 512 };

struct committed {
        char name[NAME_BYTES];
        int64_t step;
        uint64_t generation;
};
struct driver {
        const char *bin, *work;
        uint64_t random, seed;
        unsigned run_number;
        char run[32];
        char log[RUN_PATH_BYTES], output[RUN_PATH_BYTES], reference[RUN_PATH_BYTES];
        pid_t runner;   /* 0: none */
        pid_t snapshot; /* a `cairn snapshot --wait` under way; 0: none */
        bool is_probe;  /* it was started after the kill: its success shows that all is well */
        char answer[RUN_PATH_BYTES];
        struct committed reported;    /* newest; name "" if none */
        struct committed must_resume; /* what had been reported when the last kill came */
        uint64_t rounds, kills[PROCESS_KIND_COUNT], commits, probes, runs_done;
        uint64_t torn, lost, hangs, broken;
};

static void say(struct driver *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct driver *d, const char *format, ...) {
        va_list arguments;
        printf("round %" PRIu64 ", %s: ", d->rounds, d->run);
        va_start(arguments, format);
        (void) vprintf(format, arguments);
        va_end(arguments);
        putchar('\n');
        (void) fflush(stdout);
}

static uint64_t random_next(struct driver *d) {
        uint64_t x = d->random += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

static uint64_t now_ns(void) {
        return clock_now(&clock_system);
}

static void nap(void) {
        clock_system.sleep_ns(clock_system.context, POLL_NS);
}

/* ---- processes ---- */

static pid_t spawn(const char *const *words, const char *output) {
        (void) fflush(stdout);
        pid_t pid = fork();
        if (pid != 0)
                return pid;
        int fd = open(output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
                _exit(70);
        (void) execv(words[0], (char *const *) words);
        _exit(71);
}

static void add_trainer(struct driver *d, const char **words, size_t *count, char *paths) {
        const char *const trainer[] = {"--steps",
                                       STEPS,
                                       "--layers",
                                       "1",
                                       "--heads",
                                       "2",
                                       "--width",
                                       "16",
                                       "--context",
                                       "16",
                                       "--batch",
                                       "2",
                                       "--accumulate",
                                       "2",
                                       "--dropout",
                                       "0.1",
                                       "--ema",
                                       "0.99",
                                       "--loss-scale",
                                       "dynamic",
                                       "--loss-scale-growth",
                                       "50",
                                       "--overflow-step",
                                       "123",
                                       "--warmup",
                                       "40",
                                       "--decay",
                                       "cosine",
                                       "--eval-every",
                                       "100",
                                       "--eval-batches",
                                       "1",
                                       "--step-ms",
                                       "2",
                                       "--quiet"};
        (void) snprintf(paths, RUN_PATH_BYTES, "%s/cairn-train", d->bin);
        (void) snprintf(paths + RUN_PATH_BYTES, RUN_PATH_BYTES, "%s/text", d->work);
        words[(*count)++] = paths;
        words[(*count)++] = "--data";
        words[(*count)++] = paths + RUN_PATH_BYTES;
        for (size_t i = 0; i < sizeof trainer / sizeof trainer[0]; i++)
                words[(*count)++] = trainer[i];
}

static void start_runner(struct driver *d) {
        char cairn[RUN_PATH_BYTES], paths[2 * RUN_PATH_BYTES];
        const char *words[WORDS_MAX] = {
                cairn,     "run",         "--run", d->run,           "--mode", "auto", "--every",
                "25steps", "--keep-last", "3",     "--max-restarts", "100000", "--"};
        size_t count = 13;
        (void) snprintf(cairn, sizeof cairn, "%s/cairn", d->bin);
        add_trainer(d, words, &count, paths);
        words[count++] = "--log";
        words[count++] = d->log;
        d->runner = spawn(words, d->output);
}

static void start_snapshot(struct driver *d, bool is_probe) {
        char cairn[RUN_PATH_BYTES];
        const char *const words[] = {cairn,       "snapshot", d->run,   "--wait",
                                     "--timeout", "30",       "--json", NULL};
        (void) snprintf(cairn, sizeof cairn, "%s/cairn", d->bin);
        (void) unlink(d->answer);
        d->snapshot = spawn(words, d->answer);
        d->is_probe = is_probe;
}

static size_t descendants(struct process_entry *tree) {
        return process_descendants(getpid(), tree, DESCENDANTS_MAX);
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
                nap();
        }
        d->runner = d->snapshot = 0;
}

/* ---- what was reported ---- */

static void note_committed(struct driver *d, const char *name, int64_t step) {
        uint64_t generation = 0;
        const char *g = strstr(name, "-g");
        if (g)
                generation = strtoull(g + 2, NULL, 10);
        if (generation < d->reported.generation ||
            (generation == d->reported.generation && step < d->reported.step))
                return;
        (void) snprintf(d->reported.name, sizeof d->reported.name, "%s", name);
        d->reported.step = step;
        d->reported.generation = generation;
}

static void read_answer(struct driver *d) {
        json_error_t error;
        json_t *j = json_load_file(d->answer, 0, &error);
        const char *name = json_string_value(json_object_get(j, "checkpoint"));
        if (name && json_is_true(json_object_get(j, "committed"))) {
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

/* Reap; returns whether `cairn run` ended, its status in *ret. */
static bool reap(struct driver *d, int *ret) {
        bool ended = false;
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
                if (pid == d->runner) {
                        d->runner = 0;
                        *ret = status;
                        ended = true;
                } else if (pid == d->snapshot) {
                        d->snapshot = 0;
                        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                                read_answer(d);
                }
        }
        return ended;
}

/* ---- the oracle ---- */

/* Each complete line of the log has to be the reference's line, without "seconds". */
static void check_log(struct driver *d, bool whole) {
        char a[LINE_BYTES], b[LINE_BYTES];
        _cleanup_fclose_ FILE *reference = fopen(d->reference, "re");
        _cleanup_fclose_ FILE *log = fopen(d->log, "re");
        size_t line = 0;
        while (log && reference && fgets(b, sizeof b, log) && strchr(b, '\n')) {
                line++;
                if (!fgets(a, sizeof a, reference))
                        a[0] = '\0';
                char *end_a = strstr(a, ",\"seconds\":"), *end_b = strstr(b, ",\"seconds\":");
                if (end_a && end_b) {
                        *end_a = *end_b = '\0';
                        if (strcmp(a, b) == 0)
                                continue;
                }
                d->torn++;
                say(d, "✗ torn: line %zu of the log is\n    %s\nnot\n    %s", line, b, a);
                return;
        }
        if (whole && (!log || !reference || fgets(a, sizeof a, reference))) {
                d->torn++;
                say(d, "✗ torn: the log ends after %zu lines", line);
        }
}

/* A restart between two kills: its parent must not be older than what was reported before. */
static void check_parent(struct driver *d, const struct run_scan *scan) {
        const struct scan_generation *g = NULL;
        for (size_t i = 0; i < scan->generation_count; i++)
                if (scan->generations[i].started)
                        g = &scan->generations[i];
        const struct committed *c = &d->must_resume;
        if (!g || !c->name[0] || g->generation <= c->generation)
                return;
        if (g->parent_generation > c->generation ||
            (g->parent_generation == c->generation && g->parent_step >= c->step))
                return;
        d->lost++;
        say(d,
            "✗ lost: generation %" PRIu64 " starts at step %" PRId64 " of generation %" PRIu64
            ", %s had been reported",
            g->generation, g->parent_step, g->parent_generation, c->name);
        d->must_resume.name[0] = '\0';
}

static void check_checkpoints(struct driver *d, int run_fd, const struct run_scan *scan) {
        const struct committed *c = &d->reported;
        size_t newer = 0;
        bool found = !c->name[0];
        for (size_t i = 0; i < scan->checkpoint_count; i++) {
                const struct scan_checkpoint *s = &scan->checkpoints[i];
                struct cairn_error e = CAIRN_ERROR_INIT;
                char text[1024];
                if (s->is_attempt)
                        continue;
                int r = checkpoint_check(&io_system, run_fd, s->name, d->run, true, NULL, &e);
                if (r < 0 && faccessat(run_fd, s->name, F_OK, 0) == 0) {
                        d->torn++;
                        say(d, "✗ torn: %s: %s", s->name, error_format(&e, text, sizeof text));
                }
                if (strcmp(s->name, c->name) == 0)
                        found = true;
                else if (s->generation > c->generation ||
                         (s->generation == c->generation && s->step > c->step))
                        newer++;
        }
        if (!found && newer < KEEP_LAST) {
                d->lost++;
                say(d, "✗ lost: %s was reported committed, %zu newer ones are there", c->name,
                    newer);
                d->reported.name[0] = '\0';
        }
}

static void check_store(struct driver *d) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_close_ int store_fd = -1, run_fd = -1;
        struct run_scan scan = {0};
        char text[1024];
        int r = store_open(&io_system, getenv("CAIRN_STORE"), &store_fd, &e);
        if (r == 0)
                r = run_open(&io_system, store_fd, d->run, &run_fd, &e);
        if (r == CAIRN_ERR_NOTFOUND && !d->reported.name[0])
                return; /* nothing had been begun */
        if (r == 0)
                r = run_scan(&io_system, run_fd, d->run, true, &scan, &e);
        if (r < 0) {
                d->lost++;
                say(d, "✗ lost: the run cannot be read: %s", error_format(&e, text, sizeof text));
                return;
        }
        check_parent(d, &scan);
        check_checkpoints(d, run_fd, &scan);
        run_scan_done(&scan);
}

/* ---- a round ---- */

static int64_t last_step(const struct driver *d) {
        struct train_log_tail tail = {.step = 0};
        train_log_last(d->log, &tail);
        return tail.step;
}

static void next_run(struct driver *d) {
        d->run_number++;
        (void) snprintf(d->run, sizeof d->run, "kill-%u", d->run_number);
        (void) snprintf(d->log, sizeof d->log, "%s/%s.log", d->work, d->run);
        (void) snprintf(d->output, sizeof d->output, "%s/%s.out", d->work, d->run);
        d->reported = d->must_resume = (struct committed){0};
}

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

/* Let `duration_ns` pass; runs that end meanwhile are followed by the next one. */
static void let_pass(struct driver *d, uint64_t duration_ns) {
        uint64_t until_ns = now_ns() + duration_ns;
        int status;
        while (now_ns() < until_ns) {
                if (reap(d, &status)) {
                        on_runner_end(d, status);
                        start_runner(d);
                }
                nap();
        }
}

/* A bit for each kind to kill: mostly one, sometimes two, sometimes the whole machine. */
static unsigned choose_victims(struct driver *d) {
        const unsigned all = 1u << PROCESS_RUNNER | 1u << PROCESS_AGENT | 1u << PROCESS_SAVER |
                             1u << PROCESS_STORE | 1u << PROCESS_TRAINER;
        uint64_t dice = random_next(d) % 100;
        unsigned first = 1u << (1 + random_next(d) % 5), second = 1u << (1 + random_next(d) % 5);
        return dice < 60 ? first : dice < 85 ? first | second : all;
}

static bool kill_victims(struct driver *d, unsigned victims) {
        static struct process_entry tree[DESCENDANTS_MAX];
        size_t count = descendants(tree);
        bool runner_too = false;
        for (size_t i = 0; i < count; i++) {
                if (!(victims & 1u << tree[i].kind) || tree[i].pid == d->snapshot)
                        continue;
                (void) kill(tree[i].pid, SIGKILL);
                d->kills[tree[i].kind]++;
                runner_too = runner_too || tree[i].pid == d->runner;
        }
        return runner_too;
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
        kill_everything(d);
        next_run(d);
}

/* `cairn run` was killed: what it left ends by itself. Only a trainer whose agent died at the same
 * time may still wait for one: the next run's agent tells it that its time is over. */
static bool wait_for_orphans(struct driver *d, bool agent_too) {
        static struct process_entry tree[DESCENDANTS_MAX];
        uint64_t until_ns = now_ns() + HANG_NS;
        int status;
        do {
                (void) reap(d, &status);
                size_t count = descendants(tree), left = 0;
                for (size_t i = 0; i < count; i++)
                        left += tree[i].pid != d->snapshot && tree[i].kind != PROCESS_OTHER &&
                                !(agent_too && tree[i].kind == PROCESS_TRAINER);
                if (left == 0)
                        return true;
                nap();
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
                nap();
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

static void round_once(struct driver *d) {
        d->rounds++;
        if (d->runner == 0)
                start_runner(d);
        let_pass(d, random_next(d) % (300 * NSEC_PER_MSEC));
        if (d->snapshot == 0 && random_next(d) % 2)
                start_snapshot(d, false);
        let_pass(d, random_next(d) % (60 * NSEC_PER_MSEC));
        unsigned victims = choose_victims(d);
        d->must_resume = d->reported;
        if (kill_victims(d, victims)) {
                if (!wait_for_orphans(d, victims & 1u << PROCESS_AGENT)) {
                        hang(d, "what `cairn run` left did not end");
                        return;
                }
                d->runner = 0;
                check_log(d, false);
                check_store(d);
                start_runner(d);
        }
        if (random_next(d) % 4 != 0) /* else the next kill comes while it recovers */
                recover(d);
}

static bool make_reference(struct driver *d) {
        char paths[2 * RUN_PATH_BYTES], output[RUN_PATH_BYTES];
        const char *words[WORDS_MAX] = {0};
        size_t count = 0;
        int status = -1;
        add_trainer(d, words, &count, paths);
        words[count++] = "--log";
        words[count++] = d->reference;
        words[count++] = "--without-checkpoints";
        (void) snprintf(output, sizeof output, "%s/reference.out", d->work);
        pid_t pid = spawn(words, output);
        return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static int report(struct driver *d, uint64_t begin_ns) {
        printf("%" PRIu64 " rounds in %.0f s, seed %" PRIu64 ": killed", d->rounds,
               (double) (now_ns() - begin_ns) / 1e9, d->seed);
        for (int kind = PROCESS_RUNNER; kind <= PROCESS_TRAINER; kind++)
                printf(" %" PRIu64 " %s%s", d->kills[kind], process_kind_names[kind],
                       kind < PROCESS_TRAINER ? "," : "");
        printf("; %" PRIu64 " commits reported, %" PRIu64 " runs completed\n", d->commits,
               d->runs_done);
        printf("%" PRIu64 " torn restores, %" PRIu64 " lost committed checkpoints, %" PRIu64
               " hangs, %" PRIu64 " broken\n",
               d->torn, d->lost, d->hangs, d->broken);
        return d->torn + d->lost + d->hangs + d->broken > 0;
}

int main(int argc, char **argv) {
        static struct driver d;
        if (argc != 6 || !getenv("CAIRN_STORE"))
                return 64;
        uint64_t rounds = strtoull(argv[3], NULL, 10), seconds = strtoull(argv[5], NULL, 10);
        d = (struct driver){.bin = argv[1], .work = argv[2], .seed = strtoull(argv[4], NULL, 10)};
        d.random = d.seed;
        (void) snprintf(d.answer, sizeof d.answer, "%s/answer.json", d.work);
        (void) snprintf(d.reference, sizeof d.reference, "%s/reference.log", d.work);
        if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || !make_reference(&d)) {
                fprintf(stderr, "kill_driver: there is no reference run\n");
                return 70;
        }
        next_run(&d);
        uint64_t begin_ns = now_ns();
        while (d.rounds < rounds &&
               (seconds == 0 || now_ns() < begin_ns + seconds * NSEC_PER_SEC) &&
               d.torn + d.lost + d.hangs + d.broken < 5)
                round_once(&d);
        kill_everything(&d);
        return report(&d, begin_ns);
}
