/* SPDX-License-Identifier: Apache-2.0
 *
 * phase_kill - SIGKILL to an agent of one rank in the middle of what becomes of a snapshot:
 *
 *     phase_kill AGENT RUN_FOLDER copy|write|commit DELAY_US SEED
 *
 * It maps the session's control page through the agent's descriptors, waits for the phase, lets
 * up to DELAY_US of it pass at random, and kills if the phase still lasts, else waits for the next
 * one. Prints the step of that snapshot and the time of the kill in ms since the epoch.
 *
 *     copy     the word is COPYING
 *     write    the copy is valid, the saver has not written all of it
 *     commit   the manifest has its name, the folder has not
 *
 * Exit 1: no such phase within WAIT_NS; 2: the agent ended by itself.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "format/cut.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAIT_NS (60 * NSEC_PER_SEC)
#define LOOK_NS (NSEC_PER_MSEC / 20)
#define PAGE_NAME "/memfd:cairn-page"

enum phase { PHASE_COPY, PHASE_WRITE, PHASE_COMMIT, PHASE_COUNT };
static const char *const phase_names[PHASE_COUNT] = {"copy", "write", "commit"};

/* The page of the agent's newest session. */
static const struct control_page *map_page(const char *agent) {
        char folder[64], path[400], target[64];
        const struct control_page *newest = NULL;
        (void) snprintf(folder, sizeof folder, "/proc/%s/fd", agent);
        DIR *fds = opendir(folder);
        for (struct dirent *e; fds && (e = readdir(fds));) {
                (void) snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
                ssize_t n = readlink(path, target, sizeof target - 1);
                target[n > 0 ? n : 0] = '\0';
                if (strncmp(target, PAGE_NAME, sizeof PAGE_NAME - 1) != 0)
                        continue;
                _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
                void *map = fd >= 0 ? mmap(NULL, CONTROL_PAGE_BYTES, PROT_READ, MAP_SHARED, fd, 0)
                                    : MAP_FAILED;
                if (map == MAP_FAILED)
                        continue;
                const struct control_page *page = map;
                if (control_page_check(page, CONTROL_PAGE_BYTES, NULL) == 0 &&
                    (!newest || page->session_id > newest->session_id))
                        newest = page;
        }
        if (fds)
                (void) closedir(fds);
        return newest;
}

/* An attempt whose manifest has its name. */
static bool is_committing(const char *run_folder) {
        DIR *run = opendir(run_folder);
        bool found = false;
        for (struct dirent *e; run && !found && (e = readdir(run));) {
                char path[400];
                if (strncmp(e->d_name, ".pending-", 9) != 0)
                        continue;
                (void) snprintf(path, sizeof path, "%s/rank-00000.manifest", e->d_name);
                found = faccessat(dirfd(run), path, F_OK, 0) == 0;
        }
        if (run)
                (void) closedir(run);
        return found;
}

static bool is_now(enum phase phase, const struct control_page *page, const char *run_folder) {
        enum cut_phase word = cut_read(page).phase;
        unsigned staging = (unsigned) atomic_load(&page->ledger[0].state_attempt) & 0xff;
        /* The next cut's copy may have begun: then the ledger does not tell this one's step. */
        if (phase == PHASE_COMMIT)
                return staging == STAGING_FREE && atomic_load(&page->ledger[0].step) > 0 &&
                       is_committing(run_folder);
        if (phase == PHASE_COPY)
                return word == CUT_COPYING;
        return word != CUT_COPYING && (staging == STAGING_HELD || staging == STAGING_WRITING);
}

static bool has_ended(int pidfd) {
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        return poll(&p, 1, 0) != 0;
}

int main(int argc, char **argv) {
        const struct clock_ops *clock = &clock_system;
        unsigned phase = 0;
        while (argc == 6 && phase < PHASE_COUNT && strcmp(argv[3], phase_names[phase]) != 0)
                phase++;
        if (argc != 6 || phase == PHASE_COUNT)
                return 64;
        _cleanup_close_ int pidfd =
                (int) syscall(SYS_pidfd_open, (pid_t) strtol(argv[1], NULL, 10), 0);
        const struct control_page *page = map_page(argv[1]);
        uint64_t delay_us = strtoull(argv[4], NULL, 10), until_ns = clock_now(clock) + WAIT_NS;
        srandom((unsigned) strtoul(argv[5], NULL, 10));
        for (; pidfd >= 0 && page && clock_now(clock) < until_ns && !has_ended(pidfd);
             clock->sleep_ns(clock->context, LOOK_NS)) {
                if (!is_now(phase, page, argv[2]))
                        continue;
                int64_t step = phase == PHASE_COPY ? atomic_load(&page->last_step)
                                                   : atomic_load(&page->ledger[0].step);
                uint64_t pause_us = (uint64_t) random() % (delay_us + 1);
                clock->sleep_ns(clock->context, pause_us * (NSEC_PER_MSEC / 1000));
                if (!is_now(phase, page, argv[2]) ||
                    syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0) < 0)
                        continue;
                struct timespec now;
                (void) clock_gettime(CLOCK_REALTIME, &now);
                printf("%" PRId64 " %lld\n", step,
                       (long long) now.tv_sec * 1000 + now.tv_nsec / 1000000);
                return 0;
        }
        return has_ended(pidfd) ? 2 : 1;
}
