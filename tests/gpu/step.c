/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/step.h"

#include "base/clock.h"
#include "base/limits.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_SKIPPED = 77, ARGUMENTS_MAX = 8 };
#define WAIT_NS (60 * NSEC_PER_SEC)

/* ---- results ---- */

void step_figure(const char *name, double value, const char *unit) {
        printf("figure %s %.6g %s\n", name, value, unit);
        (void) fflush(stdout);
}

static void say(const char *format, va_list arguments) {
        (void) vprintf(format, arguments);
        (void) putchar('\n');
        (void) fflush(stdout);
}

void step_fail(const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        say(format, arguments);
        va_end(arguments);
        _exit(EXIT_FAILED);
}

void step_skip(const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        say(format, arguments);
        va_end(arguments);
        _exit(EXIT_SKIPPED);
}

void step_fail_error(const struct cairn_error *e) {
        char text[1024];
        step_fail("%s", error_format(e, text, sizeof text));
}

/* ---- what is asked for ---- */

bool step_brief(void) {
        const char *brief = getenv("CAIRN_GPU_BRIEF");
        return brief && *brief;
}

uint64_t step_choose(uint64_t whole, uint64_t brief) {
        return step_brief() ? brief : whole;
}

static uint64_t host_available(void) {
        FILE *f = fopen("/proc/meminfo", "re");
        char line[256];
        uint64_t bytes = 0;
        while (f && fgets(line, sizeof line, f))
                if (strncmp(line, "MemAvailable:", 13) == 0)
                        bytes = strtoull(line + 13, NULL, 10) * KiB;
        if (f)
                (void) fclose(f);
        return bytes;
}

uint64_t step_fit(struct step *s, uint64_t bytes) {
        size_t available, total;
        uint64_t host = host_available();
        step_enter(s);
        if (s->cuda->MemGetInfo(&available, &total) != CUDA_OK)
                available = 0;
        while (bytes > MiB && (bytes > host / 3 || bytes > available / 3))
                bytes /= 2;
        return bytes;
}

uint64_t step_deadline(void) {
        return clock_now(&clock_system) + WAIT_NS;
}

double step_seconds(void) {
        return (double) clock_now(&clock_system) * 1e-9;
}

static int compare(const void *a, const void *b) {
        double x = *(const double *) a, y = *(const double *) b;
        return x < y ? -1 : x > y;
}

double step_median(double *values, size_t count) {
        qsort(values, count, sizeof *values, compare);
        return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* ---- the GPU ---- */

void step_open(struct step *s) {
        *s = (struct step){.error = CAIRN_ERROR_INIT};
        if (cuda_driver_load(&s->cuda, &s->error) < 0 ||
            device_cuda.open(0, &s->device, &s->error) < 0)
                step_fail_error(&s->error);
}

int step_passed(struct step *s) {
        s->device->ops->close(s->device);
        return 0;
}

void step_enter(struct step *s) {
        struct cuda_context *context, *now = NULL;
        int device;
        enum cuda_result result = s->cuda->CtxGetCurrent(&now);
        if (result == CUDA_OK && now)
                return;
        if (result != CUDA_OK || s->cuda->DeviceGet(&device, 0) != CUDA_OK ||
            s->cuda->DevicePrimaryCtxRetain(&context, device) != CUDA_OK ||
            s->cuda->CtxSetCurrent(context) != CUDA_OK)
                step_fail("the GPU's context cannot be made current");
}

struct cuda_stream *step_stream(struct step *s) {
        struct cuda_stream *stream;
        step_enter(s);
        if (cuda_error(s->cuda,
                       s->cuda->StreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0),
                       "make stream", "GPU", &s->error) < 0)
                step_fail_error(&s->error);
        return stream;
}

void step_fill(struct step *s, void *queue, void *address, uint32_t word, uint64_t bytes) {
        step_enter(s);
        if (cuda_error(
                    s->cuda,
                    s->cuda->MemsetD32Async((uintptr_t) address, word, bytes / sizeof word, queue),
                    "fill memory", "GPU", &s->error) < 0)
                step_fail_error(&s->error);
}

/* ---- host memory ---- */

void *step_memfd(uint64_t bytes, int *ret_fd) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        int fd = -1;
        if (wire_memfd_create("cairn-gpu-step", bytes, &fd, &e) < 0)
                step_fail_error(&e);
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (p == MAP_FAILED)
                step_fail("map %llu bytes: %s", (unsigned long long) bytes, strerror(errno));
        if (ret_fd)
                *ret_fd = fd;
        else
                (void) close(fd);
        return p;
}

void step_check_words(const void *words, uint64_t bytes, uint32_t expected, const char *what) {
        const uint32_t *word = words;
        for (uint64_t i = 0; i < bytes / sizeof *word; i++)
                if (word[i] != expected)
                        step_fail("%s: word %" PRIu64 " is %08" PRIx32 ", not %08" PRIx32, what, i,
                                  word[i], expected);
}

/* ---- another process ---- */

pid_t step_spawn(const char *const *arguments, int *ret_socket) {
        const char *argv[ARGUMENTS_MAX] = {"/proc/self/exe"};
        int ends[2];
        for (size_t i = 0; i + 2 < ARGUMENTS_MAX && arguments[i]; i++)
                argv[i + 1] = arguments[i];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
                step_fail("socketpair: %s", strerror(errno));
        pid_t self = getpid(), pid = fork();
        if (pid < 0)
                step_fail("fork: %s", strerror(errno));
        if (pid == 0) {
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (getppid() != self)
                        _exit(EXIT_FAILED);
                if (ends[1] == STEP_SOCKET_FD)
                        (void) fcntl(STEP_SOCKET_FD, F_SETFD, 0);
                else
                        (void) dup2(ends[1], STEP_SOCKET_FD);
                (void) execv(argv[0], (char *const *) (uintptr_t) argv);
                _exit(EXIT_FAILED);
        }
        (void) close(ends[1]);
        *ret_socket = ends[0];
        return pid;
}

void step_send(int socket, const void *bytes, size_t count, int fd) {
        char control[CMSG_SPACE(sizeof fd)] = {0};
        struct iovec iov = {(void *) (uintptr_t) bytes, count};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        if (fd >= 0) {
                message.msg_control = control;
                message.msg_controllen = sizeof control;
                struct cmsghdr *c = CMSG_FIRSTHDR(&message);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof fd);
                memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        if (sendmsg(socket, &message, MSG_NOSIGNAL) != (ssize_t) count)
                step_fail("the other process has gone: %s", strerror(errno));
}

void step_receive(int socket, void *bytes, size_t count, int *ret_fd) {
        int fd = -1;
        char control[CMSG_SPACE(sizeof fd)];
        struct iovec iov = {bytes, count};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        struct pollfd p = {.fd = socket, .events = POLLIN};
        if (poll(&p, 1, (int) (WAIT_NS / NSEC_PER_MSEC)) <= 0)
                step_fail("the other process says nothing");
        if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != (ssize_t) count)
                step_fail("the other process has ended too early");
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        if (c)
                memcpy(&fd, CMSG_DATA(c), sizeof fd);
        if (ret_fd)
                *ret_fd = fd;
        if (ret_fd && fd < 0)
                step_fail("no descriptor came with the message");
}

int step_kill(pid_t pid) {
        int status = 0;
        (void) kill(pid, SIGKILL);
        if (waitpid(pid, &status, 0) != pid)
                step_fail("wait for a process: %s", strerror(errno));
        return status;
}

void step_join(pid_t pid) {
        uint64_t deadline_ns = step_deadline();
        int status = 0;
        while (waitpid(pid, &status, WNOHANG) == 0) {
                if (clock_now(&clock_system) >= deadline_ns)
                        step_fail("the other process does not end");
                clock_system.sleep_ns(clock_system.context, NSEC_PER_MSEC);
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                step_fail("the other process failed");
}
