/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL without a wait that does not end. The communicator does not block: each call is polled until
 * the library has taken it, then the device's event, and the library's asynchronous error each
 * time. All calls are made in one thread (worker.h), which the caller gives up when a turn says so;
 * what aborts is another one, because the first may be stuck in the library.
 */
#include "comm/back_end.h"
#include "comm/nccl_id.h"
#include "comm/nccl_library.h"
#include "comm/worker.h"
#include "device/device.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CANCEL_NS (500 * NSEC_PER_MSEC) /* for the worker to come back */

/* One operation; filled by the caller, then the worker's until it is done. */
struct nccl_job {
        const char *call; /* where it is, for errors */
        const void *source;
        void *target;
        uint64_t count;
        int type, root;
        int64_t value; /* of a barrier */
        struct nccl_id id;
        int result;               /* enum nccl_result */
        char text[256];           /* what the library said of it */
        struct cairn_error error; /* of the device; status 0: none */
};

struct nccl {
        struct nccl_library lib;
        struct worker *worker;
        struct nccl_id_child child;
        struct device *device;
        void *queue;
        int rank, world;
        struct device_memory scratch;
        struct device_event event;
        _Atomic(struct nccl_communicator *) comm;
        atomic_bool cancel;
        const char *hung; /* the call that an abort has not ended */
        struct nccl_job job;
};

/* ---- in the worker ---- */

/* Operations are often over in less than the time that a sleep takes. */
static void pause_poll(unsigned *polls) {
        if (++*polls < 200)
                (void) sched_yield();
        else
                clock_system.sleep_ns(NULL, *polls < 1000 ? 20000 : NSEC_PER_MSEC);
}

static int async_error(struct nccl *n) {
        int error = NCCL_OK;
        int r = n->lib.CommGetAsyncError(n->comm, &error);
        return r == NCCL_OK ? error : r;
}

/* What became of a call that returned r. */
static int settle(struct nccl *n, int r) {
        unsigned polls = 0;

        while (r == NCCL_IN_PROGRESS && !n->cancel) {
                pause_poll(&polls);
                r = async_error(n);
        }
        return r;
}

static void keep_result(struct nccl *n, int r) {
        const char *last = n->lib.GetLastError(n->comm);

        n->job.result = r;
        if (r != NCCL_OK)
                (void) snprintf(n->job.text, sizeof n->job.text, "%s: %s%s%.160s", n->job.call,
                                n->lib.GetErrorString(r), last && *last ? ": " : "",
                                last ? last : "");
}

static void run_init(void *argument) {
        struct nccl_config config = NCCL_CONFIG_NONBLOCKING;
        struct nccl_communicator *comm = NULL;
        struct nccl *n = argument;

        int r = n->lib.CommInitRankConfig(&comm, n->world, n->job.id, n->rank, &config);
        n->comm = comm;
        if (!comm && (r == NCCL_OK || r == NCCL_IN_PROGRESS))
                r = NCCL_INTERNAL_ERROR;
        keep_result(n, settle(n, r));
}

static int wait_event(struct nccl *n, struct cairn_error *e) {
        const struct device_ops *ops = n->device->ops;
        unsigned polls = 0;
        int r = NCCL_OK, status;

        if (ops->event_record(n->device, &n->event, n->queue, e) < 0)
                return NCCL_OK; /* e says it */
        while ((status = ops->event_query(n->device, &n->event, e)) == CAIRN_ERR_BUSY) {
                r = async_error(n);
                if ((r != NCCL_OK && r != NCCL_IN_PROGRESS) || n->cancel)
                        break;
                pause_poll(&polls);
        }
        if (status == CAIRN_ERR_BUSY || status == 0)
                e->status = 0;
        return status == CAIRN_ERR_BUSY && r == NCCL_OK ? NCCL_IN_PROGRESS : r;
}

/* `r` is what the call returned that was to enqueue the operation. */
static void finish(struct nccl *n, int r) {
        r = settle(n, r);
        if (r == NCCL_OK)
                r = wait_event(n, &n->job.error);
        keep_result(n, r);
}

static void run_all_reduce(void *argument) {
        struct nccl *n = argument;
        const struct nccl_job *j = &n->job;
        finish(n, n->lib.AllReduce(j->source, j->target, j->count, j->type, NCCL_SUM, n->comm,
                                   n->queue));
}

static void run_reduce_scatter(void *argument) {
        struct nccl *n = argument;
        const struct nccl_job *j = &n->job;
        finish(n, n->lib.ReduceScatter(j->source, j->target, j->count, j->type, NCCL_SUM, n->comm,
                                       n->queue));
}

static void run_all_gather(void *argument) {
        struct nccl *n = argument;
        const struct nccl_job *j = &n->job;
        finish(n, n->lib.AllGather(j->source, j->target, j->count, j->type, n->comm, n->queue));
}

static void run_broadcast(void *argument) {
        struct nccl *n = argument;
        const struct nccl_job *j = &n->job;
        finish(n, n->lib.Broadcast(j->source, j->target, j->count, j->type, j->root, n->comm,
                                   n->queue));
}

static int copy(struct nccl *n, void *target, const void *source) {
        return n->device->ops->copy_async(n->device, n->queue, target, source, sizeof n->job.value,
                                          &n->job.error);
}

static void run_barrier(void *argument) {
        struct nccl *n = argument;

        n->job.value = 1;
        if (copy(n, n->scratch.address, &n->job.value) < 0)
                return;
        finish(n, n->lib.AllReduce(n->scratch.address, n->scratch.address, 1, NCCL_INT64, NCCL_SUM,
                                   n->comm, n->queue));
        if (n->job.result == NCCL_OK && n->job.error.status == 0 &&
            copy(n, &n->job.value, n->scratch.address) == 0)
                keep_result(n, wait_event(n, &n->job.error));
}

/* ---- in the caller's thread ---- */

static int status_of(int result) {
        switch (result) {
        case NCCL_REMOTE_ERROR:
        case NCCL_SYSTEM_ERROR: /* mostly a connection that failed */
                return CAIRN_ERR_PEER;
        case NCCL_INVALID_ARGUMENT:
        case NCCL_INVALID_USAGE:
                return CAIRN_ERR_FATAL;
        default:
                return CAIRN_ERR_DEVICE;
        }
}

/* Has the worker do it, with turns. What the worker still uses when this returns is in *n. */
static int perform(struct comm *c, const char *call, void (*run)(void *argument),
                   struct cairn_error *reterr) {
        struct nccl *n = c->back;

        n->job.call = call;
        n->job.error = (struct cairn_error) CAIRN_ERROR_INIT;
        n->job.result = NCCL_IN_PROGRESS;
        worker_start(n->worker, run, n);
        while (!worker_wait(n->worker, clock_now(&clock_system) + COMM_TURN_NS)) {
                int r = comm_turn(c, reterr);
                if (r == 0)
                        continue;
                n->cancel = true;
                (void) worker_wait(n->worker, clock_now(&clock_system) + CANCEL_NS);
                return r;
        }
        if (n->job.error.status < 0) {
                if (reterr)
                        *reterr = n->job.error;
                return n->job.error.status;
        }
        if (n->job.result == NCCL_OK)
                return 0;
        return comm_blame(c, status_of(n->job.result), n->job.text, reterr);
}

/* Rank 0 has an id made; the others wait for it. */
static int get_id(struct comm *c, struct nccl *n, struct cairn_error *reterr) {
        size_t bytes;
        int r;

        if (n->rank != 0) {
                TRY(comm_get(c, "id", 0, &n->job.id, sizeof n->job.id, &bytes, reterr));
                return bytes == sizeof n->job.id
                               ? 0
                               : comm_fail(c, CAIRN_ERR_CORRUPT, reterr, "rank 0's id is no id");
        }
        TRY(nccl_id_start(&n->child, reterr));
        while ((r = nccl_id_read(&n->child, &n->job.id, COMM_TURN_NS / NSEC_PER_MSEC, reterr)) == 0)
                TRY(comm_turn(c, reterr));
        if (r < 0)
                return r;
        return comm_set(c, "id", 0, &n->job.id, sizeof n->job.id, reterr);
}

static int nccl_open(struct comm *c, struct cairn_error *reterr) {
        struct nccl *n = calloc(1, sizeof *n);

        if (!n)
                return comm_fail(c, CAIRN_ERR_NOMEM, reterr, "no memory");
        c->back = n;
        n->child = (struct nccl_id_child) NCCL_ID_CHILD_INIT;
        n->scratch = (struct device_memory) DEVICE_MEMORY_INIT;
        n->rank = c->options.rank;
        n->world = c->options.world;
        n->device = c->options.device;
        n->queue = c->options.queue;
        if (!n->device)
                return comm_fail(c, CAIRN_ERR_API, reterr, "NCCL has to be given a device");
        TRY(nccl_library_load(&n->lib, reterr));
        (void) snprintf(c->description, sizeof c->description,
                        "NCCL %d.%d.%d, device %s:%d, generation %llu", n->lib.version / 10000,
                        n->lib.version / 100 % 100, n->lib.version % 100, n->device->ops->name,
                        n->device->ordinal, (unsigned long long) c->options.generation);
        TRY(n->device->ops->allocate(n->device, sizeof n->job.value, &n->scratch, reterr));
        TRY(worker_new(&n->worker, c->options.thread_begin, c->options.thread_context, reterr));
        TRY(get_id(c, n, reterr));
        int r = perform(c, "ncclCommInitRankConfig", run_init, reterr);
        nccl_id_end(&n->child); /* all have met there, or never will */
        return r;
}

static int type_of(enum cairn_dtype dtype) {
        switch (dtype) {
        case CAIRN_F64:
                return NCCL_FLOAT64;
        case CAIRN_F32:
                return NCCL_FLOAT32;
        case CAIRN_F16:
                return NCCL_FLOAT16;
        case CAIRN_BF16:
                return NCCL_BFLOAT16;
        case CAIRN_I64:
                return NCCL_INT64;
        default:
                return -1;
        }
}

static int prepare(struct comm *c, const void *source, void *target, uint64_t count,
                   enum cairn_dtype dtype, struct cairn_error *reterr) {
        struct nccl *n = c->back;

        n->job.source = source;
        n->job.target = target;
        n->job.count = count;
        n->job.type = dtype == CAIRN_U8 ? NCCL_UINT8 : type_of(dtype);
        if (n->job.type < 0)
                return comm_fail(c, CAIRN_ERR_UNSUPPORTED, reterr,
                                 "sums are of f16, bf16, f32, f64 or i64, not of type %d",
                                 (int) dtype);
        return 0;
}

static int nccl_all_reduce(struct comm *c, void *data, uint64_t count, enum cairn_dtype dtype,
                           struct cairn_error *reterr) {
        TRY(prepare(c, data, data, count, dtype, reterr));
        return perform(c, "ncclAllReduce", run_all_reduce, reterr);
}

static int nccl_reduce_scatter(struct comm *c, const void *source, void *target, uint64_t count,
                               enum cairn_dtype dtype, struct cairn_error *reterr) {
        TRY(prepare(c, source, target, count, dtype, reterr));
        return perform(c, "ncclReduceScatter", run_reduce_scatter, reterr);
}

static int nccl_all_gather(struct comm *c, const void *source, void *target, uint64_t bytes,
                           struct cairn_error *reterr) {
        TRY(prepare(c, source, target, bytes, CAIRN_U8, reterr));
        return perform(c, "ncclAllGather", run_all_gather, reterr);
}

static int nccl_broadcast(struct comm *c, void *data, uint64_t bytes, int root,
                          struct cairn_error *reterr) {
        struct nccl *n = c->back;

        TRY(prepare(c, data, data, bytes, CAIRN_U8, reterr));
        n->job.root = root;
        return perform(c, "ncclBroadcast", run_broadcast, reterr);
}

static int nccl_barrier(struct comm *c, int64_t *ret_count, struct cairn_error *reterr) {
        struct nccl *n = c->back;

        TRY(perform(c, "ncclAllReduce", run_barrier, reterr));
        *ret_count = n->job.value;
        return 0;
}

/* ---- the end ---- */

/* What the thread that aborts uses; it is left behind with it if it does not come back. */
struct abort_job {
        struct nccl_library lib;
        size_t count;
        struct nccl_communicator *comms[];
};

/* An abort may wait for the device, which may be busy with another communicator's operation that
 * waits for a dead rank: so all of them in one group. The results do not matter; the communicators
 * are gone either way. */
static void run_abort(void *argument) {
        const struct abort_job *a = argument;

        if (a->count > 1)
                (void) a->lib.GroupStart();
        for (size_t i = 0; i < a->count; i++)
                (void) a->lib.CommAbort(a->comms[i]);
        if (a->count > 1)
                (void) a->lib.GroupEnd();
}

static int hung(const struct comm *c, const char *call, struct cairn_error *reterr) {
        struct nccl *n = c->back;

        n->hung = call;
        return comm_fail(c, CAIRN_ERR_FATAL, reterr,
                         "%s does not return; only the end of the process (exit status %d) frees "
                         "what the library holds",
                         call, COMM_EXIT_HUNG);
}

static int abort_all(struct comm *const *comms, struct abort_job *a, uint64_t deadline_ns,
                     struct cairn_error *reterr) {
        const struct nccl *first = comms[0]->back;
        struct worker *worker;

        int r = worker_new(&worker, comms[0]->options.thread_begin,
                           comms[0]->options.thread_context, reterr);
        if (r < 0) {
                free(a);
                return r;
        }
        a->lib = first->lib;
        worker_start(worker, run_abort, a);
        if (!worker_wait(worker, deadline_ns)) {
                (void) worker_free(worker);
                return hung(comms[0], "ncclCommAbort", reterr);
        }
        (void) worker_free(worker);
        free(a);
        return 0;
}

static int nccl_abort(struct comm *const *comms, size_t count, uint64_t deadline_ns,
                      struct cairn_error *reterr) {
        struct abort_job *a = calloc(1, sizeof *a + count * sizeof *a->comms);

        if (!a)
                return comm_fail(comms[0], CAIRN_ERR_NOMEM, reterr, "no memory");
        for (size_t i = 0; i < count; i++) {
                struct nccl *n = comms[i]->back;
                if (!n)
                        continue;
                if (n->hung) {
                        free(a);
                        return hung(comms[i], n->hung, reterr);
                }
                nccl_id_end(&n->child);
                n->cancel = true;
                if (n->worker)
                        (void) worker_wait(n->worker, clock_now(&clock_system) + CANCEL_NS);
                struct nccl_communicator *handle = atomic_exchange(&n->comm, NULL);
                if (handle)
                        a->comms[a->count++] = handle;
        }
        if (a->count > 0)
                TRY(abort_all(comms, a, deadline_ns, reterr));
        else
                free(a);
        for (size_t i = 0; i < count; i++) {
                struct nccl *n = comms[i]->back;
                if (n && n->worker && !worker_wait(n->worker, deadline_ns))
                        return hung(comms[i], n->job.call, reterr);
        }
        return 0;
}

static void nccl_close(struct comm *c) {
        struct nccl *n = c->back;

        if (!n)
                return;
        (void) worker_free(n->worker);
        if (n->device) {
                n->device->ops->event_done(n->device, &n->event);
                if (n->scratch.address)
                        n->device->ops->release(n->device, &n->scratch);
        }
        free(n);
        c->back = NULL;
}

const struct comm_ops comm_nccl = {
        .name = "nccl",
        .open = nccl_open,
        .all_reduce = nccl_all_reduce,
        .reduce_scatter = nccl_reduce_scatter,
        .all_gather = nccl_all_gather,
        .broadcast = nccl_broadcast,
        .barrier = nccl_barrier,
        .abort = nccl_abort,
        .close = nccl_close,
};
