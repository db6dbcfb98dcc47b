/* SPDX-License-Identifier: Apache-2.0
 *
 * processes.h - which of Cairn's processes run below a given one, as /proc shows them. For the test
 * programs here; each is one file, so these are static.
 */
#ifndef CAIRN_E2E_PROCESSES_H
#define CAIRN_E2E_PROCESSES_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum process_kind {
        PROCESS_OTHER,
        PROCESS_RUNNER,
        PROCESS_AGENT,
        PROCESS_SAVER,
        PROCESS_STORE,
        PROCESS_TRAINER,
        PROCESS_KIND_COUNT
};
static const char *const process_kind_names[PROCESS_KIND_COUNT] = {"other", "runner", "agent",
                                                                   "saver", "store",  "trainer"};

struct process_entry {
        pid_t pid, parent;
        bool zombie;
        enum process_kind kind;
};
enum { PROCESS_ENTRIES_MAX = 8192 };

static inline size_t process_read(const char *pid, const char *file, char *text, size_t bytes) {
        char path[300];
        (void) snprintf(path, sizeof path, "/proc/%s/%s", pid, file);
        FILE *f = fopen(path, "re");
        if (!f)
                return 0;
        size_t n = fread(text, 1, bytes - 1, f);
        (void) fclose(f);
        text[n] = '\0';
        return n;
}

/* By the program's name and its first argument; a rehearsal's trainer may be any program of ours.
 */
static inline enum process_kind process_kind_of(const char *command, size_t bytes) {
        const char *slash = strrchr(command, '/'), *name = slash ? slash + 1 : command;
        const char *argument = command + strlen(command) + 1;
        if (argument >= command + bytes)
                argument = "";
        if (strcmp(name, "cairn") == 0)
                return strcmp(argument, "run") == 0 ? PROCESS_RUNNER : PROCESS_OTHER;
        if (strcmp(name, "cairnd") == 0)
                return strncmp(argument, "--saver", 7) == 0            ? PROCESS_SAVER
                       : strncmp(argument, "--store-process", 15) == 0 ? PROCESS_STORE
                       : strncmp(argument, "--import", 8) == 0         ? PROCESS_OTHER
                                                                       : PROCESS_AGENT;
        if (strcmp(name, "cairn-train") == 0 || strcmp(name, "zoo") == 0 ||
            strcmp(name, "gpu_trainer") == 0)
                return PROCESS_TRAINER;
        return PROCESS_OTHER;
}

static inline bool process_entry_read(const char *pid, struct process_entry *ret) {
        char text[4096];
        if (process_read(pid, "stat", text, sizeof text) == 0)
                return false;
        const char *after_name = strrchr(text, ')'); /* the name may hold anything */
        char state;
        int parent;
        if (!after_name || sscanf(after_name + 1, " %c %d", &state, &parent) != 2)
                return false;
        *ret = (struct process_entry){.pid = (pid_t) strtol(pid, NULL, 10),
                                      .parent = parent,
                                      .zombie = state == 'Z' || state == 'X'};
        return true;
}

/* The living descendants of `root`, parents first, without itself. */
static inline size_t process_descendants(pid_t root, struct process_entry *ret, size_t max) {
        static struct process_entry all[PROCESS_ENTRIES_MAX];
        size_t all_count = 0, count = 0;
        DIR *proc = opendir("/proc");
        if (!proc)
                return 0;
        for (struct dirent *d; all_count < PROCESS_ENTRIES_MAX && (d = readdir(proc));)
                if (d->d_name[0] >= '1' && d->d_name[0] <= '9' &&
                    process_entry_read(d->d_name, &all[all_count]))
                        all_count++;
        (void) closedir(proc);
        for (size_t i = 0; i == 0 || i <= count; i++) {
                pid_t parent = i == 0 ? root : ret[i - 1].pid;
                for (size_t k = 0; k < all_count && count < max; k++)
                        if (all[k].parent == parent && !all[k].zombie)
                                ret[count++] = all[k];
        }
        for (size_t i = 0; i < count; i++) {
                char pid[16], text[4096];
                (void) snprintf(pid, sizeof pid, "%d", (int) ret[i].pid);
                size_t n = process_read(pid, "cmdline", text, sizeof text);
                ret[i].kind = n > 0 ? process_kind_of(text, n) : PROCESS_OTHER;
        }
        return count;
}

#endif
