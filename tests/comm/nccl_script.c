/* SPDX-License-Identifier: Apache-2.0
 *
 * libnccl-script.so: NCCL's functions without a device, for the tests of comm/nccl.c. Communicators
 * work between processes of one machine, over a file in TMPDIR that the unique id names; "streams"
 * are the library's own threads, which have done the operation when the communicator is no longer
 * in progress. As with NCCL, a rank that is missing or dead is waited for until somebody aborts.
 * Memory is the host's; with a queue, and the emulated driver in $CAIRN_LIBCUDA, it is a GPU's, and
 * is fetched and brought back in its place on that queue.
 *
 * $CAIRN_NCCL_SCRIPT, comma separated, makes things go wrong:
 *     init=hang        ncclCommInitRankConfig does not return
 *     init=null        it fails and leaves no communicator
 *     init=late        it is in progress for 200 ms, then fails
 *     init=slow        it is in progress for 300 ms longer than it has to be
 *     late=N           the N-th operation (from 1) fails after 200 ms
 *     after=N          the N-th operation ends, but the communicator fails 200 ms later
 *     call=N           the N-th operation's call does not return
 *     abort=hang       ncclCommAbort does not return
 *     abort=grouped    it does not, outside a group, while another communicator of the process has
 *     an
 *                      operation under way
 *
 * It is strict: whoever calls in the wrong order, from two threads at once, with a blocking
 * communicator, with NCCL_COMM_BLOCKING set, or after an abort, is told so on standard error, and
 * the process aborts.
 */
#include "comm/nccl_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* As the loader sees them. */
#define DECLARE(type, name, parameters) EXPORT type nccl##name parameters;
NCCL_FUNCTIONS(DECLARE)

#define RANKS_MAX 8
#define AREA_BYTES 65536
#define COMMS_MAX 8

/* The file behind a unique id: ranks count themselves in, and then each step of an operation. */
struct meeting {
        _Atomic int joined;
        _Atomic uint64_t arrived[RANKS_MAX]; /* steps that the rank has behind it */
        char areas[RANKS_MAX][AREA_BYTES];
};

struct operation {
        enum { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST } kind;
        const char *source;
        char *target;
        size_t count;
        int type, root;
        void *queue, *context; /* of a GPU; NULL: host memory */
};

struct nccl_communicator {
        struct meeting *meeting;
        char path[NCCL_ABI_ID_BYTES];
        int rank, world;
        uint64_t steps;
        unsigned operations;
        struct operation now;
        pthread_t thread;
        bool has_thread;
        _Atomic int state; /* enum nccl_result */
        _Atomic bool aborting;
        _Atomic int calls; /* that are in it at present */
};

static struct nccl_communicator *_Atomic comms[COMMS_MAX];
static _Thread_local int group_depth;
static _Thread_local struct nccl_communicator *grouped[COMMS_MAX];
static _Thread_local size_t grouped_count;

/* ---- the script ---- */

static void nap(unsigned ms) {
        struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long) (ms % 1000) * 1000000};
        (void) nanosleep(&t, NULL);
}

static void hang(void) {
        for (;;)
                nap(1000);
}

static void misuse(const char *what) {
        (void) fprintf(stderr, "libnccl-script: %s\n", what);
        abort();
}

static bool told(const char *what) {
        const char *script = getenv("CAIRN_NCCL_SCRIPT");
        size_t length = strlen(what);

        for (; script && *script; script += *script == ',') {
                size_t word = strcspn(script, ",");
                if (word == length && strncmp(script, what, length) == 0)
                        return true;
                script += word;
        }
        return false;
}

static bool told_number(const char *what, unsigned n) {
        char text[32];
        (void) snprintf(text, sizeof text, "%s=%u", what, n);
        return told(text);
}

/* ---- what an operation does ---- */

static size_t type_bytes(int type) {
        switch (type) {
        case NCCL_UINT8:
                return 1;
        case NCCL_FLOAT16:
        case NCCL_BFLOAT16:
                return 2;
        case NCCL_FLOAT32:
                return 4;
        default:
                return 8;
        }
}

static void add(char *sum, const char *x, size_t bytes, int type) {
        for (size_t i = 0; i < bytes; i += type_bytes(type)) {
                float f[2];
                double d[2];
                int64_t n[2];
                if (type == NCCL_FLOAT32) {
                        memcpy(&f[0], sum + i, 4);
                        memcpy(&f[1], x + i, 4);
                        f[0] += f[1];
                        memcpy(sum + i, &f[0], 4);
                } else if (type == NCCL_FLOAT64) {
                        memcpy(&d[0], sum + i, 8);
                        memcpy(&d[1], x + i, 8);
                        d[0] += d[1];
                        memcpy(sum + i, &d[0], 8);
                } else if (type == NCCL_INT64) {
                        memcpy(&n[0], sum + i, 8);
                        memcpy(&n[1], x + i, 8);
                        n[0] += n[1];
                        memcpy(sum + i, &n[0], 8);
                } else {
                        misuse("no sums of this type here");
                }
        }
}

/* False: aborted meanwhile. */
static bool step(struct nccl_communicator *c) {
        c->steps++;
        c->meeting->arrived[c->rank] = c->steps;
        for (int r = 0; r < c->world; r++)
                while (c->meeting->arrived[r] < c->steps) {
                        if (c->aborting)
                                return false;
                        struct timespec t = {.tv_nsec = 50000};
                        (void) nanosleep(&t, NULL);
                }
        return true;
}

/* Everybody shows a piece of its source; each takes what it needs. */
static bool exchange(struct nccl_communicator *c, size_t source_bytes) {
        const struct operation *o = &c->now;
        size_t part = o->count * type_bytes(o->type);
        char sum[AREA_BYTES];

        for (size_t at = 0; at < source_bytes; at += AREA_BYTES) {
                size_t n = source_bytes - at < AREA_BYTES ? source_bytes - at : AREA_BYTES;
                memcpy(c->meeting->areas[c->rank], o->source + at, n);
                if (!step(c))
                        return false;
                if (o->kind == ALL_GATHER) {
                        for (int r = 0; r < c->world; r++)
                                memcpy(o->target + (size_t) r * part + at, c->meeting->areas[r], n);
                } else if (o->kind == BROADCAST) {
                        memmove(o->target + at, c->meeting->areas[o->root], n);
                } else {
                        memcpy(sum, c->meeting->areas[0], n);
                        for (int r = 1; r < c->world; r++)
                                add(sum, c->meeting->areas[r], n, o->type);
                        for (size_t i = 0; i < n; i++) {
                                size_t from = o->kind == ALL_REDUCE ? 0 : (size_t) c->rank * part;
                                if (at + i >= from && at + i < from + part)
                                        o->target[at + i - from] = sum[i];
                        }
                }
                if (!step(c))
                        return false;
        }
        return true;
}

/* ---- memory of an emulated GPU ---- */

static void *driver_function(const char *name) {
        const char *path = getenv("CAIRN_LIBCUDA");
        void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
        void *function = library ? dlsym(library, name) : NULL;
        if (!function)
                misuse("a queue without an emulated driver");
        return function;
}

static void *current_context(void) {
        void *context = NULL;
        int (*get)(void **) = (int (*)(void **)) driver_function("cuCtxGetCurrent");
        if (get(&context) != 0 || !context)
                misuse("the thread that calls has no device");
        return context;
}

/* In its place on the queue, and done on return. */
static void copy(const struct operation *o, void *target, const void *source, size_t bytes) {
        int (*set)(void *) = (int (*)(void *)) driver_function("cuCtxSetCurrent");
        int (*queue)(unsigned long long, unsigned long long, size_t, void *) =
                (int (*)(unsigned long long, unsigned long long, size_t, void *)) driver_function(
                        "cuMemcpyAsync");
        int (*synchronize)(void *) = (int (*)(void *)) driver_function("cuStreamSynchronize");
        if (set(o->context) != 0 ||
            queue((uintptr_t) target, (uintptr_t) source, bytes, o->queue) != 0 ||
            synchronize(o->queue) != 0)
                misuse("the emulated driver refuses a copy");
}

static bool exchange_on_gpu(struct nccl_communicator *c, size_t source_bytes, size_t target_bytes) {
        struct operation o = c->now;
        char *source = malloc(source_bytes), *target = malloc(target_bytes);
        if (!source || !target)
                misuse("no memory");
        copy(&o, source, o.source, source_bytes);
        c->now.source = source;
        c->now.target = target;
        bool is_done = exchange(c, source_bytes);
        if (is_done)
                copy(&o, o.target, target, target_bytes);
        free(source);
        free(target);
        return is_done;
}

static bool carry_out(struct nccl_communicator *c) {
        size_t bytes = c->now.count * type_bytes(c->now.type), all = bytes * (size_t) c->world;
        size_t source_bytes = c->now.kind == REDUCE_SCATTER ? all : bytes;
        if (c->now.queue)
                return exchange_on_gpu(c, source_bytes, c->now.kind == ALL_GATHER ? all : bytes);
        return exchange(c, source_bytes);
}

static void *run_operation(void *argument) {
        struct nccl_communicator *c = argument;
        bool fails_after = told_number("after", c->operations);

        if (told_number("late", c->operations)) {
                nap(200);
                c->state = NCCL_REMOTE_ERROR;
        } else if (carry_out(c)) {
                c->state = NCCL_OK;
                if (fails_after) {
                        nap(200);
                        c->state = NCCL_REMOTE_ERROR;
                }
        }
        return NULL;
}

/* ---- calls ---- */

static void start(struct nccl_communicator *c, void *(*f)(void *argument)) {
        sigset_t all, before;

        if (c->has_thread)
                (void) pthread_join(c->thread, NULL);
        c->state = NCCL_IN_PROGRESS;
        (void) sigfillset(&all);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        c->has_thread = pthread_create(&c->thread, NULL, f, c) == 0;
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!c->has_thread)
                misuse("no thread");
}

static void enter(struct nccl_communicator *c) {
        bool known = false;
        for (int i = 0; i < COMMS_MAX; i++)
                known |= c && comms[i] == c;
        if (!known)
                misuse("a communicator that is none, or not any more");
        if (c->calls++ > 0)
                misuse("two threads are in one communicator");
}

static int collective(struct nccl_communicator *c, struct operation o) {
        enter(c);
        if (c->state != NCCL_OK)
                misuse("an operation is begun on a communicator that is not ready");
        c->operations++;
        if (told_number("call", c->operations))
                hang();
        c->now = o;
        if (o.queue)
                c->now.context = current_context();
        start(c, run_operation);
        c->calls--;
        return NCCL_IN_PROGRESS;
}

EXPORT int ncclAllReduce(const void *source, void *target, size_t count, int type, int operation,
                         struct nccl_communicator *comm, void *queue) {
        return collective(
                comm, (struct operation){ALL_REDUCE, source, target, count, type, 0, queue, NULL});
}

EXPORT int ncclReduceScatter(const void *source, void *target, size_t count, int type,
                             int operation, struct nccl_communicator *comm, void *queue) {
        return collective(comm, (struct operation){REDUCE_SCATTER, source, target, count, type, 0,
                                                   queue, NULL});
}

EXPORT int ncclAllGather(const void *source, void *target, size_t count, int type,
                         struct nccl_communicator *comm, void *queue) {
        return collective(
                comm, (struct operation){ALL_GATHER, source, target, count, type, 0, queue, NULL});
}

EXPORT int ncclBroadcast(const void *source, void *target, size_t count, int type, int root,
                         struct nccl_communicator *comm, void *queue) {
        return collective(comm, (struct operation){BROADCAST, source, target, count, type, root,
                                                   queue, NULL});
}

EXPORT int ncclCommGetAsyncError(struct nccl_communicator *comm, int *error) {
        enter(comm);
        *error = comm->state;
        comm->calls--;
        return NCCL_OK;
}

/* The ranks meet where the id's maker is: it holds a lock as long as it lives. */
static bool maker_lives(const char *path) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return false;
        bool free = flock(fd, LOCK_EX | LOCK_NB) == 0;
        (void) close(fd);
        return !free;
}

static void *run_init(void *argument) {
        struct nccl_communicator *c = argument;

        if (told("init=late")) {
                nap(200);
                c->state = NCCL_SYSTEM_ERROR;
                return NULL;
        }
        c->meeting->joined++;
        while (c->meeting->joined < c->world) {
                if (c->aborting)
                        return NULL;
                if (!maker_lives(c->path) && c->meeting->joined < c->world) {
                        c->state = NCCL_SYSTEM_ERROR;
                        return NULL;
                }
                nap(1);
        }
        if (told("init=slow"))
                nap(300);
        c->state = NCCL_OK;
        return NULL;
}

static struct meeting *map(const char *path) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return NULL;
        void *p = mmap(NULL, sizeof(struct meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void) close(fd);
        return p == MAP_FAILED ? NULL : p;
}

EXPORT int ncclCommInitRankConfig(struct nccl_communicator **comm, int world, struct nccl_id id,
                                  int rank, struct nccl_config *config) {
        if (config->size != sizeof *config || config->magic != NCCL_ABI_MAGIC ||
            config->version != NCCL_ABI_VERSION_MIN || config->blocking != 0 ||
            config->cga_cluster_size != NCCL_ABI_UNDEFINED)
                misuse("the configuration is not that of a communicator that does not block");
        if (getenv("NCCL_COMM_BLOCKING"))
                misuse("NCCL_COMM_BLOCKING is set");
        if (told("init=hang"))
                hang();
        *comm = NULL;
        if (told("init=null"))
                return NCCL_SYSTEM_ERROR;
        struct nccl_communicator *c = calloc(1, sizeof *c);
        if (!c || !(c->meeting = map(id.internal)))
                return NCCL_SYSTEM_ERROR;
        memcpy(c->path, id.internal, sizeof c->path);
        c->rank = rank;
        c->world = world;
        for (int i = 0; i < COMMS_MAX; i++) {
                struct nccl_communicator *none = NULL;
                if (atomic_compare_exchange_strong(&comms[i], &none, c))
                        break;
        }
        start(c, run_init);
        *comm = c;
        return NCCL_IN_PROGRESS;
}

static bool another_is_busy(const struct nccl_communicator *c) {
        for (int i = 0; i < COMMS_MAX; i++)
                if (comms[i] && comms[i] != c && comms[i]->state == NCCL_IN_PROGRESS)
                        return true;
        return false;
}

static void end(struct nccl_communicator *c) {
        c->aborting = true;
        if (c->has_thread)
                (void) pthread_join(c->thread, NULL);
        for (int i = 0; i < COMMS_MAX; i++) {
                struct nccl_communicator *self = c;
                (void) atomic_compare_exchange_strong(&comms[i], &self, NULL);
        }
        if (c->calls > 0)
                return; /* a thread hangs in it */
        (void) munmap(c->meeting, sizeof *c->meeting);
        free(c);
}

EXPORT int ncclCommAbort(struct nccl_communicator *comm) {
        if (told("abort=hang"))
                hang();
        if (group_depth > 0) {
                grouped[grouped_count++] = comm;
                return NCCL_OK;
        }
        while (told("abort=grouped") && another_is_busy(comm))
                nap(1);
        end(comm);
        return NCCL_OK;
}

EXPORT int ncclGroupStart(void) {
        group_depth++;
        return NCCL_OK;
}

EXPORT int ncclGroupEnd(void) {
        group_depth--;
        for (size_t i = 0; i < grouped_count; i++)
                grouped[i]->aborting = true;
        for (size_t i = 0; i < grouped_count; i++)
                end(grouped[i]);
        grouped_count = 0;
        return NCCL_OK;
}

EXPORT int ncclGetUniqueId(struct nccl_id *id) {
        const char *folder = getenv("TMPDIR");

        memset(id, 0, sizeof *id);
        (void) snprintf(id->internal, sizeof id->internal, "%s/nccl-XXXXXX",
                        folder ? folder : "/tmp");
        int fd = mkostemp(id->internal, O_CLOEXEC);
        if (fd < 0 || ftruncate(fd, sizeof(struct meeting)) < 0 || flock(fd, LOCK_EX) < 0)
                return NCCL_SYSTEM_ERROR;
        return NCCL_OK; /* the lock stays with the process */
}

EXPORT int ncclGetVersion(int *version) {
        *version = told("version=old") ? 21300 : 22809;
        return NCCL_OK;
}

EXPORT const char *ncclGetErrorString(int result) {
        static const char *const texts[] = {
                "no error",
                "unhandled cuda error",
                "unhandled system error",
                "internal error",
                "invalid argument",
                "invalid usage",
                "remote process exited or there was a network error",
                "in progress",
        };
        return result >= 0 && result < 8 ? texts[result] : "unknown";
}

EXPORT const char *ncclGetLastError(struct nccl_communicator *comm) {
        return "as the script says";
}
