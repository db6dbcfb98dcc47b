/* SPDX-License-Identifier: Apache-2.0
 *
 * emu_parts.h - what the parts of the emulated driver share. One lock guards everything; memory is
 * copied and kernels run without it, while what they use is counted as in use.
 *
 *     enum cuda_result cuMemX(...) {
 *             EMU_ENTER(MemX, EMU_CONTEXT);        // returns unless all is well; takes the lock
 *             return emu_leave(memory_x(...));     // gives the lock back
 *     }
 */
#ifndef CAIRN_TESTS_CUDA_EMU_PARTS_H
#define CAIRN_TESTS_CUDA_EMU_PARTS_H

#include "base/limits.h"
#include "tests/cuda/emu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EMU_DEVICES_MAX 4

#define EMU_DECLARE(name, symbol, since, parameters) \
        __attribute__((visibility("default"))) enum cuda_result symbol parameters;
CUDA_FUNCTIONS(EMU_DECLARE)
#undef EMU_DECLARE

/* clang-format off */
enum emu_function {
#define EMU_NUMBER(name, symbol, since, parameters) EMU_##name,
        CUDA_FUNCTIONS(EMU_NUMBER)
#undef EMU_NUMBER
        EMU_FUNCTION_COUNT
};
/* clang-format on */

struct cuda_context {
        int device;
        unsigned references;
        enum cuda_result sticky;
};

/* Lists are singly linked and short. */
struct emu_allocation {
        struct emu_allocation *next;
        cuda_handle handle; /* 0: released, mappings keep it */
        struct cuda_allocation properties;
        size_t bytes;
        unsigned mapping_count;
        int fd;
        bool imported;
};
struct emu_reservation {
        struct emu_reservation *next;
        cuda_address address;
        size_t bytes;
        bool plain; /* of cuMemAlloc */
};
struct emu_mapping {
        struct emu_mapping *next;
        cuda_address address;
        size_t bytes;
        struct emu_allocation *allocation;
        unsigned char *shadow;
        enum cuda_access_flags access[EMU_DEVICES_MAX];
        unsigned users;
        bool plain, open, managed;
};
struct emu_registration {
        struct emu_registration *next;
        uintptr_t address;
        size_t bytes;
};

struct emu_event {
        struct emu_event *next;
        struct cuda_event *handle; /* NULL: destroyed, operations keep it */
        struct cuda_context *context;
        uint64_t recorded, completed;
        unsigned users;
};

enum emu_operation_kind { EMU_COPY, EMU_FILL, EMU_RECORD, EMU_WAIT, EMU_KERNEL };
struct emu_operation {
        struct emu_operation *next;
        enum emu_operation_kind kind;
        cuda_address target, source;
        size_t bytes;
        unsigned value, width; /* FILL: bytes of the value */
        /* as it was when it was asked for: is it the device's, was all of the host's registered */
        bool device_target, device_source, pinned;
        struct emu_event *event;
        uint64_t generation;
        const struct emu_kernel *kernel;
        struct emu_launch launch;
        void **parameters; /* one block with the values behind it */
};
struct emu_stream {
        struct emu_stream *next;
        struct cuda_stream *handle; /* NULL: destroyed, ends when it is empty */
        struct cuda_context *context;
        struct emu_operation *first, **last;
        uint64_t queued, completed;
        pthread_t thread;
        bool ended, running;
};

struct emu_function_object {
        struct emu_function_object *next;
        struct cuda_function *handle;
        const struct emu_kernel *kernel;
        unsigned dynamic_shared_bytes_max;
};
struct emu_module {
        struct emu_module *next;
        struct cuda_module *handle;
        struct cuda_context *context;
        const struct emu_image *image;
        struct emu_function_object *functions;
};

struct emu {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        int pid; /* of the process that called cuInit; 0: nobody did */
        struct cuda_context devices[EMU_DEVICES_MAX];
        uint64_t memory_used[EMU_DEVICES_MAX];
        uint64_t handle_last;
        bool held, kernel_runs;
        struct emu_allocation *allocations;
        struct emu_reservation *reservations;
        struct emu_mapping *mappings;
        struct emu_registration *registrations;
        struct emu_stream *streams;
        struct emu_event *events;
        struct emu_module *modules;
        uint64_t copies, pageable_copies, abandoned, refused;
        uint64_t break_nth;
        enum cuda_result break_result;
        /* from the environment */
        int device_count, version, lacks;
        uint64_t memory_bytes, granularity, latency_ns;
};
extern struct emu emu;

/* What a call needs beside its arguments: nothing, cuInit, a context of this thread's. */
enum emu_needs { EMU_NOTHING, EMU_STARTED, EMU_CONTEXT };
enum cuda_result emu_enter(enum emu_function function, enum emu_needs needs);
enum cuda_result emu_answer(enum emu_function function, bool done); /* of a query */
enum cuda_result emu_leave(enum cuda_result result);
#define EMU_ENTER(name, needs)                                                 \
        do {                                                                   \
                enum cuda_result enter_result_ = emu_enter(EMU_##name, needs); \
                if (enter_result_ != CUDA_OK)                                  \
                        return enter_result_;                                  \
        } while (0)

/* The rest is called with the lock held. */
struct cuda_context *emu_current(void);
cuda_handle emu_new_handle(void);
void *emu_new(size_t bytes); /* zeroed; the process ends where there is no memory */
void emu_wait(void);         /* until something changed */

/* Memory. A range that begins in a mapping, or NULL; it must end there for _range. */
struct emu_mapping *emu_mapping_of(cuda_address address);
bool emu_is_reserved(cuda_address address, size_t bytes);
bool emu_is_registered(cuda_address address, size_t bytes);
/* May the device read or write all of it? Host memory: yes. */
bool emu_may_access(int device, cuda_address address, size_t bytes, bool write);
void emu_open_for_kernel(int device); /* one at a time */
void emu_close_after_kernel(void);
void emu_memory_reset(void);

/* Streams: `operation` becomes the stream's. */
struct emu_stream *emu_stream_of(struct cuda_stream *handle);
void emu_queue(struct emu_stream *s, struct emu_operation *operation);
/* After a fatal error: what runs has ended, and touches no memory any more. */
void emu_settle(const struct cuda_context *context);
void emu_drain_context(struct cuda_context *context);
void emu_context_ends(struct cuda_context *context); /* its streams, events, modules */
void emu_modules_end(struct cuda_context *context);
void emu_count_objects(struct emu_counts *ret);

#endif
