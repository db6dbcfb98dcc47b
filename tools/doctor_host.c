/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine: kernel, io_uring, memory, limits, agent.
 */
#include "tools/doctor.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "format/wire.h"
#include "tools/agent_call.h"
#include "tools/agent_process.h"
#include "tools/store_view.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>

enum { ANSWER_BYTES = 2048, DEPTH_MAX = 32, REAP_TURNS = 1000 };
#define RING_PROBE_NS (30 * NSEC_PER_SEC)
#define OPEN_FILES_WANTED 1024
#define SHM_BYTES_WANTED (1 * GiB)
#define MEMORY_BYTES_WANTED (1 * GiB)

static bool read_text(const char *path, char *text, size_t bytes) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, text, bytes - 1);
        if (n < 0)
                return false;
        while (n > 0 && text[n - 1] == '\n')
                n--;
        text[n] = '\0';
        return true;
}

static void probe_kernel(struct doctor *d) {
        struct utsname u;
        unsigned major = 0;
        if (uname(&u) < 0)
                return;
        major = (unsigned) strtoul(u.release, NULL, 10);
        doctor_say(d, major >= 6 ? VERDICT_GOOD : VERDICT_WEAK, "kernel",
                   "Linux 6.0 or newer is what Cairn is tested with", "%s %s", u.sysname,
                   u.release);
}

/* ---- what is asked of a process of its own ---- */

/* Up to its end; a pipe of which somebody else holds the other end is left at the deadline. */
static int read_until(int fd, uint64_t deadline_ns, char *answer, size_t bytes, size_t *used) {
        for (;;) {
                struct pollfd p = {.fd = fd, .events = POLLIN};
                char dropped[256];
                uint64_t now_ns = clock_now(&clock_system);
                if (now_ns >= deadline_ns)
                        return CAIRN_ERR_TIMEOUT;
                if (poll(&p, 1, (int) ((deadline_ns - now_ns) / NSEC_PER_MSEC) + 1) <= 0)
                        continue;
                bool full = *used + 1 >= bytes;
                ssize_t n = full ? read(fd, dropped, sizeof dropped)
                                 : read(fd, answer + *used, bytes - 1 - *used);
                if (n == 0 || (n < 0 && errno != EINTR))
                        return 0;
                if (n > 0 && !full)
                        *used += (size_t) n;
        }
}

/* One that a driver holds in the kernel does not die: it is left to init. */
static void end_child(pid_t pid, bool late) {
        if (!late) {
                (void) waitpid(pid, NULL, 0);
                return;
        }
        (void) kill(pid, SIGKILL);
        for (int turn = 0; turn < REAP_TURNS && waitpid(pid, NULL, WNOHANG) == 0; turn++)
                clock_system.sleep_ns(clock_system.context, NSEC_PER_MSEC);
}

int doctor_ask(const char *program, const char *flag, uint64_t limit_ns, char *answer,
               size_t bytes) {
        char path[PATH_MAX];
        uint64_t deadline_ns = clock_now(&clock_system) + limit_ns;
        int ends[2];
        size_t used = 0;
        answer[0] = '\0';
        if (agent_process_find(program, path, sizeof path, NULL) < 0 || pipe2(ends, O_CLOEXEC) < 0)
                return 0;
        pid_t pid = fork();
        if (pid == 0) {
                (void) dup2(ends[1], STDOUT_FILENO);
                (void) execl(path, program, flag, (char *) NULL);
                _exit(status_exit_code(CAIRN_ERR_UNREACHABLE));
        }
        (void) close(ends[1]);
        int r = pid < 0 ? 0 : read_until(ends[0], deadline_ns, answer, bytes, &used);
        (void) close(ends[0]);
        answer[used] = '\0';
        if (pid > 0)
                end_child(pid, r < 0);
        return r;
}

/* ---- io_uring ---- */

static const char *ring_remedy(const char *warning) {
        char disabled[16] = "";
        (void) read_text("/proc/sys/kernel/io_uring_disabled", disabled, sizeof disabled);
        if (strcmp(disabled, "2") == 0)
                return "sysctl kernel.io_uring_disabled=0";
        if (strcmp(disabled, "1") == 0)
                return "sysctl kernel.io_uring_disabled=0, or join the group "
                       "kernel.io_uring_group";
        if (strstr(warning, strerror(EPERM)))
                return "the container's seccomp profile forbids it: allow io_uring_setup, "
                       "io_uring_enter and io_uring_register (docker run --security-opt "
                       "seccomp=...)";
        if (strstr(warning, strerror(ENOMEM)))
                return "raise the limit on locked memory (ulimit -l)";
        return "threads do the same more slowly";
}

void doctor_report_ring(struct doctor *d, const char *json) {
        json_t *answer = json_loads(json, 0, NULL);
        const char *backend = json_string_value(json_object_get(answer, "backend")),
                   *warning = json_string_value(json_object_get(answer, "warning"));
        json_int_t registered = json_integer_value(json_object_get(answer, "registered_bytes"));
        char bytes[32];
        if (!backend)
                doctor_say(d, VERDICT_BAD, "io_uring", "install cairn and cairnd of one version",
                           "`cairnd --probe` did not answer");
        else if (strcmp(backend, "io_uring") != 0)
                doctor_say(d, VERDICT_WEAK, "io_uring", ring_remedy(warning ? warning : ""),
                           "no ring can be set up: %s", warning ? warning : "");
        else
                doctor_say(d, VERDICT_GOOD, "io_uring", NULL, "a ring was set up");
        struct rlimit limit = {0};
        (void) getrlimit(RLIMIT_MEMLOCK, &limit);
        if (backend && registered > 0)
                doctor_say(d, VERDICT_GOOD, "locked memory", NULL,
                           "a buffer of %s was registered; the limit is %s",
                           human_bytes((uint64_t) registered, (char[32]){0}),
                           limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                                           : human_bytes(limit.rlim_cur, bytes));
        else if (backend && strcmp(backend, "io_uring") == 0)
                doctor_say(d, VERDICT_WEAK, "locked memory",
                           "ulimit -l unlimited (LimitMEMLOCK=infinity in a unit); plain buffers "
                           "cost some speed",
                           "buffers cannot be registered, the limit is %s",
                           human_bytes(limit.rlim_cur, bytes));
        json_decref(answer);
}

/* Only the agent touches io_uring, so it is asked. */
static void probe_ring(struct doctor *d) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char program[PATH_MAX], text[1024], answer[ANSWER_BYTES];
        if (agent_process_find("cairnd", program, sizeof program, &e) < 0) {
                doctor_say(d, VERDICT_BAD, "cairnd", "install Cairn completely", "%s",
                           error_format(&e, text, sizeof text));
                return;
        }
        (void) doctor_ask("cairnd", "--probe", RING_PROBE_NS, answer, sizeof answer);
        doctor_report_ring(d, answer);
}

/* ---- system calls ---- */

static void probe_memfd(struct doctor *d) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        _cleanup_close_ int fd = -1;
        char text[512], huge[256] = "";
        if (wire_memfd_create("cairn-doctor", MiB, &fd, &e) < 0) {
                doctor_say(d, VERDICT_BAD, "memfd",
                           "without sealed memfds trainer and agent cannot share memory", "%s",
                           error_format(&e, text, sizeof text));
                return;
        }
        doctor_say(d, VERDICT_GOOD, "memfd", NULL, "created and sealed");
        bool known =
                read_text("/sys/kernel/mm/transparent_hugepage/shmem_enabled", huge, sizeof huge);
        const char *chosen = strchr(huge, '['); /* "always [never] deny" */
        chosen = chosen ? chosen + 1 : huge;
        int length = (int) strcspn(chosen, "]");
        bool off = strncmp(chosen, "never", 5) == 0 || strncmp(chosen, "deny", 4) == 0;
        doctor_say(d, known && !off ? VERDICT_GOOD : VERDICT_WEAK, "huge pages",
                   known ? "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled: the "
                           "first copy of each snapshot buffer gets faster"
                         : "this kernel has none for shared memory; first copies are slower",
                   "for shared memory: %.*s", known ? length : 9, known ? chosen : "not there");
}

static void probe_calls(struct doctor *d) {
        struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                               .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
        _cleanup_close_ int pidfd = (int) syscall(SYS_pidfd_open, getpid(), 0);
        int error_number = errno;
        doctor_say(d, pidfd >= 0 ? VERDICT_GOOD : VERDICT_BAD, "pidfd",
                   "Linux 5.3 or newer, and a seccomp profile that allows pidfd_open", "%s",
                   pidfd >= 0 ? "works" : strerror(error_number));
        _cleanup_close_ int folder = (int) syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof how);
        error_number = errno;
        bool works = folder >= 0 || error_number == EACCES;
        doctor_say(d, works ? VERDICT_GOOD : VERDICT_BAD, "openat2",
                   "Linux 5.6 or newer, and a seccomp profile that allows openat2", "%s",
                   works ? "works" : strerror(error_number));
}

/* ---- memory and limits ---- */

uint64_t doctor_cgroup_limit(const char *root, const char *path) {
        char folder[PATH_MAX], file[PATH_MAX + 16], text[64];
        uint64_t lowest = UINT64_MAX;
        (void) snprintf(folder, sizeof folder, "%s%s", root, path);
        for (size_t depth = 0; depth < DEPTH_MAX && strlen(folder) >= strlen(root); depth++) {
                (void) snprintf(file, sizeof file, "%s/memory.max", folder);
                if (read_text(file, text, sizeof text) && *text >= '0' && *text <= '9') {
                        uint64_t limit = strtoull(text, NULL, 10);
                        lowest = limit < lowest ? limit : lowest;
                }
                char *slash = strrchr(folder, '/');
                if (!slash || (size_t) (slash - folder) < strlen(root))
                        break;
                *slash = '\0';
        }
        return lowest;
}

static uint64_t cgroup_limit(void) {
        char text[4096];
        if (!read_text("/proc/self/cgroup", text, sizeof text))
                return UINT64_MAX;
        char *unified = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
        if (!unified)
                return UINT64_MAX;
        unified = strchr(unified, '/');
        if (!unified)
                return UINT64_MAX;
        unified[strcspn(unified, "\n")] = '\0';
        return doctor_cgroup_limit("/sys/fs/cgroup", unified);
}

static uint64_t memory_available(void) {
        _cleanup_fclose_ FILE *f = fopen("/proc/meminfo", "re");
        char line[256];
        while (f && fgets(line, sizeof line, f))
                if (strncmp(line, "MemAvailable:", 13) == 0)
                        return strtoull(line + 13, NULL, 10) * KiB;
        return 0;
}

static void probe_memory(struct doctor *d) {
        uint64_t available = memory_available(), limit = cgroup_limit();
        uint64_t least = available < limit ? available : limit;
        char free_text[32], limit_text[32];
        doctor_say(d, least >= MEMORY_BYTES_WANTED ? VERDICT_GOOD : VERDICT_WEAK, "memory",
                   "the agent stages a copy of the training state: free memory or raise memory.max",
                   "%s available, cgroup limit %s", human_bytes(available, free_text),
                   limit == UINT64_MAX ? "none" : human_bytes(limit, limit_text));
        struct statvfs shm;
        if (statvfs("/dev/shm", &shm) == 0) {
                uint64_t bytes = (uint64_t) shm.f_blocks * shm.f_frsize;
                doctor_say(d, bytes >= SHM_BYTES_WANTED ? VERDICT_GOOD : VERDICT_WEAK, "/dev/shm",
                           "Cairn uses memfds, which it does not limit, but data loaders often "
                           "need more (docker run --shm-size)",
                           "%s", human_bytes(bytes, free_text));
        }
        struct rlimit files = {0};
        (void) getrlimit(RLIMIT_NOFILE, &files);
        doctor_say(d, files.rlim_cur >= OPEN_FILES_WANTED ? VERDICT_GOOD : VERDICT_WEAK,
                   "open files", "ulimit -n 4096 (LimitNOFILE= in a unit)", "at most %llu",
                   (unsigned long long) files.rlim_cur);
        doctor_say(d, VERDICT_GOOD, "RemoveIPC", NULL,
                   "logind's setting does not matter: memory is in memfds, not in /dev/shm");
}

/* ---- agent ---- */

static void probe_agent(struct doctor *d) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        const char *path = agent_process_system(), *runtime = getenv("XDG_RUNTIME_DIR");
        char text[1024];
        if (!path) {
                bool writable = runtime && *runtime && access(runtime, W_OK) == 0;
                const char *temporary = getenv("TMPDIR");
                doctor_say(d, VERDICT_GOOD, "agent", NULL,
                           "no system-wide one: `cairn run` starts its own, with its socket in %s",
                           writable                  ? runtime
                           : temporary && *temporary ? temporary
                                                     : "/tmp");
                return;
        }
        _cleanup_(control_done) struct control agent;
        control_init(&agent, &clock_system);
        int r = control_connect(&agent, path, &e);
        if (r == 0)
                r = control_greet(&agent, CAIRN__CONTROL__PEER_KIND__PEER_TOOL, NULL,
                                  clock_now(&clock_system) + AGENT_GREET_NS, &e);
        if (r == 0)
                doctor_say(d, VERDICT_GOOD, "agent", NULL, "answers at %s", path);
        else
                doctor_say(d, VERDICT_BAD, "agent",
                           "systemctl status cairnd; join the group cairn; or unset CAIRN_SOCKET",
                           "%s", error_format(&e, text, sizeof text));
}

void doctor_host(struct doctor *d) {
        probe_kernel(d);
        probe_ring(d);
        probe_memfd(d);
        probe_calls(d);
        probe_memory(d);
        probe_agent(d);
}
