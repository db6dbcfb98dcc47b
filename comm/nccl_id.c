/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl_id.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "comm/locate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

/* The parent's ends are closed in the child by exec. */
static int spawn(const char *path, int input, int output, pid_t *ret, struct cairn_error *reterr) {
        char *arguments[] = {(char *) "cairn-nccl-id", NULL};
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t none;

        (void) sigemptyset(&none);
        (void) posix_spawn_file_actions_init(&actions);
        (void) posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
        (void) posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
        (void) posix_spawnattr_init(&attributes);
        (void) posix_spawnattr_setsigmask(&attributes, &none);
        (void) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        int r = posix_spawn(ret, path, &actions, &attributes, arguments, environ);
        (void) posix_spawn_file_actions_destroy(&actions);
        (void) posix_spawnattr_destroy(&attributes);
        return r == 0 ? 0 : error_set_errno(reterr, r, "start", path);
}

int nccl_id_start(struct nccl_id_child *child, struct cairn_error *reterr) {
        char path[PATH_MAX];
        int to[2], from[2];

        TRY(locate("CAIRN_NCCL_ID", "cairn-nccl-id", path, sizeof path, reterr));
        if (pipe2(to, O_CLOEXEC) < 0)
                return error_set_errno(reterr, errno, "make pipe", path);
        _cleanup_close_ int to_read = to[0], to_write = to[1];
        if (pipe2(from, O_CLOEXEC) < 0)
                return error_set_errno(reterr, errno, "make pipe", path);
        _cleanup_close_ int from_read = from[0], from_write = from[1];
        TRY(spawn(path, to_read, from_write, &child->pid, reterr));
        child->input = TAKE_FD(to_write);
        child->output = TAKE_FD(from_read);
        child->got = 0;
        return 0;
}

int nccl_id_read(struct nccl_id_child *child, struct nccl_id *ret, int milliseconds,
                 struct cairn_error *reterr) {
        struct pollfd p = {.fd = child->output, .events = POLLIN};

        if (poll(&p, 1, milliseconds) <= 0)
                return 0;
        ssize_t n =
                read(child->output, ret->internal + child->got, sizeof ret->internal - child->got);
        if (n < 0 && errno == EINTR)
                return 0;
        if (n <= 0)
                return error_set(reterr, CAIRN_ERR_PEER, "make unique id", "cairn-nccl-id",
                                 "it ended without one; it says why on standard error");
        child->got += (size_t) n;
        return child->got == sizeof ret->internal;
}

void nccl_id_end(struct nccl_id_child *child) {
        if (child->pid > 0) {
                (void) kill(child->pid, SIGKILL);
                /* Not for ever: a process can be stuck in the kernel. */
                for (int i = 0; i < 1000 && waitpid(child->pid, NULL, WNOHANG) == 0; i++)
                        clock_system.sleep_ns(NULL, NSEC_PER_MSEC);
        }
        cleanup_close(&child->input);
        cleanup_close(&child->output);
        *child = (struct nccl_id_child) NCCL_ID_CHILD_INIT;
}
