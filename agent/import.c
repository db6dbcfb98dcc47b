/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/import.h"
#include "agent/worker.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "device/chunks.h"
#include "format/wire.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define START_NS (60 * NSEC_PER_SEC) /* a context alone may take seconds */
#define BYTES_PER_SEC_MIN (1 * GiB)
#define KILL_NS (5 * NSEC_PER_SEC)
#define CHUNK_NS (30 * NSEC_PER_SEC)
#define LOOK_MS 10

/* What the child inherits. */
enum { PLAN_FD = 3, STAGING_FD, FIRST_SLAB_FD, AWAY_FD = 128 };

struct import_range {
        uint64_t slab_offset, offset, bytes;
        uint32_t slab;
};
struct import_plan {              /* in a memfd: both ends are this binary */
        struct cairn_error error; /* the child's */
        bool done;
        unsigned char uuid[DEVICE_UUID_BYTES];
        uint32_t slab_count;
        uint64_t slab_bytes[SLAB_COUNT_MAX];
        uint64_t count;
        struct import_range ranges[];
};

/* ---- the child ---- */

struct import {
        struct import_plan *plan;
        struct device *device;
        struct device_memory slabs[SLAB_COUNT_MAX];
        unsigned char *staging;
        uint64_t staging_bytes;
};

static int map_all(struct import *m, struct cairn_error *reterr) {
        struct stat st;
        if (fstat(PLAN_FD, &st) < 0)
                return error_set_errno(reterr, errno, "import state", "plan");
        void *plan =
                mmap(NULL, (size_t) st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, PLAN_FD, 0);
        if (plan == MAP_FAILED)
                return error_set_errno(reterr, errno, "import state", "plan");
        m->plan = plan;
        if (fstat(STAGING_FD, &st) < 0)
                return error_set_errno(reterr, errno, "import state", "staging");
        m->staging_bytes = (uint64_t) st.st_size;
        void *staging =
                mmap(NULL, m->staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, STAGING_FD, 0);
        if (staging == MAP_FAILED)
                return error_set_errno(reterr, errno, "import state", "staging");
        m->staging = staging;
        return 0;
}

static int import_slabs(struct import *m, struct cairn_error *reterr) {
        for (uint32_t i = 0; i < m->plan->slab_count; i++)
                TRY(m->device->ops->import_fd(m->device, FIRST_SLAB_FD + (int) i,
                                              m->plan->slab_bytes[i], true, &m->slabs[i], reterr));
        return 0;
}

static int copy_ranges(struct import *m, struct cairn_error *reterr) {
        struct chunks c;
        int r = 0;
        chunks_init(&c, m->device, NULL, CHUNK_BYTES, NULL, NULL);
        for (uint64_t i = 0; r == 0 && i < m->plan->count; i++) {
                const struct import_range *range = &m->plan->ranges[i];
                r = chunks_copy(&c, m->staging + range->offset,
                                (char *) m->slabs[range->slab].address + range->slab_offset,
                                range->bytes, clock_now(&clock_system) + CHUNK_NS, reterr);
        }
        if (r == 0)
                r = chunks_end(&c, clock_now(&clock_system) + CHUNK_NS, reterr);
        if (r == 0)
                chunks_done(&c);
        return r; /* what is under way after a failure ends with this process */
}

static int import(struct import *m, struct cairn_error *reterr) {
        int ordinal;
        TRY(device_cuda_find(m->plan->uuid, &ordinal, reterr));
        TRY(device_cuda.open(ordinal, &m->device, reterr));
        TRY(import_slabs(m, reterr));
        /* Refused: the copies are slower. */
        bool locked =
                m->device->ops->host_register(m->device, m->staging, m->staging_bytes, NULL) == 0;
        TRY(copy_ranges(m, reterr));
        if (locked)
                TRY(m->device->ops->host_unregister(m->device, m->staging, reterr));
        for (uint32_t i = 0; i < m->plan->slab_count; i++)
                m->device->ops->unmap(m->device, &m->slabs[i]);
        m->device->ops->close(m->device);
        return 0;
}

int import_main(void) {
        struct import m = {0};
        struct cairn_error e = CAIRN_ERROR_INIT;
        worker_become("cairn-import");
        int r = map_all(&m, &e);
        if (r == 0)
                r = import(&m, &e);
        if (m.plan) {
                m.plan->error = e;
                m.plan->error.status = r;
                m.plan->done = true;
        }
        return r < 0 ? status_exit_code(r) : 0;
}

/* ---- its saver ---- */

static int fill(struct import_plan *plan, const struct source *source, struct cairn_error *reterr) {
        const ProtobufCBinaryData *uuid = &source->inventory.inventory->device_uuid;
        if (uuid->len != DEVICE_UUID_BYTES)
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "import state", "",
                                 "it is not in the memory of a GPU");
        memcpy(plan->uuid, uuid->data, DEVICE_UUID_BYTES);
        plan->slab_count = source->slab_count;
        memcpy(plan->slab_bytes, source->slab_bytes, sizeof plan->slab_bytes);
        for (size_t i = 0; i < source->tensor_count; i++) {
                const struct source_tensor *t = &source->tensors[i];
                if (t->slab >= source->slab_count || t->live)
                        return error_set(reterr, CAIRN_ERR_UNSUPPORTED, "import state", "",
                                         "some of it was in memory that ended with the trainer");
                plan->ranges[plan->count++] =
                        (struct import_range){t->slab_offset, t->offset, t->live_bytes, t->slab};
        }
        return 0;
}

/* Out of the way of the numbers that the child finds them at. */
static int inherit(posix_spawn_file_actions_t *actions, int *away, int fd, int number) {
        *away = fcntl(fd, F_DUPFD_CLOEXEC, AWAY_FD);
        return *away < 0 ? errno : posix_spawn_file_actions_adddup2(actions, *away, number);
}

static int spawn(const struct source *source, int plan_fd, int staging_fd, pid_t *ret_pid) {
        const char *const arguments[] = {"cairnd", "--import", NULL};
        int away[FIRST_SLAB_FD + SLAB_COUNT_MAX], count = 0;
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t none;
        (void) posix_spawn_file_actions_init(&actions);
        (void) posix_spawnattr_init(&attributes);
        (void) sigemptyset(&none);
        (void) posix_spawnattr_setsigmask(&attributes, &none);
        (void) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        int r = inherit(&actions, &away[count++], plan_fd, PLAN_FD);
        if (r == 0)
                r = inherit(&actions, &away[count++], staging_fd, STAGING_FD);
        for (uint32_t i = 0; r == 0 && i < source->slab_count; i++)
                r = inherit(&actions, &away[count++], source->slab_fds[i], FIRST_SLAB_FD + (int) i);
        if (r == 0)
                r = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attributes,
                                (char *const *) (uintptr_t) arguments, environ);
        for (int i = 0; i < count; i++)
                cleanup_close(&away[i]);
        (void) posix_spawn_file_actions_destroy(&actions);
        (void) posix_spawnattr_destroy(&attributes);
        return r;
}

static bool ended_within(int pidfd, int timeout_ms) {
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        return poll(&p, 1, timeout_ms) > 0;
}

static int await(int pidfd, uint64_t deadline_ns, bool (*given_up)(void *context), void *context,
                 struct cairn_error *reterr) {
        while (!ended_within(pidfd, LOOK_MS)) {
                if (given_up(context))
                        return error_set(reterr, CAIRN_ERR_VOID, "import state", "",
                                         "its checkpoint was given up");
                if (clock_now(&clock_system) >= deadline_ns)
                        return error_set(reterr, CAIRN_ERR_TIMEOUT, "import state", "",
                                         "the GPU did not give it in time");
        }
        return 0;
}

static int run(const struct source *source, int plan_fd, int staging_fd,
               bool (*given_up)(void *context), void *context, bool *ret_stuck,
               struct cairn_error *reterr) {
        uint64_t deadline_ns = clock_now(&clock_system) + START_NS +
                               source->image_bytes / BYTES_PER_SEC_MIN * NSEC_PER_SEC;
        pid_t pid;
        int r = spawn(source, plan_fd, staging_fd, &pid);
        if (r != 0)
                return error_set_errno(reterr, r, "start import", "cairnd");
        _cleanup_close_ int pidfd = (int) syscall(SYS_pidfd_open, pid, 0);
        if (pidfd < 0) {
                r = error_set_errno(reterr, errno, "watch import", "cairnd");
                (void) kill(pid, SIGKILL);
                (void) waitpid(pid, NULL, 0);
                return r;
        }
        r = await(pidfd, deadline_ns, given_up, context, reterr);
        if (r < 0) {
                (void) syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
                *ret_stuck = !ended_within(pidfd, (int) (KILL_NS / NSEC_PER_MSEC));
                if (*ret_stuck)
                        return r;
        }
        (void) waitpid(pid, NULL, 0);
        return r;
}

int import_copy(const struct source *source, int staging_fd, bool (*given_up)(void *context),
                void *context, bool *ret_stuck, struct cairn_error *reterr) {
        _cleanup_close_ int fd = -1;
        uint64_t bytes =
                sizeof(struct import_plan) + source->tensor_count * sizeof(struct import_range);
        *ret_stuck = false;
        TRY(wire_memfd_create("cairn-import", bytes, &fd, reterr));
        struct import_plan *plan = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (plan == MAP_FAILED)
                return error_set_errno(reterr, errno, "import state", "plan");
        int r = fill(plan, source, reterr);
        if (r == 0)
                r = run(source, fd, staging_fd, given_up, context, ret_stuck, reterr);
        if (r == 0 && !plan->done)
                r = error_set(reterr, CAIRN_ERR_PEER, "import state", "",
                              "the process that copies it died");
        else if (r == 0 && plan->error.status < 0) {
                if (reterr)
                        *reterr = plan->error;
                r = plan->error.status;
        }
        (void) munmap(plan, bytes);
        return r;
}
