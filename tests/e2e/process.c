/* SPDX-License-Identifier: Apache-2.0
 *
 * process ROOT KIND - prints the process ids of a kind (runner, agent, saver, store, trainer, or
 * all) below process ROOT. `process ROOT kill-tree` kills ROOT and all of them at once, as a power
 * cut would.
 */
#include "tests/e2e/processes.h"
#include <signal.h>

static struct process_entry tree[1024];

/* All stand still before the first is killed: whoever sees another one end could do something about
 * it, start one anew say. */
static int kill_tree(pid_t root) {
        size_t count = 0, before;
        (void) kill(root, SIGSTOP);
        do {
                before = count;
                count = process_descendants(root, tree, 1024);
                for (size_t i = 0; i < count; i++)
                        (void) kill(tree[i].pid, SIGSTOP);
        } while (count != before);
        (void) kill(root, SIGKILL);
        for (size_t i = 0; i < count; i++)
                (void) kill(tree[i].pid, SIGKILL);
        return 0;
}

int main(int argc, char **argv) {
        if (argc != 3)
                return 64;
        pid_t root = (pid_t) strtol(argv[1], NULL, 10);
        if (root <= 1)
                return 64;
        if (strcmp(argv[2], "kill-tree") == 0)
                return kill_tree(root);
        size_t count = process_descendants(root, tree, 1024);
        for (size_t i = 0; i < count; i++)
                if (strcmp(argv[2], "all") == 0 ||
                    strcmp(process_kind_names[tree[i].kind], argv[2]) == 0)
                        printf("%d\n", (int) tree[i].pid);
        return 0;
}
