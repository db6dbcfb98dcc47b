/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void set_number(const char *name, uint64_t value) {
        char text[32];
        (void) snprintf(text, sizeof text, "%llu", (unsigned long long) value);
        (void) setenv(name, text, 1);
}

/* What launchers set and trainers read: those of torchrun, and NODE_RANK. All of them, for a
 * launcher above us may have set its own. */
static void set_variables(uint32_t rank, uint32_t count,
                          const struct ranks_environment *environment) {
        set_number("RANK", environment->first_rank + rank);
        set_number("ROLE_RANK", environment->first_rank + rank);
        set_number("WORLD_SIZE", environment->world);
        set_number("ROLE_WORLD_SIZE", environment->world);
        set_number("LOCAL_RANK", rank);
        set_number("LOCAL_WORLD_SIZE", count);
        set_number("GROUP_RANK", environment->node_rank);
        set_number("NODE_RANK", environment->node_rank);
        set_number("GROUP_WORLD_SIZE", environment->nodes);
        set_number("MASTER_PORT", environment->master_port);
        (void) setenv("MASTER_ADDR", environment->master_address, 1);
        /* Says that a launcher already listens at MASTER_PORT; rank 0 has to. */
        (void) unsetenv("TORCHELASTIC_USE_AGENT_STORE");
        set_number("CAIRN_RESTART_COUNT", environment->restart);
        (void) setenv("CAIRN_ADDRESS", environment->address, 1);
}

static void child_exec(const struct ranks *r, uint32_t rank,
                       const struct ranks_environment *environment, char **command) {
        (void) setpgid(0, 0);
        /* Without `cairn run` nobody restarts agent or ranks: end in good order. Its agent asks for
         * the same, but may have died with it. */
        if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != r->launcher)
                _exit(status_exit_code(CAIRN_ERR_PEER));
        sigset_t none;
        (void) sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);
        set_variables(rank, r->count, environment);
        (void) setenv("CAIRN_RUN", environment->run, 1);
        (void) setenv("CAIRN_STORE", environment->store, 1);
        (void) setenv("CAIRN_SOCKET", environment->socket, 1);
        (void) execvp(command[0], command);
        int code = errno == ENOENT ? 127 : 126;
        fprintf(stderr, "cairn run: cannot start '%s': %s\n", command[0], strerror(errno));
        _exit(code);
}

int ranks_spawn(struct ranks *r, uint32_t count, const struct ranks_environment *environment,
                char **command, struct cairn_error *reterr) {
        *r = (struct ranks){.count = count, .first = environment->first_rank, .launcher = getpid()};
        for (uint32_t i = 0; i < count; i++) {
                pid_t pid = fork();
                if (pid < 0) {
                        int error_number = errno;
                        ranks_signal(r, SIGKILL);
                        return error_set_errno(reterr, error_number, "start rank", command[0]);
                }
                if (pid == 0)
                        child_exec(r, i, environment, command);
                (void) setpgid(pid, pid); /* both sides do it, whoever comes first */
                r->all[i] = (struct rank_process){.pid = pid, .running = true};
        }
        return 0;
}

int ranks_reap(struct ranks *r, pid_t pid, int wait_status) {
        for (uint32_t i = 0; i < r->count; i++)
                if (r->all[i].pid == pid && r->all[i].running) {
                        r->all[i].running = false;
                        r->all[i].wait_status = wait_status;
                        r->all[i].order = ++r->ended;
                        return (int) i;
                }
        return -1;
}

uint32_t ranks_running(const struct ranks *r) {
        uint32_t running = 0;
        for (uint32_t i = 0; i < r->count; i++)
                running += r->all[i].running;
        return running;
}

void ranks_signal(struct ranks *r, int signal_number) {
        for (uint32_t i = 0; i < r->count; i++)
                if (r->all[i].running) {
                        r->all[i].sent = signal_number;
                        (void) kill(-r->all[i].pid, signal_number);
                }
}

void ranks_clear(const struct ranks *r) {
        for (uint32_t i = 0; i < r->count; i++)
                if (r->all[i].pid > 0 && !r->all[i].running)
                        (void) kill(-r->all[i].pid, SIGKILL);
}

/* How much its end tells of what went wrong. */
static int weight(const struct rank_process *p) {
        int code = ranks_exit_status(p->wait_status);
        if (p->sent && (code == 128 + p->sent || code == status_exit_code(CAIRN_ERR_PREEMPTED)))
                return 0;
        return code == status_exit_code(CAIRN_ERR_PEER) ||
                               code == status_exit_code(CAIRN_ERR_TIMEOUT)
                       ? 1
                       : 2;
}

uint32_t ranks_first_failed(const struct ranks *r) {
        const struct rank_process *first = NULL;
        for (uint32_t i = 0; i < r->count; i++) {
                const struct rank_process *p = &r->all[i];
                if (p->running || p->wait_status == 0)
                        continue;
                int more = first ? weight(p) - weight(first) : 1;
                if (more > 0 || (more == 0 && p->order < first->order))
                        first = p;
        }
        return first ? (uint32_t) (first - r->all) : 0;
}

int ranks_exit_status(int wait_status) {
        if (WIFEXITED(wait_status))
                return WEXITSTATUS(wait_status);
        return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : 70;
}

const char *ranks_describe(uint32_t rank, int wait_status, char *text, size_t bytes) {
        if (WIFSIGNALED(wait_status)) {
                const char *name = sigabbrev_np(WTERMSIG(wait_status));
                (void) snprintf(text, bytes, "rank %u was killed by SIG%s", rank,
                                name ? name : "?");
        } else
                (void) snprintf(text, bytes, "rank %u ended with status %d", rank,
                                ranks_exit_status(wait_status));
        return text;
}
