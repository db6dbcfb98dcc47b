/* SPDX-License-Identifier: Apache-2.0
 *
 * deny_ring COMMAND... - runs it where io_uring_setup ends with EPERM, as under the seccomp profile
 * of a container; the command's children, too. Exit 77: no filter can be installed here.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
        struct sock_filter rules[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
        if (argc < 2)
                return 64;
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
                perror("seccomp");
                return 77;
        }
        (void) execvp(argv[1], argv + 1);
        perror(argv[1]);
        return 127;
}
