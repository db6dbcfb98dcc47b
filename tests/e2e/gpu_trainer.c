/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_trainer - a trainer whose state lies on a GPU, the emulated one (tests/cuda/emu.h): its
 * kernels are C functions. Each update makes every value from the former one, so that whatever a
 * restore brings back wrong shows in every later line of the log.
 *
 *     cairn run ... -- gpu_trainer --log FILE [--memory slabs|driver|host] [--values N] [--steps N]
 *                      [--step-ms T] [--hold-at S] [--holds N] [--hold-more M] [--break-at S]
 *                      [--ordinal N] [--device host] [--marks bf16]
 *
 * slabs: memory of cairn_alloc; driver: of cuMemAlloc, registered by its pointer; host: malloc'ed,
 * likewise. Weights, a half precision copy, a moment, statistics that change outside of updates
 * (anytime) and three step counters side by side. --hold-at: stands still after that step in its
 * first N lives (1 unless given), until it is killed, in each M steps later than in the one before.
 * --break-at: from that step on the driver keeps an error, in its first life, and it ends with
 * status 3 if libcairn says so. Of several ranks each has a log, FILE.RANK, and tensors of its own.
 * --device host: a session of the host whose state is plain memory. A line of the log:
 * {"step":S,"loss":CRC32C,"seconds":0}.
 */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "client/cairn.h"
#include "device/cuda_driver.h"
#include "format/crc32c.h"
#include "tests/cuda/emu.h"
#include <dlfcn.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

enum { COUNTERS = 3, STATISTICS = 64, BROKEN = 3, FIRST_VALUES = 1000 };

/* ---- what the GPU does ---- */

struct state {
        float *weights, *moments, *statistics, *counters;
        uint16_t *halves;
        void *marks;    /* 0, 1, 2 ...: never written again */
        uint64_t count; /* of weights, moments and halves */
};

static uint32_t mix(uint32_t x) {
        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        return x ^ (x >> 16);
}

static uint32_t bits_of(float x) {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        return bits;
}

/* From the former values and the counter, which libcairn writes. Finite, whatever comes. */
static enum cuda_result run_update(const struct emu_launch *launch, void **parameters) {
        const struct state *s = parameters[0];
        (void) launch;
        for (uint64_t i = 0; i < s->count; i++) {
                uint32_t h = mix(bits_of(s->weights[i]) + bits_of(s->counters[0]) + (uint32_t) i);
                s->moments[i] = (float) (h >> 8) / 16777216.0f;
                s->weights[i] = s->moments[i] - (float) (mix(h ^ s->halves[i]) & 0xffff) / 65536.0f;
                s->halves[i] = (uint16_t) (h & 0x3fff);
        }
        return CUDA_OK;
}

static enum cuda_result run_statistics(const struct emu_launch *launch, void **parameters) {
        const struct state *s = parameters[0];
        (void) launch;
        for (uint64_t i = 0; i < STATISTICS; i++)
                s->statistics[i] = 0.5f * (s->statistics[i] + s->weights[i % s->count]);
        return CUDA_OK;
}

static enum cuda_result run_crash(const struct emu_launch *launch, void **parameters) {
        (void) launch;
        (void) parameters;
        return CUDA_ILLEGAL_ADDRESS;
}

enum kernel { UPDATE_KERNEL, STATISTICS_KERNEL, CRASH_KERNEL, KERNELS };
static const size_t parameter_bytes[] = {sizeof(struct state)};
static const struct emu_kernel kernels[KERNELS] = {
        [UPDATE_KERNEL] = {"update", run_update, 1, parameter_bytes},
        [STATISTICS_KERNEL] = {"statistics", run_statistics, 1, parameter_bytes},
        [CRASH_KERNEL] = {"crash", run_crash, 1, parameter_bytes},
};
static const struct emu_image image = {EMU_IMAGE_MAGIC, KERNELS, kernels};

/* ---- the trainer ---- */

struct trainer {
        const char *log, *memory;
        uint64_t values;
        int64_t steps, step_ms, hold_at, holds, hold_more, break_at, ordinal;
        bool on_host, is_first;
        uint32_t rank, world;
        int64_t restart;
        uint64_t seq; /* of what was restored */
        struct cairn *cairn;
        const struct cuda_driver *cuda;
        struct cuda_context *context;
        struct cuda_stream *stream;
        struct cuda_function *functions[KERNELS];
        struct state s;
        int64_t truths[COUNTERS], samples;
        bool narrow; /* marks are BF16, not FP32 */
};

static int complain(const struct trainer *t, const char *what) {
        fprintf(stderr, "gpu_trainer: %s: %s\n", what, cairn_error_text(t->cairn));
        int code = cairn_exit_code(t->cairn);
        return code ? code : 70;
}

static int driver_said(enum cuda_result result, const char *what) {
        if (result == CUDA_OK)
                return 0;
        fprintf(stderr, "gpu_trainer: %s: the driver says %d\n", what, (int) result);
        return 71;
}
#define IS_OK(call)                                    \
        do {                                           \
                int is_ok_ = driver_said(call, #call); \
                if (is_ok_)                            \
                        return is_ok_;                 \
        } while (0)

static int open_gpu(struct trainer *t) {
        struct cuda_module *module;
        struct cairn_error e = CAIRN_ERROR_INIT;
        if (cuda_driver_load(&t->cuda, &e) < 0)
                return 69;
        IS_OK(t->cuda->DevicePrimaryCtxRetain(&t->context, (int) t->ordinal));
        IS_OK(t->cuda->CtxSetCurrent(t->context));
        IS_OK(t->cuda->StreamCreateWithPriority(&t->stream, CUDA_STREAM_NON_BLOCKING, 0));
        IS_OK(t->cuda->ModuleLoadData(&module, &image));
        for (int i = 0; i < KERNELS; i++)
                IS_OK(t->cuda->ModuleGetFunction(&t->functions[i], module, kernels[i].name));
        return cairn_set_stream(t->cairn, t->stream) < 0 ? complain(t, "set stream") : 0;
}

static int allocate(struct trainer *t, uint64_t bytes, void *ret) {
        cuda_address address;
        if (strcmp(t->memory, "slabs") == 0)
                return cairn_alloc(t->cairn, bytes, ret) < 0 ? complain(t, "allocate") : 0;
        if (strcmp(t->memory, "host") == 0 || t->on_host) {
                *(void **) ret = calloc(1, bytes);
                return 0;
        }
        IS_OK(t->cuda->MemAlloc(&address, bytes));
        *(void **) ret = (void *) (uintptr_t) address;
        IS_OK(t->cuda->MemsetD8Async(address, 0, bytes, t->stream));
        return driver_said(t->cuda->StreamSynchronize(t->stream), "clear");
}

static int add(struct trainer *t, const char *base, enum cairn_role role, enum cairn_dtype dtype,
               uint64_t count, enum cairn_mutates mutates, void *data) {
        char name[32];
        (void) snprintf(name, sizeof name, "r%u.%s", t->rank, base);
        struct cairn_tensor tensor = {CAIRN_TENSOR_INIT,  .name = name, .role = role,
                                      .dtype = dtype,     .rank = 1,    .shape = {count},
                                      .mutates = mutates, .data = data};
        return cairn_register(t->cairn, &tensor) < 0 ? complain(t, name) : 0;
}

static uint64_t mark_bytes(const struct trainer *t) {
        return STATISTICS * (t->narrow ? sizeof(uint16_t) : sizeof(float));
}

static void make_marks(const struct trainer *t, void *marks) {
        for (int i = 0; i < STATISTICS; i++) {
                uint32_t bits = bits_of((float) i); /* few enough bits for either */
                if (t->narrow)
                        ((uint16_t *) marks)[i] = (uint16_t) (bits >> 16);
                else
                        ((uint32_t *) marks)[i] = bits;
        }
}

/* A restart has none before its restore: that is to bring them. */
static int write_marks(const struct trainer *t) {
        struct cairn_session session = {.size = sizeof session};
        uint32_t marks[STATISTICS];
        if (cairn_session(t->cairn, &session) < 0 || session.start != CAIRN_START_FRESH)
                return 0;
        make_marks(t, marks);
        if (t->on_host) {
                memcpy(t->s.marks, marks, mark_bytes(t));
                return 0;
        }
        IS_OK(t->cuda->MemcpyAsync((uintptr_t) t->s.marks, (uintptr_t) marks, mark_bytes(t),
                                   t->stream));
        return driver_said(t->cuda->StreamSynchronize(t->stream), "marks");
}

static int check_marks(const struct trainer *t) {
        uint32_t expected[STATISTICS], found[STATISTICS];
        make_marks(t, expected);
        memcpy(found, expected, sizeof found);
        if (t->on_host)
                memcpy(found, t->s.marks, mark_bytes(t));
        else {
                memset(found, 0xff, mark_bytes(t));
                IS_OK(t->cuda->MemcpyAsync((uintptr_t) found, (uintptr_t) t->s.marks, mark_bytes(t),
                                           t->stream));
                IS_OK(t->cuda->StreamSynchronize(t->stream));
        }
        if (memcmp(found, expected, mark_bytes(t)) == 0)
                return 0;
        fprintf(stderr, "gpu_trainer: the marks are not what they were\n");
        return 72;
}

static int declare(struct trainer *t) {
        struct state *s = &t->s;
        struct cairn_session session = {.size = sizeof session};
        int r = cairn_session(t->cairn, &session) < 0 ? complain(t, "session") : 0;
        t->rank = session.rank;
        t->world = session.world;
        t->restart = (int64_t) session.restart;
        s->count = t->values;
        r = r ? r : allocate(t, t->values * sizeof(float), &s->weights);
        r = r ? r : allocate(t, t->values * sizeof(float), &s->moments);
        r = r ? r : allocate(t, t->values * sizeof(uint16_t), &s->halves);
        r = r ? r : allocate(t, STATISTICS * sizeof(float), &s->statistics);
        r = r ? r : allocate(t, STATISTICS * sizeof(float), &s->marks);
        r = r ? r : write_marks(t);
        r = r ? r : allocate(t, COUNTERS * sizeof(float), &s->counters);
        r = r ? r : add(t, "w", CAIRN_PARAMETER, CAIRN_F32, t->values, CAIRN_IN_UPDATE, s->weights);
        r = r ? r : add(t, "m", CAIRN_MOMENT1, CAIRN_F32, t->values, CAIRN_IN_UPDATE, s->moments);
        r = r ? r : add(t, "h", CAIRN_PARAMETER, CAIRN_BF16, t->values, CAIRN_IN_UPDATE, s->halves);
        r = r ? r
              : add(t, "stat", CAIRN_BUFFER, CAIRN_F32, STATISTICS, CAIRN_ANYTIME, s->statistics);
        r = r ? r
              : add(t, "marks", CAIRN_BUFFER, t->narrow ? CAIRN_BF16 : CAIRN_F32, STATISTICS,
                    CAIRN_IN_UPDATE, s->marks);
        for (int i = 0; i < COUNTERS && !r; i++) {
                char name[16];
                (void) snprintf(name, sizeof name, "step.%d", i);
                if (cairn_register_step(t->cairn, name, s->counters + i, &t->truths[i]) < 0)
                        r = complain(t, name);
        }
        if (!r && (cairn_state_i64(t->cairn, "samples", &t->samples) < 0 ||
                   cairn_describe(t->cairn, "config.values", "n") < 0))
                r = complain(t, "declare");
        return r;
}

static int launch(const struct trainer *t, enum kernel which) {
        void *parameters[] = {(void *) (uintptr_t) &t->s};
        if (t->on_host)
                return (int) kernels[which].run(NULL, parameters);
        return driver_said(t->cuda->LaunchKernel(t->functions[which], 1, 1, 1, 1, 1, 1, 0,
                                                 t->stream, parameters, NULL),
                           "launch");
}

static int add_digest(const struct trainer *t, const void *data, uint64_t bytes, uint32_t *crc) {
        if (t->on_host) {
                *crc = crc32c(*crc, data, bytes);
                return 0;
        }
        _cleanup_free_ void *copy = malloc(bytes);
        IS_OK(t->cuda->MemcpyAsync((uintptr_t) copy, (uintptr_t) data, bytes, t->stream));
        IS_OK(t->cuda->StreamSynchronize(t->stream));
        *crc = crc32c(*crc, copy, bytes);
        return 0;
}

static int log_step(struct trainer *t, FILE *log, int64_t step) {
        const struct state *s = &t->s;
        uint32_t crc = crc32c(0, t->truths, sizeof t->truths);
        int r = add_digest(t, s->weights, s->count * sizeof(float), &crc);
        r = r ? r : add_digest(t, s->moments, s->count * sizeof(float), &crc);
        r = r ? r : add_digest(t, s->halves, s->count * sizeof(uint16_t), &crc);
        r = r ? r : add_digest(t, s->statistics, STATISTICS * sizeof(float), &crc);
        r = r ? r : add_digest(t, s->counters, COUNTERS * sizeof(float), &crc);
        if (r)
                return r;
        fprintf(log, "{\"step\":%" PRId64 ",\"loss\":%u,\"seconds\":0}\n", step, crc);
        return fflush(log) == 0 ? 0 : 74;
}

/* The lines up to the restored step stay; *ret_last is the last one's. */
static FILE *open_log(const char *path, int64_t step, int64_t *ret_last) {
        FILE *f = fopen(path, "a+e");
        char line[256];
        int64_t at;
        long end = 0;
        *ret_last = 0;
        if (!f)
                return NULL;
        rewind(f);
        while (fgets(line, sizeof line, f) && strchr(line, '\n') &&
               sscanf(line, "{\"step\":%" SCNd64, &at) == 1 && at <= step) {
                end = ftell(f);
                *ret_last = at;
        }
        (void) fflush(f);
        if (ftruncate(fileno(f), end) < 0) {
                (void) fclose(f);
                return NULL;
        }
        return f;
}

static uint64_t published(const struct trainer *t) {
        struct cairn_statistics n = {.size = sizeof n};
        return cairn_get_statistics(t->cairn, &n) < 0 ? UINT64_MAX : n.seq;
}

static int take_step(struct trainer *t, int64_t step) {
        int r = launch(t, STATISTICS_KERNEL); /* forward */
        if (r)
                return r;
        if (t->step_ms)
                clock_system.sleep_ns(clock_system.context, (uint64_t) t->step_ms * NSEC_PER_MSEC);
        if (step == t->break_at && t->is_first) {
                /* The step before is a cut once libcairn has seen that the GPU is done. */
                while (published(t) < t->seq + (uint64_t) step - 1)
                        clock_system.sleep_ns(clock_system.context, NSEC_PER_MSEC);
                if (launch(t, CRASH_KERNEL))
                        return 71;
                /* Gradients are complete before an update begins; what became of them libcairn is
                 * to tell. */
                while (t->cuda->StreamQuery(t->stream) == CUDA_NOT_READY)
                        clock_system.sleep_ns(clock_system.context, NSEC_PER_MSEC);
        }
        if (cairn_update_begin(t->cairn) < 0)
                return complain(t, "begin");
        r = launch(t, UPDATE_KERNEL);
        for (int i = 0; i < COUNTERS; i++)
                t->truths[i] += i + 1;
        t->samples += 7;
        if (r)
                return r;
        return cairn_update_end(t->cairn, step) < 0 ? complain(t, "end") : 0;
}

/* First values that are still on their way when cairn_restore is called: they come before what it
 * brings. */
static int queue_first_values(const struct trainer *t) {
        if (t->on_host || strcmp(t->memory, "host") == 0)
                return 0;
        for (int i = 0; i < FIRST_VALUES; i++)
                IS_OK(t->cuda->MemsetD8Async((uintptr_t) t->s.weights, 0, t->values * sizeof(float),
                                             t->stream));
        return 0;
}

static int train(struct trainer *t) {
        struct cairn_report report = {.size = sizeof report};
        if (cairn_seal(t->cairn) < 0)
                return complain(t, "seal");
        int r = queue_first_values(t);
        if (r)
                return r;
        if (cairn_restore(t->cairn, &report) < 0)
                return complain(t, "start");
        fprintf(stderr, "%s\n", report.text);
        t->is_first = report.start == CAIRN_START_FRESH;
        t->seq = published(t);
        char path[512];
        (void) snprintf(path, sizeof path, "%s", t->log);
        if (t->world > 1)
                (void) snprintf(path, sizeof path, "%s.%u", t->log, t->rank);
        int64_t last;
        _cleanup_fclose_ FILE *log = open_log(path, report.step, &last);
        if (!log)
                return 74;
        if (check_marks(t))
                return 72;
        /* It died between that step's end and its line. */
        if (last < report.step && log_step(t, log, report.step) != 0)
                return 74;
        for (int64_t step = report.step + 1; step <= t->steps; step++) {
                r = cairn_should_stop(t->cairn) ? -1 : take_step(t, step);
                if (r && t->break_at && step >= t->break_at && t->is_first)
                        return BROKEN;
                if (!r)
                        r = log_step(t, log, step);
                if (r == -1)
                        break;
                if (r)
                        return r;
                while (t->restart < t->holds && step == t->hold_at + t->restart * t->hold_more)
                        (void) pause();
        }
        if (cairn_should_stop(t->cairn))
                return 0;
        return cairn_finish(t->cairn, "completed") < 0 ? complain(t, "finish") : 0;
}

static bool take_argument(struct trainer *t, const char *name, const char *value) {
        static const char *const numbers[] = {"--values", "--steps",     "--step-ms",  "--hold-at",
                                              "--holds",  "--hold-more", "--break-at", "--ordinal"};
        int64_t *const targets[] = {
                (int64_t *) &t->values, &t->steps,    &t->step_ms, &t->hold_at, &t->holds,
                &t->hold_more,          &t->break_at, &t->ordinal};
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
                if (strcmp(name, numbers[i]) == 0) {
                        *targets[i] = strtoll(value, NULL, 10);
                        return true;
                }
        if (strcmp(name, "--log") == 0)
                t->log = value;
        else if (strcmp(name, "--memory") == 0)
                t->memory = value;
        else if (strcmp(name, "--marks") == 0)
                t->narrow = strcmp(value, "bf16") == 0;
        else if (strcmp(name, "--device") == 0)
                t->on_host = strcmp(value, "host") == 0;
        else
                return false;
        return true;
}

/* What libcairn and this program hold there: the same after the first snapshot and the last. */
static void tell_held(const struct trainer *t) {
        const struct emu_control *emu = NULL;
        struct emu_counts c;
        void *handle = dlopen(getenv("CAIRN_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
        if (!t->on_host && handle)
                emu = dlsym(handle, "emu_control");
        if (!emu)
                return;
        emu->counts(&c);
        fprintf(stderr,
                "gpu_trainer: %" PRIu64 " registrations, %" PRIu64 " events, %" PRIu64
                " streams of the GPU at the end\n",
                c.registrations, c.events, c.streams);
}

int main(int argc, char **argv) {
        struct trainer t = {.memory = "slabs", .values = 4096, .steps = 20, .holds = 1};
        for (int i = 1; i + 1 < argc; i += 2)
                if (!take_argument(&t, argv[i], argv[i + 1]))
                        return 64;
        if (!t.log)
                return 64;
        struct cairn_options options = CAIRN_OPTIONS_INIT;
        if (!t.on_host)
                options.device = CAIRN_DEVICE_CUDA;
        options.device_ordinal = (int32_t) t.ordinal;
        if (cairn_open(&options, &t.cairn) < 0) {
                int code = complain(&t, "open");
                cairn_close(t.cairn);
                return code;
        }
        int r = t.on_host ? 0 : open_gpu(&t);
        r = r ? r : declare(&t);
        r = r ? r : train(&t);
        if (!t.on_host && t.stream)
                (void) t.cuda->StreamSynchronize(t.stream);
        tell_held(&t);
        cairn_close(t.cairn);
        return r;
}
