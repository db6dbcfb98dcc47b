/* SPDX-License-Identifier: Apache-2.0
 *
 * Entry of every call, faults, the control table; devices and contexts.
 */
#include "device/cuda_driver.h"
#include "tests/cuda/emu_parts.h"
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { STACK_MAX = 16 };

struct emu emu = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static const char *const names[] = {
#define EMU_NAME(name, symbol, since, parameters) #symbol,
        CUDA_FUNCTIONS(EMU_NAME)
#undef EMU_NAME
};

struct rule {
        bool set;
        int function; /* -1: any */
        uint64_t nth; /* 0: every */
        enum cuda_result result;
        uint64_t delay_ns;
};
static struct rule fault_rule, delay_rule;
static const char *fault_fired;

static _Thread_local struct cuda_context *stack[STACK_MAX];
static _Thread_local unsigned stack_depth;
static _Thread_local enum cuda_result late;

/* ---- every call ---- */

static bool frees(enum emu_function function) {
        switch (function) {
        case EMU_DevicePrimaryCtxRelease:
        case EMU_CtxPopCurrent:
        case EMU_MemFree:
        case EMU_MemRelease:
        case EMU_MemAddressFree:
        case EMU_MemUnmap:
        case EMU_MemHostUnregister:
        case EMU_StreamDestroy:
        case EMU_EventDestroy:
        case EMU_ModuleUnload:
                return true;
        default:
                return false;
        }
}

static bool met(struct rule *rule, enum emu_function function) {
        if (!rule->set || (rule->function >= 0 && rule->function != (int) function))
                return false;
        if (rule->nth == 0)
                return true;
        if (--rule->nth > 0)
                return false;
        rule->set = false;
        return true;
}

/* What the call may not even begin with. */
static enum cuda_result refusal(enum emu_needs needs) {
        struct cuda_context *context = emu_current();
        if (needs == EMU_NOTHING)
                return CUDA_OK;
        if (emu.pid != getpid())
                return CUDA_NOT_INITIALIZED;
        if (needs == EMU_STARTED)
                return CUDA_OK;
        if (!context)
                return CUDA_INVALID_CONTEXT;
        if (context->references == 0)
                return CUDA_CONTEXT_IS_DESTROYED;
        if (context->sticky != CUDA_OK)
                emu_settle(context);
        return context->sticky;
}

static void pause_ns(uint64_t duration_ns) {
        struct timespec t = {.tv_sec = (time_t) (duration_ns / NSEC_PER_SEC),
                             .tv_nsec = (long) (duration_ns % NSEC_PER_SEC)};
        while (nanosleep(&t, &t) < 0 && errno == EINTR)
                ;
}

/* What a correct caller never gets. */
static bool is_refusal(enum cuda_result result) {
        return result == CUDA_INVALID_VALUE || result == CUDA_INVALID_HANDLE ||
               result == CUDA_INVALID_CONTEXT || result == CUDA_CONTEXT_IS_DESTROYED;
}

static enum cuda_result injected(enum emu_function function) {
        if (!met(&fault_rule, function))
                return CUDA_OK;
        fault_fired = names[function];
        if (cuda_result_is_sticky(fault_rule.result) && emu_current()) {
                emu_current()->sticky = fault_rule.result;
                emu_settle(emu_current());
        }
        return fault_rule.result;
}

/* Whether the work is done decides how often they are asked. */
static bool is_question(enum emu_function function) {
        return function == EMU_StreamQuery || function == EMU_EventQuery;
}

enum cuda_result emu_answer(enum emu_function function, bool done) {
        return done ? injected(function) : CUDA_NOT_READY;
}

enum cuda_result emu_enter(enum emu_function function, enum emu_needs needs) {
        /* A fork while another thread was in here left the lock held. */
        if (emu.pid != 0 && emu.pid != getpid())
                return CUDA_NOT_INITIALIZED;
        (void) pthread_mutex_lock(&emu.lock);
        if (met(&delay_rule, function)) {
                uint64_t delay_ns = delay_rule.delay_ns;
                (void) pthread_mutex_unlock(&emu.lock);
                pause_ns(delay_ns);
                (void) pthread_mutex_lock(&emu.lock);
        }
        late = CUDA_OK;
        enum cuda_result result = refusal(needs);
        if (is_refusal(result))
                emu.refused++;
        enum cuda_result fault = is_question(function) ? CUDA_OK : injected(function);
        if (frees(function))
                late = fault;
        else if (fault != CUDA_OK)
                result = fault;
        if (result != CUDA_OK)
                (void) pthread_mutex_unlock(&emu.lock);
        return result;
}

enum cuda_result emu_leave(enum cuda_result result) {
        if (is_refusal(result))
                emu.refused++;
        (void) pthread_mutex_unlock(&emu.lock);
        return result == CUDA_OK ? late : result;
}

struct cuda_context *emu_current(void) {
        return stack_depth > 0 ? stack[stack_depth - 1] : NULL;
}

/* Far from anything that is mapped: a handle that is taken for an address faults. */
cuda_handle emu_new_handle(void) {
        return 0xc0de000000000000ULL + ++emu.handle_last * 16;
}

void *emu_new(size_t bytes) {
        void *p = calloc(1, bytes);
        if (!p)
                abort();
        return p;
}

void emu_wait(void) {
        (void) pthread_cond_wait(&emu.changed, &emu.lock);
}

/* ---- control ---- */

static int function_of(const char *name) {
        if (!name || strcmp(name, "*") == 0)
                return -1;
        for (int i = 0; i < EMU_FUNCTION_COUNT; i++)
                if (strcmp(names[i], name) == 0)
                        return i;
        (void) fprintf(stderr, "emulated driver: there is no function %s\n", name);
        abort();
}

static void control_fault(const char *function, uint64_t nth, enum cuda_result result) {
        (void) pthread_mutex_lock(&emu.lock);
        fault_fired = NULL;
        fault_rule = (struct rule){
                .set = nth > 0, .function = function_of(function), .nth = nth, .result = result};
        (void) pthread_mutex_unlock(&emu.lock);
}

static const char *control_fired(void) {
        (void) pthread_mutex_lock(&emu.lock);
        const char *name = fault_fired;
        (void) pthread_mutex_unlock(&emu.lock);
        return name;
}

static void control_delay(const char *function, uint64_t nth, uint64_t delay_ns) {
        (void) pthread_mutex_lock(&emu.lock);
        delay_rule = (struct rule){.set = delay_ns > 0,
                                   .function = function_of(function),
                                   .nth = nth,
                                   .delay_ns = delay_ns};
        (void) pthread_mutex_unlock(&emu.lock);
}

static void control_break(uint64_t nth, enum cuda_result result) {
        (void) pthread_mutex_lock(&emu.lock);
        emu.break_nth = nth;
        emu.break_result = result;
        (void) pthread_mutex_unlock(&emu.lock);
}

static void control_lack(int attribute) {
        (void) pthread_mutex_lock(&emu.lock);
        emu.lacks = attribute;
        (void) pthread_mutex_unlock(&emu.lock);
}

static void control_manage(void *address) {
        (void) pthread_mutex_lock(&emu.lock);
        emu_mapping_of((uintptr_t) address)->managed = true;
        (void) pthread_mutex_unlock(&emu.lock);
}

static void control_hold(bool held) {
        (void) pthread_mutex_lock(&emu.lock);
        emu.held = held;
        (void) pthread_cond_broadcast(&emu.changed);
        (void) pthread_mutex_unlock(&emu.lock);
}

static void control_counts(struct emu_counts *ret) {
        *ret = (struct emu_counts){0};
        (void) pthread_mutex_lock(&emu.lock);
        for (int i = 0; i < EMU_DEVICES_MAX; i++)
                ret->contexts += emu.devices[i].references;
        for (struct emu_allocation *a = emu.allocations; a; a = a->next)
                ret->allocations++;
        for (struct emu_reservation *r = emu.reservations; r; r = r->next)
                ret->reservations++;
        for (struct emu_mapping *m = emu.mappings; m; m = m->next)
                ret->mappings++;
        for (struct emu_registration *r = emu.registrations; r; r = r->next)
                ret->registrations++;
        emu_count_objects(ret);
        ret->copies = emu.copies;
        ret->pageable_copies = emu.pageable_copies;
        ret->abandoned = emu.abandoned;
        ret->refused = emu.refused;
        (void) pthread_mutex_unlock(&emu.lock);
}

static void control_mappings(void (*each)(void *address, size_t bytes)) {
        (void) pthread_mutex_lock(&emu.lock);
        for (struct emu_mapping *m = emu.mappings; m; m = m->next)
                each((void *) (uintptr_t) m->address, m->bytes);
        (void) pthread_mutex_unlock(&emu.lock);
}

static void control_reset(void) {
        control_fault(NULL, 0, CUDA_OK);
        control_delay(NULL, 0, 0);
        control_break(0, CUDA_OK);
        control_lack(0);
        control_hold(false);
        (void) pthread_mutex_lock(&emu.lock);
        for (int i = 0; i < EMU_DEVICES_MAX; i++) {
                emu_context_ends(&emu.devices[i]);
                emu.devices[i].references = 0;
                emu.devices[i].sticky = CUDA_OK;
        }
        emu_memory_reset();
        emu.copies = emu.pageable_copies = emu.abandoned = emu.refused = 0;
        stack_depth = 0;
        (void) pthread_mutex_unlock(&emu.lock);
}

__attribute__((visibility("default"))) extern const struct emu_control emu_control;
const struct emu_control emu_control = {
        .fault = control_fault,
        .fired = control_fired,
        .delay = control_delay,
        .break_operation = control_break,
        .lack = control_lack,
        .manage = control_manage,
        .hold = control_hold,
        .counts = control_counts,
        .mappings = control_mappings,
        .reset = control_reset,
};

static uint64_t number(const char *name, uint64_t without) {
        const char *text = getenv(name);
        return text && text[0] ? strtoull(text, NULL, 10) : without;
}

/* "cuMemMap:2:100" */
static bool rule_of(const char *name, char function[64], uint64_t *nth, uint64_t *value) {
        const char *text = getenv(name);
        unsigned long long n, v;
        if (!text || sscanf(text, "%63[^:]:%llu:%llu", function, &n, &v) != 3)
                return false;
        *nth = n;
        *value = v;
        return true;
}

__attribute__((constructor)) static void read_environment(void) {
        char function[64];
        uint64_t nth, value;
        emu.device_count = (int) number("CAIRN_EMU_DEVICES", 1);
        emu.version = (int) number("CAIRN_EMU_VERSION", 12040);
        emu.lacks = (int) number("CAIRN_EMU_LACKS", 0);
        emu.memory_bytes = number("CAIRN_EMU_MEMORY", 4096) * MiB;
        emu.granularity = number("CAIRN_EMU_GRANULARITY", 2048) * KiB;
        emu.latency_ns = number("CAIRN_EMU_LATENCY", 50) * 1000;
        if (emu.device_count > EMU_DEVICES_MAX)
                emu.device_count = EMU_DEVICES_MAX;
        for (int i = 0; i < EMU_DEVICES_MAX; i++)
                emu.devices[i].device = i;
        if (rule_of("CAIRN_EMU_FAULT", function, &nth, &value))
                control_fault(function, nth, (enum cuda_result) value);
        if (rule_of("CAIRN_EMU_DELAY", function, &nth, &value))
                control_delay(function, nth, value * NSEC_PER_MSEC);
}

/* ---- start and errors ---- */

static const struct {
        enum cuda_result result;
        const char *name;
} results[] = {{CUDA_OK, "CUDA_SUCCESS"},
#define EMU_RESULT(name, number) {CUDA_##name, "CUDA_ERROR_" #name},
               CUDA_RESULTS(EMU_RESULT) CUDA_RESULTS_NEWER(EMU_RESULT)
#undef EMU_RESULT
};

static const char *name_of(enum cuda_result result) {
        for (size_t i = 0; i < sizeof results / sizeof *results; i++)
                if (results[i].result == result)
                        return results[i].name;
        return NULL;
}

enum cuda_result cuGetErrorName(enum cuda_result result, const char **name) {
        EMU_ENTER(GetErrorName, EMU_NOTHING);
        *name = name_of(result);
        return emu_leave(*name ? CUDA_OK : CUDA_INVALID_VALUE);
}

enum cuda_result cuGetErrorString(enum cuda_result result, const char **text) {
        EMU_ENTER(GetErrorString, EMU_NOTHING);
        *text = name_of(result) ? "as the emulated driver has it" : NULL;
        return emu_leave(*text ? CUDA_OK : CUDA_INVALID_VALUE);
}

enum cuda_result cuInit(unsigned flags) {
        EMU_ENTER(Init, EMU_NOTHING);
        if (flags != 0)
                return emu_leave(CUDA_INVALID_VALUE);
        if (emu.device_count == 0)
                return emu_leave(CUDA_NO_DEVICE);
        emu.pid = getpid();
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDriverGetVersion(int *version) {
        EMU_ENTER(DriverGetVersion, EMU_NOTHING);
        if (!version)
                return emu_leave(CUDA_INVALID_VALUE);
        *version = emu.version;
        return emu_leave(CUDA_OK);
}

/* ---- devices ---- */

static bool is_device(int device) {
        return device >= 0 && device < emu.device_count;
}

enum cuda_result cuDeviceGetCount(int *count) {
        EMU_ENTER(DeviceGetCount, EMU_STARTED);
        *count = emu.device_count;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDeviceGet(int *device, int ordinal) {
        EMU_ENTER(DeviceGet, EMU_STARTED);
        if (!is_device(ordinal))
                return emu_leave(CUDA_INVALID_DEVICE);
        *device = ordinal;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDeviceGetName(char *name, int bytes, int device) {
        EMU_ENTER(DeviceGetName, EMU_STARTED);
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        if (bytes <= 0)
                return emu_leave(CUDA_INVALID_VALUE);
        (void) snprintf(name, (size_t) bytes, "emulated GPU");
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDeviceGetUuid_v2(struct cuda_uuid *uuid, int device) {
        EMU_ENTER(DeviceGetUuid, EMU_STARTED);
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        *uuid = (struct cuda_uuid){"emulated GPU"};
        uuid->bytes[15] = (char) device;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDeviceGetPCIBusId(char *name, int bytes, int device) {
        EMU_ENTER(DeviceGetPCIBusId, EMU_STARTED);
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        if (bytes < 13)
                return emu_leave(CUDA_INVALID_VALUE);
        (void) snprintf(name, (size_t) bytes, "0000:%02x:00.0", (unsigned) device + 1);
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDeviceTotalMem_v2(size_t *bytes, int device) {
        EMU_ENTER(DeviceTotalMem, EMU_STARTED);
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        *bytes = emu.memory_bytes;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDeviceGetAttribute(int *value, enum cuda_attribute attribute, int device) {
        EMU_ENTER(DeviceGetAttribute, EMU_STARTED);
        static const struct {
                enum cuda_attribute attribute;
                int value;
        } attributes[] = {
                {CUDA_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
                {CUDA_ATTRIBUTE_INTEGRATED, 0},
                {CUDA_ATTRIBUTE_COMPUTE_MODE, 0},
                {CUDA_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
                {CUDA_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
                {CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 8},
                {CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
                {CUDA_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
                {CUDA_ATTRIBUTE_VMM_SUPPORTED, 1},
                {CUDA_ATTRIBUTE_POSIX_FD_SUPPORTED, 1},
        };
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
                if (attributes[i].attribute == attribute) {
                        *value = emu.lacks == (int) attribute ? 0 : attributes[i].value;
                        return emu_leave(CUDA_OK);
                }
        return emu_leave(CUDA_INVALID_VALUE);
}

/* ---- contexts ---- */

static bool is_live(const struct cuda_context *context) {
        for (int i = 0; i < emu.device_count; i++)
                if (context == &emu.devices[i])
                        return context->references > 0;
        return false;
}

enum cuda_result cuDevicePrimaryCtxRetain(struct cuda_context **context, int device) {
        EMU_ENTER(DevicePrimaryCtxRetain, EMU_STARTED);
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        if (emu.devices[device].sticky != CUDA_OK)
                return emu_leave(emu.devices[device].sticky);
        emu.devices[device].references++;
        *context = &emu.devices[device];
        return emu_leave(CUDA_OK);
}

enum cuda_result cuDevicePrimaryCtxRelease_v2(int device) {
        EMU_ENTER(DevicePrimaryCtxRelease, EMU_STARTED);
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        struct cuda_context *context = &emu.devices[device];
        if (context->references == 0)
                return emu_leave(CUDA_INVALID_CONTEXT);
        if (--context->references == 0)
                emu_context_ends(context);
        return emu_leave(context->sticky);
}

enum cuda_result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
        EMU_ENTER(DevicePrimaryCtxGetState, EMU_STARTED);
        if (!is_device(device))
                return emu_leave(CUDA_INVALID_DEVICE);
        *flags = 0;
        *active = emu.devices[device].references > 0;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuCtxPushCurrent_v2(struct cuda_context *context) {
        EMU_ENTER(CtxPushCurrent, EMU_STARTED);
        if (!is_live(context) || stack_depth == STACK_MAX)
                return emu_leave(CUDA_INVALID_CONTEXT);
        stack[stack_depth++] = context;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuCtxPopCurrent_v2(struct cuda_context **context) {
        EMU_ENTER(CtxPopCurrent, EMU_STARTED);
        if (stack_depth == 0)
                return emu_leave(CUDA_INVALID_CONTEXT);
        struct cuda_context *popped = stack[--stack_depth];
        if (context)
                *context = popped;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuCtxSetCurrent(struct cuda_context *context) {
        EMU_ENTER(CtxSetCurrent, EMU_STARTED);
        if (context && !is_live(context))
                return emu_leave(CUDA_INVALID_CONTEXT);
        if (stack_depth > 0)
                stack_depth--;
        if (context)
                stack[stack_depth++] = context;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuCtxGetCurrent(struct cuda_context **context) {
        EMU_ENTER(CtxGetCurrent, EMU_STARTED);
        *context = emu_current();
        return emu_leave(CUDA_OK);
}

enum cuda_result cuCtxGetDevice(int *device) {
        EMU_ENTER(CtxGetDevice, EMU_CONTEXT);
        *device = emu_current()->device;
        return emu_leave(CUDA_OK);
}
