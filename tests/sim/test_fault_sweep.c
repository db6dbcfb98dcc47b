/* SPDX-License-Identifier: Apache-2.0
 *
 * time limit: 1800 s
 *
 * Every fault point of base/fault.h, passage after passage until none fires, in the real processes:
 * `cairn run` with its agent, store process, saver and a trainer that resumes a run whose last
 * attempt is complete and not committed (so that the start fences and rolls forward), commits
 * several times and prunes. Each passage fails (EIO, ENOSPC), kills its process, is the last thing
 * that happens before all processes are killed, or takes its time.
 *
 * After each: the newest checkpoint is the last one reported or one that was asked for since; every
 * visible one is valid and holds the bits of its step; the trainer was not held up beyond the gate,
 * did not end and saw no state but a restored one; the run commits again, and resumes once more.
 * Nothing fires a second time ($CAIRN_FAULT_ONCE).
 *
 * A point that never fires is a failure, and so is a planted defect that passes. ROUNDS / 3 is the
 * number of commits in a life. Most of the time goes by in waiting for the disk and for each other,
 * so a few workers share the points.
 */
#include "base/cleanup.h"
#include "base/fault.h"
#include "tests/e2e/processes.h"
#include "tests/sim/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIFE_NS (180 * NSEC_PER_SEC)
#define POLL_NS (1 * NSEC_PER_MSEC)
#define END_NS (60 * NSEC_PER_SEC) /* until a process that was killed is gone */
enum { PATH_BYTES = 512, VIOLATIONS_MAX = 8, STEPS_A_COMMIT = 2, LIVES_MAX = 3, WORKERS = 3 };
enum { KILLED = -1 };

static const struct action {
        const char *name, *specification;
        bool is_kill;      /* it stops, and everything is killed then */
        bool storage_only; /* makes sense where something is written */
        bool gate_only;    /* longer than the gate waits; one of its points is enough */
} actions[] = {
        {"EIO", "error:5", false, false, false},
        {"ENOSPC", "error:28", false, true, false},
        {"crash", "crash", false, false, false},
        {"all killed", "stop", true, false, false},
        {"delay", "delay:100", false, false, false},
        {"long delay", "delay:2500", false, false, true},
};
enum { ACTIONS = sizeof actions / sizeof *actions };

/* What the trainer's log says; `asked`, `committed`: the highest. */
struct told {
        int64_t asked, committed, restored, first_restored;
        unsigned starts, refused, failed, wrong, ends;
        char first_wrong[300];
};
/* Of all workers. */
struct shared {
        atomic_uint next, never;
        atomic_uint_least64_t lives, fired[ACTIONS], violations;
};
struct sweep {
        struct shared *shared;
        char work[PATH_BYTES], cairn[PATH_BYTES], self[PATH_BYTES];
        char template[PATH_BYTES], life[PATH_BYTES], store[PATH_BYTES];
        char log[PATH_BYTES], output[PATH_BYTES], fired[PATH_BYTES];
        int64_t template_committed, template_asked;
        uint64_t commits;
        const char *trainer; /* what it does about a restore that failed */
        char doing[100];
        struct told told;
        uint64_t violations;
        bool quiet;
};

static void violation(struct sweep *s, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

static void print_end(const char *path) {
        char text[2000];
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return;
        off_t from = st.st_size > (off_t) sizeof text ? st.st_size - (off_t) sizeof text : 0;
        ssize_t n = pread(fd, text, sizeof text, from);
        if (n > 0)
                printf("    --- %s\n%.*s", path, (int) n, text);
}

static void violation(struct sweep *s, const char *format, ...) {
        va_list arguments;

        s->violations++;
        if (s->quiet || atomic_fetch_add(&s->shared->violations, 1) >= VIOLATIONS_MAX)
                return;
        printf("VIOLATION %s: ", s->doing);
        va_start(arguments, format);
        (void) vprintf(format, arguments);
        va_end(arguments);
        printf("\n");
        print_end(s->output);
        print_end(s->log);
        (void) fflush(stdout); /* in one piece: a worker's output is buffered */
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
        (void) execvp(words[0], (char *const *) words);
        _exit(71);
}

static bool run_tool(struct sweep *s, const char *const *words) {
        int status = -1;
        pid_t pid = spawn(words, s->output);
        bool ok = pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;

        if (!ok)
                violation(s, "%s ended with %d", words[0], status);
        return ok;
}

/* All below this process, which adopts them, for it is their subreaper: killed, if that is wanted,
 * and gone. False: they are still there. */
static bool all_gone(pid_t runner, bool killing) {
        static struct process_entry entries[256];
        uint64_t end_ns = clock_now(&clock_system) + END_NS;
        size_t count;

        if (runner > 0)
                (void) kill(runner, SIGSTOP); /* so that it starts nothing meanwhile */
        while ((count = process_descendants(getpid(), entries, 256)) > 0) {
                if (clock_now(&clock_system) > end_ns)
                        return false;
                for (size_t i = 0; i < count && killing; i++)
                        (void) kill(entries[i].pid, SIGKILL);
                while (waitpid(-1, NULL, WNOHANG) > 0)
                        continue;
                clock_system.sleep_ns(NULL, POLL_NS);
        }
        while (waitpid(-1, NULL, WNOHANG) > 0)
                continue;
        return true;
}

static pid_t start_life(struct sweep *s, const char *mode, int64_t steps, const char *fault) {
        char last[32];
        const char *const words[] = {s->cairn,      "run",    "--run",    SWEEP_RUN, "--store",
                                     s->store,      "--mode", mode,       "--every", "1000000steps",
                                     "--keep-last", "2",      "--",       s->self,   "--train",
                                     s->log,        last,     s->trainer, NULL};

        (void) snprintf(last, sizeof last, "%" PRId64, steps);
        atomic_fetch_add(&s->shared->lives, 1);
        if (fault) {
                (void) setenv("CAIRN_FAULT", fault, 1);
                (void) setenv("CAIRN_FAULT_ONCE", s->fired, 1);
        }
        pid_t pid = spawn(words, s->output);
        (void) unsetenv("CAIRN_FAULT");
        (void) unsetenv("CAIRN_FAULT_ONCE");
        return pid;
}

static bool has_fired(const struct sweep *s) {
        return access(s->fired, F_OK) == 0;
}

/* Returns its exit status, or KILLED: all of it, by us. */
static int finish_life(struct sweep *s, pid_t runner, bool kill_when_fired) {
        uint64_t end_ns = clock_now(&clock_system) + LIFE_NS;
        int status = 0;

        while (waitpid(runner, &status, WNOHANG) != runner) {
                bool late = clock_now(&clock_system) > end_ns;
                if (late)
                        violation(s, "`cairn run` did not end within %d s",
                                  (int) (LIFE_NS / NSEC_PER_SEC));
                if (late || (kill_when_fired && has_fired(s))) {
                        if (!all_gone(runner, true))
                                violation(s, "killed processes do not end");
                        return KILLED;
                }
                clock_system.sleep_ns(NULL, POLL_NS);
        }
        if (!all_gone(0, false)) {
                violation(s, "`cairn run` left processes behind");
                (void) all_gone(0, true);
        }
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- what was said ---- */

static bool number_after(const char *line, const char *word, int64_t *ret) {
        size_t bytes = strlen(word);

        if (strncmp(line, word, bytes) != 0)
                return false;
        *ret = strtoll(line + bytes, NULL, 10);
        return true;
}

static void hear(struct told *told, const char *line) {
        int64_t step;

        told->starts += strcmp(line, "start\n") == 0;
        told->ends += strcmp(line, "end\n") == 0;
        told->refused += strncmp(line, "refused ", 8) == 0;
        told->failed += strncmp(line, "failed ", 7) == 0;
        if (number_after(line, "asked ", &step) && step > told->asked)
                told->asked = step;
        if (number_after(line, "committed ", &step) && step > told->committed)
                told->committed = step;
        if (number_after(line, "restored ", &step)) {
                if (told->restored < 0)
                        told->first_restored = step;
                told->restored = step;
        }
        if (strncmp(line, "wrong", 5) == 0 && told->wrong++ == 0)
                (void) snprintf(told->first_wrong, sizeof told->first_wrong, "%.299s", line);
}

/* The log of one life. */
static void read_log(struct sweep *s) {
        char line[1100];
        struct told t = {.asked = s->told.asked,
                         .committed = s->told.committed,
                         .restored = -1,
                         .first_restored = -1};
        _cleanup_fclose_ FILE *f = fopen(s->log, "re");

        while (f && fgets(line, sizeof line, f))
                hear(&t, line);
        s->told = t;
        if (t.wrong)
                violation(s, "the trainer says: %s", t.first_wrong);
}

/* Of any process, in a build with one. */
static bool sanitizer_speaks(const struct sweep *s) {
        char line[1100];
        _cleanup_fclose_ FILE *f = fopen(s->output, "re");

        while (f && fgets(line, sizeof line, f))
                if (strstr(line, "Sanitizer") || strstr(line, "runtime error:"))
                        return true;
        return false;
}

/* ---- one life ---- */

static void prepare(struct sweep *s, const char *template) {
        const char *const clear[] = {"rm", "-rf", s->life, NULL};
        const char *const link[] = {"cp", "-al", template, s->life, NULL};

        (void) unlink(s->output);
        (void) run_tool(s, clear);
        if (template)
                (void) run_tool(s, link);
        else if (mkdir(s->life, 0700) < 0)
                violation(s, "no folder can be made");
        s->told = (struct told){.asked = s->template_asked, .committed = s->template_committed};
}

/* The store as it lies there, between two lives. */
static int64_t look(struct sweep *s) {
        char problem[900];
        int64_t newest;

        if (!sweep_store_check(s->store, &newest, problem, sizeof problem))
                violation(s, "%s", problem);
        else if (newest < s->told.committed || newest > s->told.asked)
                violation(s,
                          "the newest is %" PRId64 "; %" PRId64 " was committed, %" PRId64 " asked",
                          newest, s->told.committed, s->told.asked);
        return newest;
}

/* A fault may end `cairn run`, which says why; then it is called again. The last life must end
 * well. */
static void live(struct sweep *s, int64_t steps, const char *fault, bool kill_when_fired,
                 unsigned failed_max, bool may_restart) {
        struct stat st;
        uint64_t violations = s->violations;

        for (int lives = 1;; lives++) {
                (void) unlink(s->log);
                int code = finish_life(s, start_life(s, "resume", steps, fault), kill_when_fired);
                bool harmed = fault && has_fired(s);
                read_log(s);
                if (s->told.failed > (harmed ? failed_max : 0))
                        violation(s, "%u checkpoints failed", s->told.failed);
                if (s->told.starts > 1 && !(harmed && (may_restart || s->told.refused)))
                        violation(s, "the trainer was started %u times", s->told.starts);
                if (s->told.refused && !harmed)
                        violation(s, "a call was refused without a fault");
                if (sanitizer_speaks(s))
                        violation(s, "a sanitizer found something");
                if (code == 0 && s->told.ends != 1)
                        violation(s, "it ends well, the trainer did not");
                int64_t newest = look(s);
                if (code == 0 || s->violations > violations)
                        return;
                if (!harmed || lives == LIVES_MAX)
                        violation(s, "`cairn run` ended with %d", code);
                if (code != KILLED && (stat(s->output, &st) < 0 || st.st_size == 0))
                        violation(s, "`cairn run` ended with %d and said nothing", code);
                if (newest < s->template_committed)
                        violation(s, "step %" PRId64 " is lost", s->template_committed);
                kill_when_fired = false;
        }
}

/* Whether it fired. */
static bool inject(struct sweep *s, enum fault point, const struct action *a, uint64_t n) {
        char fault[100];

        (void) snprintf(s->doing, sizeof s->doing, "%s:%" PRIu64 ":%s", fault_name(point), n,
                        a->specification);
        (void) snprintf(fault, sizeof fault, "%s", s->doing);
        s->trainer = n % 2 ? "again" : "leave";
        (void) unlink(s->fired);
        prepare(s, s->template);
        int64_t last = s->template_asked + (int64_t) (s->commits - 1) * STEPS_A_COMMIT;
        bool may_restart = point == FAULT_CLIENT_APPLY;
        live(s, last, fault, a->is_kill, 1, may_restart);
        bool fired = has_fired(s);
        if (!fired)
                return false;
        atomic_fetch_add(&s->shared->fired[a - actions], 1);
        int64_t committed = s->told.committed;
        live(s, last + STEPS_A_COMMIT, NULL, false, 0, false);
        if (s->told.first_restored < committed || s->told.committed <= committed)
                violation(s, "resumed %" PRId64 " and committed %" PRId64 " after %" PRId64,
                          s->told.first_restored, s->told.committed, committed);
        return true;
}

/* ---- the sweep ---- */

static bool makes_sense(enum fault point, const struct action *a) {
        bool reads = point == FAULT_COPY_CHUNK || point == FAULT_COPY_RELEASE ||
                     point == FAULT_RESTORE_OPEN || point == FAULT_RESTORE_READ ||
                     point == FAULT_CLIENT_APPLY;
        return !(a->storage_only && reads) && !(a->gate_only && point != FAULT_COPY_RELEASE);
}

static void sweep_point(struct sweep *s, enum fault point) {
        char row[200];
        int at = snprintf(row, sizeof row, "%-20s", fault_name(point));
        uint64_t total = 0;

        for (size_t i = 0; i < ACTIONS; i++) {
                uint64_t n = 1, violations = s->violations;
                if (!makes_sense(point, &actions[i])) {
                        at += snprintf(row + at, sizeof row - (size_t) at, "%12s", "-");
                        continue;
                }
                while (inject(s, point, &actions[i], n) && s->violations == violations)
                        n++;
                at += snprintf(row + at, sizeof row - (size_t) at, "%12" PRIu64, n - 1);
                total += n - 1;
        }
        printf("%s%s\n", row, total ? "" : "  NEVER FIRED");
        (void) fflush(stdout);
        atomic_fetch_add(&s->shared->never, total == 0);
}

/* A run that committed, and died with a complete attempt. */
static void make_template(struct sweep *s) {
        (void) snprintf(s->doing, sizeof s->doing, "making the template");
        s->trainer = "leave";
        s->template_committed = s->template_asked = -1;
        prepare(s, NULL);
        int code = finish_life(s, start_life(s, "fresh", 100, "commit-index:3:stop"), true);
        read_log(s);
        s->template_committed = s->told.committed;
        s->template_asked = s->told.asked;
        if (code != KILLED || !has_fired(s) || look(s) <= s->told.committed)
                violation(s, "there is no complete attempt after step %" PRId64, s->told.committed);
        if (rename(s->life, s->template) < 0)
                violation(s, "the template cannot be moved");
}

/* ---- planted defects ---- */

static void flip_byte(struct sweep *s) {
        char path[PATH_BYTES + 100], byte;

        (void) snprintf(path, sizeof path, "%s/%s/%012" PRId64 "-g0001/rank-00000.data", s->store,
                        SWEEP_RUN, s->template_committed);
        _cleanup_close_ int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || pread(fd, &byte, 1, 8192) != 1 ||
            (byte ^= 1, pwrite(fd, &byte, 1, 8192)) != 1)
                printf("no byte of %s can be changed\n", path);
        (void) look(s);
        if (fd >= 0 && (byte ^= 1, pwrite(fd, &byte, 1, 8192)) != 1)
                printf("%s is not as before\n", path);
}

static void lose_newest(struct sweep *s) {
        s->told.committed = s->told.asked + 1;
        (void) look(s);
}

static void spoil_state(struct sweep *s) {
        s->trainer = "spoil";
        live(s, s->template_asked + STEPS_A_COMMIT, NULL, false, 0, false);
}

static void fail_silently(struct sweep *s) {
        live(s, s->template_asked + STEPS_A_COMMIT, "commit-index:2:error", false, 0, false);
}

static const struct {
        const char *name;
        void (*plant)(struct sweep *s);
} planted[] = {
        {"a flipped bit in a checkpoint", flip_byte},
        {"a reported checkpoint that is not there", lose_newest},
        {"a trainer with a state that was not restored whole", spoil_state},
        {"a checkpoint that failed without a fault", fail_silently},
};

static bool find_planted(struct sweep *s) {
        bool all = true;

        for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
                struct sweep other = *s;
                other.quiet = true;
                other.violations = 0;
                other.trainer = "leave";
                (void) unlink(other.fired);
                prepare(&other, other.template);
                planted[i].plant(&other);
                printf("planted: %s: %s\n", planted[i].name,
                       other.violations ? "found" : "NOT FOUND");
                all = all && other.violations > 0;
        }
        return all;
}

/* ---- main ---- */

static void set_paths(struct sweep *s) {
        const char *temporary = getenv("TMPDIR"), *build = getenv("BUILD");

        (void) snprintf(s->work, sizeof s->work, "%.200s/cairn-XXXXXX",
                        temporary ? temporary : "/tmp");
        (void) snprintf(s->cairn, sizeof s->cairn, "%.400s/cairn", build ? build : "build");
        if (!mkdtemp(s->work) || readlink("/proc/self/exe", s->self, sizeof s->self - 1) <= 0 ||
            access(s->cairn, X_OK) < 0) {
                printf("%s, %s: %s\n", s->work, s->cairn, strerror(errno));
                exit(1);
        }
        (void) snprintf(s->template, sizeof s->template, "%.300s/template", s->work);
        (void) snprintf(s->life, sizeof s->life, "%.300s/life", s->work);
        (void) snprintf(s->store, sizeof s->store, "%.300s/life/store", s->work);
        (void) snprintf(s->log, sizeof s->log, "%.300s/log", s->work);
        (void) snprintf(s->output, sizeof s->output, "%.300s/output", s->work);
        (void) snprintf(s->fired, sizeof s->fired, "%.300s/fired", s->work);
        (void) setenv("XDG_RUNTIME_DIR", s->work, 1);
}

static void forget_environment(void) {
        static const char *const names[] = {"CAIRN_RUN",  "CAIRN_SOCKET", "CAIRN_STORE",
                                            "CAIRN_LOG",  "CAIRN_FAULT",  "CAIRN_FAULT_ONCE",
                                            "RANK",       "SLURM_PROCID", "SLURM_NTASKS",
                                            "WORLD_SIZE", "LOCAL_RANK",   "CAIRN_DEBUG_MUTATION"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
                (void) unsetenv(names[i]);
}

/* Points that have most passages come first in the list. */
static int work(struct shared *shared, uint64_t commits, bool first) {
        static struct sweep s;

        s.shared = shared;
        s.commits = commits;
        set_paths(&s);
        if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
                return 1;
        make_template(&s);
        bool found = !first || find_planted(&s);
        while (atomic_load(&shared->violations) < VIOLATIONS_MAX) {
                unsigned point = atomic_fetch_add(&shared->next, 1);
                if (point >= FAULT_COUNT)
                        break;
                sweep_point(&s, (enum fault) point);
        }
        return !found;
}

static bool run_workers(struct shared *shared, uint64_t commits) {
        pid_t workers[WORKERS];
        bool ok = true;

        (void) fflush(stdout);
        for (int i = 0; i < WORKERS; i++) {
                workers[i] = fork();
                if (workers[i] == 0) {
                        int code = work(shared, commits, i == 0);
                        (void) fflush(stdout);
                        _exit(code);
                }
        }
        for (int i = 0; i < WORKERS; i++) {
                int status = -1;
                ok = workers[i] > 0 && waitpid(workers[i], &status, 0) == workers[i] &&
                     status == 0 && ok;
        }
        return ok;
}

int main(int argc, char **argv) {
        static char buffer[1 << 16];
        const char *rounds = getenv("ROUNDS");

        if (argc > 1 && strcmp(argv[1], "--train") == 0)
                return sweep_trainer_main(argc, argv);
        (void) setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
        struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (shared == MAP_FAILED)
                return 1;
        forget_environment();
        uint64_t commits = rounds && *rounds ? strtoull(rounds, NULL, 10) / 3 : 2;
        commits = commits > 1 ? commits : 2;
        printf("%" PRIu64 " commits a life; passages that fired:\n%-20s", commits, "");
        for (size_t i = 0; i < ACTIONS; i++)
                printf("%12s", actions[i].name);
        printf("\n");
        bool ok = run_workers(shared, commits);
        uint64_t violations = atomic_load(&shared->violations), fired = 0;
        for (size_t i = 0; i < ACTIONS; i++)
                fired += atomic_load(&shared->fired[i]);
        printf("%d points, %u never fired; %" PRIu64 " injections:", FAULT_COUNT,
               atomic_load(&shared->never), fired);
        for (size_t i = 0; i < ACTIONS; i++)
                printf(" %" PRIu64 " %s%s", (uint64_t) atomic_load(&shared->fired[i]),
                       actions[i].name, i + 1 < ACTIONS ? "," : ";");
        printf(" %" PRIu64 " lives, %" PRIu64 " violations\n",
               (uint64_t) atomic_load(&shared->lives), violations);
        return !ok || violations > 0 || atomic_load(&shared->never) > 0;
}
