/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/process_tree.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESSES_MAX = 65536, TREE_MAX = 1024 };

#define END_TRIES 500
#define END_POLL_NS 10000000

struct process {
        pid_t pid, parent;
        bool ended; /* not reaped yet */
};

static bool read_parent(const char *pid, struct process *ret) {
        char path[64], text[512];
        (void) snprintf(path, sizeof path, "/proc/%s/stat", pid);
        FILE *f = fopen(path, "re");
        if (!f)
                return false;
        size_t n = fread(text, 1, sizeof text - 1, f);
        (void) fclose(f);
        text[n] = '\0';
        char *after_name = strrchr(text, ')'); /* the name may hold anything */
        char state;
        int parent;
        if (!after_name || sscanf(after_name + 1, " %c %d", &state, &parent) != 2)
                return false;
        *ret = (struct process){.pid = (pid_t) strtol(pid, NULL, 10),
                                .parent = parent,
                                .ended = state == 'Z' || state == 'X'};
        return true;
}

static size_t read_all(struct process *all, size_t max) {
        size_t count = 0;
        DIR *proc = opendir("/proc");
        if (!proc)
                return 0;
        for (struct dirent *d; count < max && (d = readdir(proc));)
                if (d->d_name[0] >= '1' && d->d_name[0] <= '9' &&
                    read_parent(d->d_name, &all[count]))
                        count++;
        (void) closedir(proc);
        return count;
}

/* The descendants of `root` in `tree`, parents before children; the root itself is tree[0]. */
static size_t collect(pid_t root, pid_t *tree, size_t max) {
        struct process *all = calloc(PROCESSES_MAX, sizeof *all);
        if (!all)
                return 0;
        size_t all_count = read_all(all, PROCESSES_MAX), count = 1;
        tree[0] = root;
        for (size_t i = 0; i < count; i++)
                for (size_t k = 0; k < all_count && count < max; k++)
                        if (all[k].parent == tree[i])
                                tree[count++] = all[k].pid;
        free(all);
        return count;
}

/* Until a killed process has ended its sockets still answer and its locks are held. */
static void wait_for_end(const pid_t *tree, size_t count) {
        const struct timespec pause = {.tv_nsec = END_POLL_NS};
        for (int tries = 0; tries < END_TRIES; tries++) {
                bool any = false;
                for (size_t i = 0; i < count && !any; i++) {
                        char pid[16];
                        struct process p;
                        (void) snprintf(pid, sizeof pid, "%d", (int) tree[i]);
                        any = read_parent(pid, &p) && !p.ended;
                }
                if (!any)
                        return;
                (void) nanosleep(&pause, NULL);
        }
}

size_t process_tree_kill(pid_t root) {
        pid_t tree[TREE_MAX];
        (void) kill(root, SIGSTOP);
        size_t count = collect(root, tree, TREE_MAX);
        for (size_t i = 0; i < count; i++)
                (void) kill(tree[i], SIGKILL);
        wait_for_end(tree, count);
        return count;
}

size_t process_tree_kill_descendants(pid_t root) {
        pid_t tree[TREE_MAX];
        size_t count = collect(root, tree, TREE_MAX);
        for (size_t i = 1; i < count; i++)
                (void) kill(tree[i], SIGKILL);
        return count > 0 ? count - 1 : 0;
}

static bool was_started_with(pid_t pid, const char *variable) {
        char path[64], *line = NULL;
        size_t capacity = 0;
        bool found = false;
        (void) snprintf(path, sizeof path, "/proc/%d/environ", (int) pid);
        FILE *f = fopen(path, "re");
        while (f && !found && getdelim(&line, &capacity, '\0', f) > 0)
                found = strcmp(line, variable) == 0;
        if (f)
                (void) fclose(f);
        free(line);
        return found;
}

pid_t process_tree_find(pid_t root, const char *variable) {
        pid_t tree[TREE_MAX];
        size_t count = collect(root, tree, TREE_MAX);
        for (size_t i = 1; i < count; i++)
                if (was_started_with(tree[i], variable))
                        return tree[i];
        return 0;
}
