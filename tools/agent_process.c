/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/agent_process.h"

#include "base/cleanup.h"
#include "format/wire.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYSTEM_SOCKET "/run/cairn/cairnd.sock"

static bool find_beside(const char *name, char *path, size_t bytes) {
        ssize_t n = readlink("/proc/self/exe", path, bytes - 1);
        if (n <= 0)
                return false;
        path[n] = '\0';
        char *slash = strrchr(path, '/');
        if (!slash || (size_t) snprintf(slash + 1, bytes - (size_t) (slash + 1 - path), "%s",
                                        name) >= bytes - (size_t) (slash + 1 - path))
                return false;
        return access(path, X_OK) == 0;
}

int agent_process_find(const char *name, char *path, size_t bytes, struct cairn_error *reterr) {
        if (find_beside(name, path, bytes))
                return 0;
        const char *search = getenv("PATH");
        _cleanup_free_ char *list = strdup(search ? search : "");
        if (!list)
                return error_set_errno(reterr, ENOMEM, "find program", name);
        char *rest = list;
        for (char *folder = NULL; (folder = strsep(&rest, ":"));)
                if (*folder && (size_t) snprintf(path, bytes, "%s/%s", folder, name) < bytes &&
                    access(path, X_OK) == 0)
                        return 0;
        return error_set(reterr, CAIRN_ERR_UNREACHABLE, "find program", name,
                         "it lies neither beside `cairn` nor in $PATH; run `make`, or install "
                         "Cairn completely");
}

int agent_process_start(const char *store, const char *socket, int log_fd, pid_t *ret_pid,
                        struct cairn_error *reterr) {
        char program[PATH_MAX], runner[16];
        (void) snprintf(runner, sizeof runner, "%d", (int) getpid());
        TRY(agent_process_find("cairnd", program, sizeof program, reterr));
        pid_t pid = fork();
        if (pid < 0)
                return error_set_errno(reterr, errno, "start agent", program);
        if (pid > 0) {
                *ret_pid = pid;
                return 0;
        }
        /* Ctrl-C is for `cairn run`, which then asks the agent; signals blocked for a signalfd must
         * not stay so. */
        (void) setpgid(0, 0);
        sigset_t none;
        (void) sigemptyset(&none);
        (void) sigprocmask(SIG_SETMASK, &none, NULL);
        if (log_fd >= 0)
                (void) dup2(log_fd, STDERR_FILENO);
        (void) setenv("CAIRN_LOG", "warning", 0);
        (void) execl(program, "cairnd", "--embedded", runner, "--store", store, "--socket", socket,
                     (char *) NULL);
        _exit(status_exit_code(CAIRN_ERR_UNREACHABLE));
}

const char *agent_process_system(void) {
        const char *named = getenv("CAIRN_SOCKET");
        if (named && *named)
                return named;
        return access(SYSTEM_SOCKET, F_OK) == 0 ? SYSTEM_SOCKET : NULL;
}

int agent_process_socket(const char *run, char *path, size_t bytes, bool *ret_system,
                         struct cairn_error *reterr) {
        const char *named = getenv("CAIRN_SOCKET");
        TRY(wire_socket_path(run, path, bytes, reterr));
        *ret_system = (named && *named) || strcmp(path, SYSTEM_SOCKET) == 0;
        return 0;
}
