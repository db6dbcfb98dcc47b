/* SPDX-License-Identifier: Apache-2.0
 *
 * The programs that the driver starts, and the names of a run.
 */
#include "tests/e2e/kill_parts.h"
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS_MAX = 64 };
#define STATUS_NS (15 * NSEC_PER_SEC) /* longer than it waits for an agent */

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
        (void) snprintf(paths, DRIVER_PATH_BYTES, "%s/cairn-train", d->bin);
        (void) snprintf(paths + DRIVER_PATH_BYTES, DRIVER_PATH_BYTES, "%s/text", d->work);
        words[(*count)++] = paths;
        words[(*count)++] = "--data";
        words[(*count)++] = paths + DRIVER_PATH_BYTES;
        for (size_t i = 0; i < sizeof trainer / sizeof trainer[0]; i++)
                words[(*count)++] = trainer[i];
}

void start_runner(struct driver *d) {
        char cairn[DRIVER_PATH_BYTES], paths[2 * DRIVER_PATH_BYTES];
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

void start_snapshot(struct driver *d, bool is_probe) {
        char cairn[DRIVER_PATH_BYTES];
        const char *const words[] = {cairn,       "snapshot", d->run,   "--wait",
                                     "--timeout", "30",       "--json", NULL};
        (void) snprintf(cairn, sizeof cairn, "%s/cairn", d->bin);
        (void) unlink(d->answer);
        d->snapshot = spawn(words, d->answer);
        d->is_probe = is_probe;
        d->snapshot_run = d->run_number;
}

void say_status(struct driver *d) {
        char cairn[DRIVER_PATH_BYTES], path[DRIVER_PATH_BYTES];
        const char *const words[] = {cairn, "status", d->run, "--json", NULL};
        (void) snprintf(cairn, sizeof cairn, "%s/cairn", d->bin);
        (void) snprintf(path, sizeof path, "%s/status.json", d->work);
        (void) unlink(path);
        pid_t pid = spawn(words, path);
        uint64_t until_ns = now_ns() + STATUS_NS;
        while (pid > 0 && waitpid(pid, NULL, WNOHANG) == 0 && now_ns() < until_ns)
                clock_system.sleep_ns(clock_system.context, 10 * NSEC_PER_MSEC);
        FILE *f = fopen(path, "re");
        for (int c; f && (c = getc(f)) != EOF;)
                (void) putchar(c);
        if (f)
                (void) fclose(f);
        (void) fflush(stdout);
}

bool make_reference(struct driver *d) {
        char paths[2 * DRIVER_PATH_BYTES], output[DRIVER_PATH_BYTES];
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

void next_run(struct driver *d) {
        d->run_number++;
        (void) snprintf(d->run, sizeof d->run, "kill-%u", d->run_number);
        (void) snprintf(d->log, sizeof d->log, "%s/%s.log", d->work, d->run);
        (void) snprintf(d->output, sizeof d->output, "%s/%s.out", d->work, d->run);
        d->reported = d->must_resume = (struct committed){0};
        d->on_hanging_store = d->stores[1] && d->run_number % 2 == 0;
        (void) setenv("CAIRN_STORE", d->stores[d->on_hanging_store], 1);
        steps_forget(&d->steps);
}
