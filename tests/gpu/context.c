/* SPDX-License-Identifier: Apache-2.0
 *
 * What a context costs: time until it is there, memory of the GPU and of the host; for a process
 * that has one (a saver of a post-mortem cut), and for the second.
 */
#include "base/limits.h"
#include "tests/gpu/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES = 2 };

struct cost {
        double load_seconds, open_seconds;
};

static int holder_main(void) {
        struct step s = {.error = CAIRN_ERROR_INIT};
        struct cost cost;
        char end;
        double begin = step_seconds();
        STEP_TRY(cuda_driver_load(&s.cuda, &s.error));
        double loaded = step_seconds();
        STEP_TRY(device_cuda.open(0, &s.device, &s.error));
        cost = (struct cost){loaded - begin, step_seconds() - loaded};
        step_send(STEP_SOCKET_FD, &cost, sizeof cost, -1);
        while (read(STEP_SOCKET_FD, &end, 1) > 0)
                ;
        return step_passed(&s);
}

static uint64_t free_bytes(struct step *s) {
        size_t available, total;
        step_enter(s);
        STEP_CHECK(s->cuda->MemGetInfo(&available, &total) == CUDA_OK);
        return available;
}

static double resident_mib(pid_t pid) {
        char path[64], line[256];
        double mib = 0;
        (void) snprintf(path, sizeof path, "/proc/%d/status", (int) pid);
        FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f))
                if (strncmp(line, "RssAnon:", 8) == 0)
                        mib = strtod(line + 8, NULL) / 1024;
        if (f)
                (void) fclose(f);
        return mib;
}

int main(int argc, char **argv) {
        struct step s;
        const char *const arguments[] = {"hold", NULL};
        pid_t pids[PROCESSES];
        int sockets[PROCESSES];
        char name[48];
        if (argc > 1)
                return holder_main();
        step_open(&s);
        uint64_t before = free_bytes(&s), last = before;
        for (int i = 0; i < PROCESSES; i++) {
                struct cost cost;
                pids[i] = step_spawn(arguments, &sockets[i]);
                step_receive(sockets[i], &cost, sizeof cost, NULL);
                uint64_t now = free_bytes(&s);
                const struct {
                        const char *what;
                        double value;
                        const char *unit;
                } figures[] = {
                        {"load", cost.load_seconds * 1e3, "ms"},
                        {"open", cost.open_seconds * 1e3, "ms"},
                        {"gpu_memory", last > now ? (double) (last - now) / MiB : 0, "MiB"},
                        {"host_memory", resident_mib(pids[i]), "MiB"},
                };
                for (size_t k = 0; k < sizeof figures / sizeof *figures; k++) {
                        (void) snprintf(name, sizeof name, "%s_process_%d", figures[k].what, i + 1);
                        step_figure(name, figures[k].value, figures[k].unit);
                }
                last = now;
        }
        for (int i = 0; i < PROCESSES; i++) {
                (void) close(sockets[i]);
                step_join(pids[i]);
        }
        uint64_t after = free_bytes(&s);
        step_figure("memory_kept", before > after ? (double) (before - after) / MiB : 0, "MiB");
        if (before > after + 32 * MiB)
                step_fail("contexts of processes that ended stay in use");
        return step_passed(&s);
}
