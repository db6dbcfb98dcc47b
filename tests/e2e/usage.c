/* SPDX-License-Identifier: Apache-2.0
 *
 * usage ROOT - what `cairn run`, whose process id ROOT is, and Cairn's processes below it hold, a
 * line each:
 *
 *     KIND PID RESIDENT_KIB DESCRIPTORS THREADS MEMFD_KIB
 *
 * RESIDENT_KIB is what smaps_rollup counts (statm lags behind), MEMFD_KIB the pages of the memory
 * files that the process has open, mapped or not: staging that is kept alive shows there. Each
 * number is the smallest of a few looks, for what is being opened this moment is no leak. Exit 1:
 * one of them ended meanwhile.
 */
#include "base/cleanup.h"
#include "tests/e2e/processes.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TREE_MAX = 64, LOOKS = 8, LOOK_NS = 5000000, NUMBERS = 4 };

struct held {
        long numbers[NUMBERS];
};

static long field_of(const char *pid, const char *file, const char *key) {
        char text[4096];
        if (process_read(pid, file, text, sizeof text) == 0)
                return -1;
        const char *found = strstr(text, key);
        return found ? strtol(found + strlen(key), NULL, 10) : -1;
}

static bool look_at_files(const char *pid, struct held *h) {
        char path[64];
        (void) snprintf(path, sizeof path, "/proc/%s/fd", pid);
        DIR *folder = opendir(path);
        if (!folder)
                return false;
        h->numbers[1] = h->numbers[3] = 0;
        for (const struct dirent *d; (d = readdir(folder));) {
                char target[256];
                struct stat st;
                if (d->d_name[0] == '.')
                        continue;
                h->numbers[1]++;
                ssize_t n = readlinkat(dirfd(folder), d->d_name, target, sizeof target - 1);
                if (n > 0 && strncmp(target, "/memfd:", 7) == 0 &&
                    fstatat(dirfd(folder), d->d_name, &st, 0) == 0)
                        h->numbers[3] += st.st_blocks / 2;
        }
        (void) closedir(folder);
        return true;
}

/* The program's own: the kernel's workers for io_uring come and go as it likes (one stays). */
static long threads_of(const char *pid) {
        char path[64];
        long count = 0;
        (void) snprintf(path, sizeof path, "/proc/%s/task", pid);
        DIR *folder = opendir(path);
        if (!folder)
                return -1;
        for (const struct dirent *d; (d = readdir(folder));) {
                char file[64], name[64];
                (void) snprintf(file, sizeof file, "task/%.20s/comm", d->d_name);
                if (d->d_name[0] != '.' && process_read(pid, file, name, sizeof name) > 0)
                        count += strncmp(name, "iou-", 4) != 0;
        }
        (void) closedir(folder);
        return count;
}

static bool look(const char *pid, struct held *ret) {
        struct held h;
        h.numbers[0] = field_of(pid, "smaps_rollup", "Rss:");
        h.numbers[2] = threads_of(pid);
        if (h.numbers[0] < 0 || h.numbers[2] <= 0 || !look_at_files(pid, &h))
                return false;
        for (size_t i = 0; i < NUMBERS; i++)
                if (h.numbers[i] < ret->numbers[i])
                        ret->numbers[i] = h.numbers[i];
        return true;
}

int main(int argc, char **argv) {
        struct process_entry tree[TREE_MAX];
        struct held held[TREE_MAX];
        if (argc != 2)
                return 64;
        pid_t root = (pid_t) strtol(argv[1], NULL, 10);
        size_t count = process_descendants(root, tree, TREE_MAX - 1);
        tree[count++] = (struct process_entry){.pid = root, .kind = PROCESS_RUNNER};
        memset(held, 0x7f, sizeof held);
        for (int i = 0; i < LOOKS; i++) {
                for (size_t k = 0; k < count; k++) {
                        char pid[16];
                        (void) snprintf(pid, sizeof pid, "%d", (int) tree[k].pid);
                        if (tree[k].kind != PROCESS_OTHER && !look(pid, &held[k]))
                                return 1;
                }
                (void) nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        }
        for (size_t k = 0; k < count; k++)
                if (tree[k].kind != PROCESS_OTHER)
                        printf("%s %d %ld %ld %ld %ld\n", process_kind_names[tree[k].kind],
                               (int) tree[k].pid, held[k].numbers[0], held[k].numbers[1],
                               held[k].numbers[2], held[k].numbers[3]);
        return 0;
}
