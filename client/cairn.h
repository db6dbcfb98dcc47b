/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn.h - the C API of libcairn: what a trainer calls. This header is its manual.
 *
 * Calling sequence (one rank, one thread that trains):
 *
 *     struct cairn *c = NULL;
 *     struct cairn_options o = CAIRN_OPTIONS_INIT; // run, rank, ...: the launcher's variables
 *     if (cairn_open(&o, &c) < 0) {
 *             fputs(cairn_error_text(c), stderr);
 *             return cairn_exit_code(c);
 *     }
 *     cairn_alloc(c, bytes, (void **) &weights); // memory that outlives the trainer
 *     cairn_register(c, &(struct cairn_tensor){
 *             CAIRN_TENSOR_INIT, .name = "wte", .role = CAIRN_PARAMETER, .dtype = CAIRN_F32,
 *             .rank = 2, .shape = {V, C}, .data = weights});
 *     cairn_state_i64(c, "samples_seen", &state.samples); // host values, read at update_end
 *     cairn_describe(c, "config.layers", "12");           // checked on resume
 *     cairn_seal(c);
 *     cairn_restore(c, &report); // always: the intent decided fresh, resume or init-from
 *     for (step = report.step + 1; !cairn_should_stop(c); step++) {
 *             ... forward, backward (the state is immutable here; it may be copied) ...
 *             cairn_update_begin(c); // the gate
 *             ... optimizer ... state.samples += batch; ...
 *             cairn_update_end(c, step);
 *     }
 *     cairn_snapshot(c, &ticket);
 *     cairn_snapshot_wait(c, ticket, 60000000000, &step);
 *     cairn_finish(c, "completed");
 *     cairn_close(c);
 *
 * Errors: every function returns 0 or a negative enum cairn_status (types.h says what to do about
 * each); cairn_error_text(c) is the sentence for the last failed call on this handle. No failure of
 * Cairn ends or blocks training beyond the gate's deadline; after cairn_open succeeded a trainer
 * may ignore every error but those of cairn_seal and cairn_restore (cairn_seal says once what a
 * registration before it was refused for). A broken invariant of libcairn
 * poisons the handle: all calls return CAIRN_ERR_FATAL, training may go on without checkpoints.
 * Misuse returns CAIRN_ERR_API and changes nothing.
 *
 * Threads: one thread at a time per handle; cairn_should_stop, cairn_snapshot, cairn_snapshot_poll
 * and cairn_exchange_* may be called from any thread. libcairn starts one helper thread (it
 * reattaches to a restarted agent), and where the trainer has to copy its state itself a second
 * one. After fork the child's calls return CAIRN_ERR_API and its mappings are absent.
 *
 * Devices: with options.device = CAIRN_DEVICE_CUDA cairn_alloc gives memory of one GPU. libcairn
 * uses that GPU's primary context, as the CUDA runtime does, a stream of its own, and the stream
 * that cairn_set_stream names; it leaves each thread's current context as it was. What the trainer
 * does between update_begin and update_end is queued work:
 *
 *   - cairn_update_begin returns when the update before it has ended on the GPU and no copy is
 *     under way: what is queued after it may write registered tensors.
 *   - cairn_update_end reads the host values and truths, queues on the stream what is its own part
 *     (FP32 steps, copies of anytime tensors), records an event and returns. The state is a cut
 *     once the stream has come there. Work of other streams that writes registered tensors is
 *     joined into the stream before (cudaStreamWaitEvent); anytime tensors are written on it.
 *   - cairn_restore waits for what was queued on the stream before (first values), at most 120 s,
 *     then copies, and returns when every byte is in place. Work of other streams that writes
 *     registered tensors has ended before it is called.
 *
 * Units: bytes, nanoseconds. Step numbers are the caller's; they grow with every update and are
 * what users see. Ownership: strings and arrays passed in are copied. Memory of cairn_alloc belongs
 * to the handle.
 */
#ifndef CAIRN_H
#define CAIRN_H

#include "base/types.h"
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRN_API __attribute__((visibility("default")))
#define CAIRN_VERSION_STRING "0.1.0"

struct cairn; /* one session: one rank of one run, registered with the node's agent */

/* ---- open and close ---- */
/* Where the memory of cairn_alloc is. */
enum cairn_device { CAIRN_DEVICE_HOST = 0, CAIRN_DEVICE_CUDA = 1 };

struct cairn_options {
        size_t size;        /* sizeof(struct cairn_options) */
        const char *run;    /* NULL: $CAIRN_RUN */
        const char *socket; /* NULL: $CAIRN_SOCKET, the system agent, the run's private agent */
        int64_t rank;       /* -1: $RANK, else 0 */
        uint64_t open_timeout_ns; /* 0: 120 s; covers the settlement of a predecessor */
        bool debug_mutation;      /* digest at copy and at gate; a difference fails the next call
                                     ($CAIRN_DEBUG_MUTATION=1) */
        bool without_checkpoints; /* no agent: succeed, every later call is a no-op (asked for
                                     explicitly) */
        enum cairn_device device; /* CUDA: UNSUPPORTED or DEVICE where there is no usable one */
        int32_t device_ordinal; /* among the GPUs that this process sees, as cudaSetDevice has it */
};
#define CAIRN_OPTIONS_INIT \
        { .size = sizeof(struct cairn_options), .rank = -1 }
CAIRN_API void cairn_options_init(struct cairn_options *o, size_t size);

/* o NULL: the defaults. *ret is set even on failure (unless memory is out), so that
 * cairn_error_text works; close it in any case. CAIRN_ERR_API: options without their size.
 * CAIRN_ERR_UNREACHABLE: no agent. CAIRN_ERR_TIMEOUT: the predecessor was not settled in time.
 * CAIRN_ERR_STALE: a newer generation exists. CAIRN_ERR_BUSY: this rank's session is alive, or a
 * trainer of another start of this run. */
CAIRN_API int cairn_open(const struct cairn_options *o, struct cairn **ret);
/* Ends the session without an implied snapshot. NULL allowed. */
CAIRN_API void cairn_close(struct cairn *c);
CAIRN_API const char *cairn_error_text(const struct cairn *c);
CAIRN_API int cairn_exit_code(
        const struct cairn *c); /* of the last error: docs/OPERATIONS.md, 69 for "no agent" */
CAIRN_API const char *cairn_version(void);

/* What the operator decided for this start. Strings live as long as the handle. */
enum cairn_start { CAIRN_START_FRESH = 1, CAIRN_START_RESUME = 2, CAIRN_START_INIT_FROM = 4 };
struct cairn_session {
        size_t size;
        const char *run, *checkpoint; /* checkpoint: to restore or to initialise from, "" if none */
        const char *run_dir;          /* the run's folder in the store: a place for its log */
        int64_t checkpoint_step;      /* -1: none */
        uint64_t generation, restart; /* restart: how often `cairn run` respawned the job */
        uint32_t rank, world;
        enum cairn_start start;
        uint64_t every_steps; /* scheduled snapshots; 0: none */
};
CAIRN_API int cairn_session(struct cairn *c, struct cairn_session *ret);
/* The operator's --override key=value; NULL if key was not overridden. What is neither asked for
 * here nor described (cairn_describe) is a mistake of the operator's: cairn_restore refuses it
 * (API). */
CAIRN_API const char *cairn_override(struct cairn *c, const char *key);

/* ---- registration ---- */
/* Zeroed memory, 256-byte aligned, from a few exportable slabs, on the session's device (the
 * address is then a CUdeviceptr). It outlives the trainer: only what lies there is in a cut that is
 * taken after its death. Freed by cairn_close, before which the trainer's own work on it has ended.
 */
CAIRN_API int cairn_alloc(struct cairn *c, uint64_t bytes, void **ret);
/* CUDA: the stream that updates are queued on, a cudaStream_t or CUstream of the session's GPU;
 * NULL, and before the first call: the default stream, which waits for all other blocking ones.
 * Named before cairn_restore, which waits for it; another one counts from the next
 * cairn_update_end on. The default stream is **unproven** on hardware. API in a session of the
 * host. */
CAIRN_API int cairn_set_stream(struct cairn *c, void *stream);

struct cairn_tensor {
        size_t size; /* sizeof(struct cairn_tensor) */
        const char
                *name; /* unique, UTF-8, 1..65536 bytes; optimizer state binds by name and shape */
        enum cairn_role role;
        enum cairn_dtype dtype; /* runtime */
        enum cairn_dtype
                stored_dtype; /* 0: as dtype. Narrower: opt-in, MOMENT1 and EMA in F16/BF16 only */
        enum cairn_mutates mutates;
        uint32_t rank;                   /* dimensions, 0..CAIRN_RANK_MAX */
        uint64_t shape[CAIRN_RANK_MAX];  /* global, logical */
        int64_t strides[CAIRN_RANK_MAX]; /* elements; all zero: contiguous row-major. Others are
                                            refused */
        void *data; /* NULL for empty tensors; of cairn_alloc or the trainer's own: see there */
        const char *alias_of; /* tied: the same storage as that registered tensor */
        bool replicated;      /* the same on all ranks: one owner writes it */
        bool sharded; /* data holds elements [flat_start, flat_start + flat_count) row-major */
        uint64_t flat_start, flat_count;
};
#define CAIRN_TENSOR_INIT .size = sizeof(struct cairn_tensor)
/* Errors at once, not at the first save: name (empty, not UTF-8, too long, twice), shape overflow,
 * STEP that is not F32, MOMENT2 stored narrower, strided data.
 *
 * Memory that the trainer has from elsewhere (cudaMalloc, malloc, a framework) is registered by its
 * pointer; it stays the trainer's, and stays where it is until cairn_close. It is host memory, or
 * in a session of a GPU also memory of that GPU, or managed memory. Memory of another GPU and
 * pointers that hold less than the tensor, or nothing any more, are refused, as far as the driver
 * tells (**unproven** on hardware). A session with such tensors has no cut after its trainer's
 * death (the agent's log and `cairn status --json` say so at seal): a helper thread in the trainer
 * copies for its saver then, as it does for all memory of a GPU. */
CAIRN_API int cairn_register(struct cairn *c, const struct cairn_tensor *t);
/* A STEP tensor of one element with its int64 truth: the caller increments *truth inside the update
 * (not when the scaler skips) and libcairn writes the FP32 from it in cairn_update_end; on a GPU
 * steps that lie side by side, in the order of their registration, are one copy. Above 2^24
 * FP32 cannot count by one: the FP32 then holds the nearest value, *truth stays exact, is stored
 * and is what a restore brings back. */
CAIRN_API int cairn_register_step(struct cairn *c, const char *name, float *data, int64_t *truth);

/* Host values: read (copied) at cairn_update_end and at the end of cairn_restore, written by
 * cairn_restore. */
CAIRN_API int cairn_state_i64(struct cairn *c, const char *name, int64_t *value);
CAIRN_API int cairn_state_u64(struct cairn *c, const char *name, uint64_t *value);
CAIRN_API int cairn_state_f64(struct cairn *c, const char *name, double *value);
/* *length <= capacity at every update_end. */
CAIRN_API int cairn_state_bytes(struct cairn *c, const char *name, void *value, uint64_t *length,
                                uint64_t capacity);

/* Constant descriptions, fixed at seal and stored with each checkpoint. Keys that begin with
 * "config." or "data." or "model." or "optimizer." must be equal on resume unless the operator
 * overrides them; "free." keys may change (logged old -> new); "numerics." keys may change,
 * bit-exactness is then not claimed. */
CAIRN_API int cairn_describe(struct cairn *c, const char *key, const char *value);

/* Hand the inventory to the agent. NOMEM names the staging that is needed. Called again inside an
 * update when tensors were added (optimizers that make their state at the first step). */
CAIRN_API int cairn_seal(struct cairn *c);

/* Before the first seal, on resume: what is stored (for optimizers that create state lazily,
 * resharding, tools). */
struct cairn_stored {
        size_t size;
        const char *name;
        enum cairn_role role;
        enum cairn_dtype dtype, stored_dtype;
        uint32_t rank;
        uint64_t shape[CAIRN_RANK_MAX];
};
CAIRN_API int cairn_stored_count(struct cairn *c, uint64_t *ret);
CAIRN_API int cairn_stored_tensor(struct cairn *c, uint64_t index, struct cairn_stored *ret);
/* Stored description or NULL. */
CAIRN_API const char *cairn_stored_description(struct cairn *c, const char *key);

/* ---- restore ---- */
struct cairn_report {
        size_t size;
        enum cairn_start start;
        int64_t step; /* 0 when fresh or init-from */
        uint64_t tensors_loaded, tensors_skipped, tensors_converted, bytes;
        uint64_t read_ns, apply_ns;
        bool bit_exact_possible; /* numerics.* descriptions are equal and nothing was converted */
        const char *text; /* the restore line, for the log; lives until the next restore or close */
        const char *json; /* the same as one JSON object */
        uint64_t bytes_read; /* from storage, for `bytes` of tensors */
};
/* Validates everything (all mismatches listed in the error), then touches state: MISMATCH leaves
 * every tensor and value as it was. So does an init-from of which no weight fits; those that were
 * skipped are listed then. Always called once after the first seal; ends in STABLE. */
CAIRN_API int cairn_restore(struct cairn *c, struct cairn_report *ret);

/* ---- the loop ---- */
/* The gate: before the first store of the update. Returns 0 within the gate's deadline, whatever
 * the agent does. CUDA: it first waits until the update before it has ended on the GPU, which is
 * the trainer's own time; after 120 s it goes on, and that update is no cut. */
CAIRN_API int cairn_update_begin(struct cairn *c);
/* After the last store (CUDA: after the last one was queued): publishes host values, makes the
 * state at `step` a cut, rings for scheduled snapshots. DEVICE, NOMEM, TIMEOUT (CUDA): the update
 * has ended all the same, but it, or the one before, is no cut. After an error that the driver
 * keeps there are no more cuts and both calls say so; training is up to the trainer. */
CAIRN_API int cairn_update_end(struct cairn *c, int64_t step);
/* The operator (or a notice) asks the trainer to end at this boundary, after one last snapshot. */
CAIRN_API bool cairn_should_stop(struct cairn *c);

/* ---- snapshots on request ---- */
typedef uint64_t cairn_ticket;
/* Asks for a cut of the present state (inside an update: of the next) and returns at once. */
CAIRN_API int cairn_snapshot(struct cairn *c, cairn_ticket *ret);
/* 0: committed, *ret_step is its step (cut at or after the request). BUSY: still under way. API: no
 * ticket of this session. VOID, NOSPACE, ...: what became of it. Staging full counts as under way
 * for _wait, which asks again within its time; DEVICE from _wait (CUDA): no cut will come any more,
 * for the driver keeps an error. */
CAIRN_API int cairn_snapshot_poll(struct cairn *c, cairn_ticket ticket, int64_t *ret_step);
CAIRN_API int cairn_snapshot_wait(struct cairn *c, cairn_ticket ticket, uint64_t timeout_ns,
                                  int64_t *ret_step);

/* ---- exchange between the ranks of one generation ---- */
/* Small values that ranks tell each other through the agent, for example where they listen, to
 * build a communicator; not for training data. They are seen by the ranks of this generation alone:
 * no key of an earlier one is ever visible, and none stays for the next. Any thread. Each call ends
 * within its timeout_ns and a little (0: it looks once); UNREACHABLE: the agent did not answer in
 * time, STALE: a newer generation has begun. */
enum { CAIRN_EXCHANGE_KEY_BYTES_MAX = 255, CAIRN_EXCHANGE_VALUE_BYTES_MAX = 65536 };
/* Replaces what is there. Keys have 1 to 255 bytes. A rank has put at most 256 keys with 4 MiB
 * together (NOSPACE). What was put outlives a restart of the agent. */
CAIRN_API int cairn_exchange_put(struct cairn *c, const char *key, const void *value,
                                 uint64_t bytes, uint64_t timeout_ns);
/* Waits until some rank has put the key. TIMEOUT: nobody did. A value larger than `capacity` is
 * NOMEM; *ret_bytes is its size even then. */
CAIRN_API int cairn_exchange_get(struct cairn *c, const char *key, void *value, uint64_t capacity,
                                 uint64_t *ret_bytes, uint64_t timeout_ns);
/* Each key that begins with `prefix`, in their order. visit makes no call of libcairn. */
CAIRN_API int cairn_exchange_list(struct cairn *c, const char *prefix,
                                  void (*visit)(const char *key, const void *value, uint64_t bytes,
                                                void *argument),
                                  void *argument, uint64_t timeout_ns);
/* The ranks of this generation whose trainers opened a session and live, ascending; *ret_count may
 * exceed `capacity`: the first ones are given. *ret_generation is the newest of the run. */
CAIRN_API int cairn_exchange_ranks(struct cairn *c, uint32_t *ranks, uint32_t capacity,
                                   uint32_t *ret_count, uint64_t *ret_generation,
                                   uint64_t timeout_ns);

/* The run is complete: recorded after the last commit; `auto` then starts nothing. */
CAIRN_API int cairn_finish(struct cairn *c, const char *reason);

/* Counters of this session, for logs. */
struct cairn_statistics {
        size_t size;
        uint64_t seq, committed_seq, stall_ns, gate_expired, voids, reattached;
        int64_t committed_step;    /* -1: none yet */
        uint64_t gate_deadline_ns; /* how long cairn_update_begin may wait at most */
};
CAIRN_API int cairn_get_statistics(struct cairn *c, struct cairn_statistics *ret);

CAIRN_API const char *cairn_status_name(int status);
CAIRN_API uint64_t cairn_dtype_bytes(enum cairn_dtype dtype); /* 0: unknown */
CAIRN_API const char *cairn_dtype_name(enum cairn_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
