/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams are threads that work off their queues in order; events; copies and fills.
 */
#include "tests/cuda/emu_parts.h"
#include <time.h>

static bool is_pending(const struct emu_stream *s) {
        return s->completed != s->queued;
}

/* ---- handles ---- */

static void *work(void *stream);

/* The current context's. NULL: no thread can be started. */
static struct emu_stream *stream_new(struct cuda_stream *handle) {
        struct emu_stream *s = emu_new(sizeof *s);
        s->context = emu_current();
        s->last = &s->first;
        s->handle = handle;
        if (pthread_create(&s->thread, NULL, work, s) != 0) {
                free(s);
                return NULL;
        }
        (void) pthread_detach(s->thread);
        s->next = emu.streams;
        emu.streams = s;
        return s;
}

/* The legacy stream is there as soon as somebody names it; each context has its own. */
struct emu_stream *emu_stream_of(struct cuda_stream *handle) {
        for (struct emu_stream *s = emu.streams; s && handle; s = s->next)
                if (s->handle == handle && s->context == emu_current())
                        return s;
        return handle == CUDA_STREAM_LEGACY ? stream_new(handle) : NULL;
}

static struct emu_event *event_of(struct cuda_event *handle) {
        for (struct emu_event *e = emu.events; e && handle; e = e->next)
                if (e->handle == handle)
                        return e->context == emu_current() ? e : NULL;
        return NULL;
}

static void event_settle(struct emu_event *e) {
        struct emu_event **link = &emu.events;
        if (e->handle || e->users > 0)
                return;
        while (*link != e)
                link = &(*link)->next;
        *link = e->next;
        free(e);
}

void emu_count_objects(struct emu_counts *ret) {
        for (struct emu_stream *s = emu.streams; s; s = s->next) {
                ret->streams++;
                ret->operations += s->queued - s->completed;
        }
        for (struct emu_event *e = emu.events; e; e = e->next)
                ret->events++;
        for (struct emu_module *m = emu.modules; m; m = m->next)
                ret->modules++;
}

/* ---- the stream's thread ---- */

static bool is_host(cuda_address address, size_t bytes) {
        return !emu_is_reserved(address, bytes);
}

/* One side of the copy is host memory that is not page-locked. */
static bool is_pageable(const struct emu_operation *o) {
        return (is_host(o->target, o->bytes) && !emu_is_registered(o->target, o->bytes)) ||
               (is_host(o->source, o->bytes) && !emu_is_registered(o->source, o->bytes));
}

/* Memory that is no longer what it was when the operation was asked for. */
static bool is_gone(const struct emu_operation *o) {
        return (o->device_target && !emu_mapping_of(o->target)) ||
               (o->device_source && !emu_mapping_of(o->source)) || (o->pinned && is_pageable(o));
}

/* A copy touches memory without the lock; what it uses cannot be unmapped meanwhile. */
static unsigned char *begin_use(cuda_address address, struct emu_mapping **ret) {
        struct emu_mapping *m = emu_mapping_of(address);
        *ret = m;
        if (!m)
                return (unsigned char *) (uintptr_t) address;
        m->users++;
        return m->shadow + (address - m->address);
}

static void end_use(struct emu_mapping *m) {
        if (m)
                m->users--;
}

static enum cuda_result run_copy(struct emu_stream *s, struct emu_operation *o) {
        struct emu_mapping *of_target, *of_source;
        int device = s->context->device;
        if (!emu_may_access(device, o->target, o->bytes, true) ||
            !emu_may_access(device, o->source, o->bytes, false) || is_gone(o))
                return CUDA_ILLEGAL_ADDRESS;
        unsigned char *target = begin_use(o->target, &of_target);
        unsigned char *source = begin_use(o->source, &of_source);
        (void) pthread_mutex_unlock(&emu.lock);
        memcpy(target, source, o->bytes);
        (void) pthread_mutex_lock(&emu.lock);
        end_use(of_target);
        end_use(of_source);
        return CUDA_OK;
}

static enum cuda_result run_fill(struct emu_stream *s, struct emu_operation *o) {
        struct emu_mapping *of_target;
        if (!emu_may_access(s->context->device, o->target, o->bytes, true) || is_gone(o))
                return CUDA_ILLEGAL_ADDRESS;
        unsigned char *target = begin_use(o->target, &of_target);
        (void) pthread_mutex_unlock(&emu.lock);
        if (o->width == 1)
                memset(target, (int) o->value, o->bytes);
        for (size_t i = 0; i < o->bytes && o->width == sizeof o->value; i += sizeof o->value)
                memcpy(target + i, &o->value, sizeof o->value);
        (void) pthread_mutex_lock(&emu.lock);
        end_use(of_target);
        return CUDA_OK;
}

static enum cuda_result run_kernel(struct emu_stream *s, struct emu_operation *o) {
        emu_open_for_kernel(s->context->device);
        (void) pthread_mutex_unlock(&emu.lock);
        enum cuda_result result = o->kernel->run(&o->launch, o->parameters);
        (void) pthread_mutex_lock(&emu.lock);
        emu_close_after_kernel();
        return result;
}

static enum cuda_result run(struct emu_stream *s, struct emu_operation *o) {
        if (emu.break_nth > 0 && --emu.break_nth == 0)
                return emu.break_result;
        switch (o->kind) {
        case EMU_COPY:
                return run_copy(s, o);
        case EMU_FILL:
                return run_fill(s, o);
        case EMU_KERNEL:
                return run_kernel(s, o);
        case EMU_RECORD:
                o->event->completed = o->generation;
                return CUDA_OK;
        case EMU_WAIT:
                return CUDA_OK; /* it is taken up when the event is complete */
        }
        return CUDA_UNKNOWN;
}

static void operation_free(struct emu_operation *o) {
        if (o->event) {
                o->event->users--;
                event_settle(o->event);
        }
        free(o->parameters);
        free(o);
}

static bool may_begin(const struct emu_stream *s) {
        const struct emu_operation *o = s->first;
        if (!o)
                return false;
        if (s->ended || s->context->sticky != CUDA_OK)
                return true; /* to be dropped */
        if (emu.held)
                return false;
        return o->kind != EMU_WAIT || o->event->completed >= o->generation;
}

static void pause_before(const struct emu_operation *o) {
        struct timespec t = {.tv_nsec = (long) (emu.latency_ns % NSEC_PER_SEC),
                             .tv_sec = (time_t) (emu.latency_ns / NSEC_PER_SEC)};
        if (o->kind == EMU_RECORD || o->kind == EMU_WAIT || emu.latency_ns == 0)
                return;
        (void) pthread_mutex_unlock(&emu.lock);
        (void) nanosleep(&t, NULL);
        (void) pthread_mutex_lock(&emu.lock);
}

static void work_off_one(struct emu_stream *s) {
        struct emu_operation *o = s->first;
        pause_before(o);
        if (!s->ended && s->context->sticky == CUDA_OK) {
                s->running = true;
                enum cuda_result result = run(s, o);
                s->running = false;
                if (result != CUDA_OK)
                        s->context->sticky = result;
        }
        s->first = o->next;
        if (!s->first)
                s->last = &s->first;
        s->completed++;
        operation_free(o);
        (void) pthread_cond_broadcast(&emu.changed);
}

static void *work(void *argument) {
        struct emu_stream *s = argument;
        (void) pthread_mutex_lock(&emu.lock);
        for (;;) {
                if (may_begin(s))
                        work_off_one(s);
                else if (!s->first && (!s->handle || s->ended))
                        break;
                else
                        emu_wait();
        }
        struct emu_stream **link = &emu.streams;
        while (*link != s)
                link = &(*link)->next;
        *link = s->next;
        free(s);
        (void) pthread_cond_broadcast(&emu.changed);
        (void) pthread_mutex_unlock(&emu.lock);
        return NULL;
}

void emu_queue(struct emu_stream *s, struct emu_operation *o) {
        if (o->event)
                o->event->users++;
        *s->last = o;
        s->last = &o->next;
        s->queued++;
        (void) pthread_cond_broadcast(&emu.changed);
}

static bool runs(const struct cuda_context *context) {
        for (struct emu_stream *s = emu.streams; s; s = s->next)
                if (s->context == context && s->running)
                        return true;
        return false;
}

void emu_settle(const struct cuda_context *context) {
        while (runs(context))
                emu_wait();
}

static bool is_busy(const struct cuda_context *context) {
        for (struct emu_stream *s = emu.streams; s; s = s->next)
                if (s->context == context && is_pending(s))
                        return true;
        return false;
}

void emu_drain_context(struct cuda_context *context) {
        while (is_busy(context))
                emu_wait();
}

static bool has_streams(const struct cuda_context *context) {
        struct emu_stream *s = emu.streams;
        while (s && s->context != context)
                s = s->next;
        return s != NULL;
}

void emu_context_ends(struct cuda_context *context) {
        for (struct emu_stream *s = emu.streams; s; s = s->next)
                if (s->context == context) {
                        if (s->handle && s->handle != CUDA_STREAM_LEGACY)
                                emu.abandoned++;
                        emu.abandoned += s->queued - s->completed;
                        s->ended = true;
                        s->handle = NULL;
                }
        (void) pthread_cond_broadcast(&emu.changed);
        while (has_streams(context))
                emu_wait();
        struct emu_event *next;
        for (struct emu_event *e = emu.events; e; e = next) {
                next = e->next;
                if (e->context != context)
                        continue;
                if (e->handle)
                        emu.abandoned++;
                e->handle = NULL;
                event_settle(e);
        }
        emu_modules_end(context);
}

/* ---- streams ---- */

enum cuda_result cuStreamCreateWithPriority(struct cuda_stream **stream, unsigned flags,
                                            int priority) {
        EMU_ENTER(StreamCreateWithPriority, EMU_CONTEXT);
        /* Others and the legacy stream would wait for each other, which is not done here. */
        if (!stream || flags != CUDA_STREAM_NON_BLOCKING)
                return emu_leave(CUDA_INVALID_VALUE);
        struct emu_stream *s = stream_new((struct cuda_stream *) (uintptr_t) emu_new_handle());
        if (!s)
                return emu_leave(CUDA_OUT_OF_MEMORY);
        *stream = s->handle;
        return emu_leave(CUDA_OK);
}

/* What is queued is still done. */
enum cuda_result cuStreamDestroy_v2(struct cuda_stream *stream) {
        EMU_ENTER(StreamDestroy, EMU_CONTEXT);
        struct emu_stream *s = stream == CUDA_STREAM_LEGACY ? NULL : emu_stream_of(stream);
        if (!s)
                return emu_leave(CUDA_INVALID_HANDLE);
        s->handle = NULL;
        (void) pthread_cond_broadcast(&emu.changed);
        return emu_leave(CUDA_OK);
}

enum cuda_result cuStreamQuery(struct cuda_stream *stream) {
        EMU_ENTER(StreamQuery, EMU_CONTEXT);
        struct emu_stream *s = emu_stream_of(stream);
        if (!s)
                return emu_leave(CUDA_INVALID_HANDLE);
        return emu_leave(emu_answer(EMU_StreamQuery, !is_pending(s)));
}

/* The stream may be destroyed meanwhile: it is looked up each time. */
static enum cuda_result wait_for(struct cuda_stream *stream, uint64_t ticket) {
        struct cuda_context *context = emu_current();
        for (;;) {
                struct emu_stream *s = emu_stream_of(stream);
                if (!s || s->completed >= ticket)
                        return context->sticky;
                emu_wait();
        }
}

enum cuda_result cuStreamSynchronize(struct cuda_stream *stream) {
        EMU_ENTER(StreamSynchronize, EMU_CONTEXT);
        struct emu_stream *s = emu_stream_of(stream);
        if (!s)
                return emu_leave(CUDA_INVALID_HANDLE);
        return emu_leave(wait_for(stream, s->queued));
}

enum cuda_result cuCtxSynchronize(void) {
        EMU_ENTER(CtxSynchronize, EMU_CONTEXT);
        emu_drain_context(emu_current());
        return emu_leave(emu_current()->sticky);
}

/* ---- events ---- */

enum cuda_result cuEventCreate(struct cuda_event **event, unsigned flags) {
        EMU_ENTER(EventCreate, EMU_CONTEXT);
        if (!event || flags != CUDA_EVENT_DISABLE_TIMING) /* nothing of ours measures with them */
                return emu_leave(CUDA_INVALID_VALUE);
        struct emu_event *e = emu_new(sizeof *e);
        e->context = emu_current();
        e->handle = (struct cuda_event *) (uintptr_t) emu_new_handle();
        e->next = emu.events;
        emu.events = e;
        *event = e->handle;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuEventDestroy_v2(struct cuda_event *event) {
        EMU_ENTER(EventDestroy, EMU_CONTEXT);
        struct emu_event *e = event_of(event);
        if (!e)
                return emu_leave(CUDA_INVALID_HANDLE);
        e->handle = NULL;
        event_settle(e);
        return emu_leave(CUDA_OK);
}

static enum cuda_result queue_event(struct cuda_event *event, struct cuda_stream *stream,
                                    enum emu_operation_kind kind) {
        struct emu_event *e = event_of(event);
        struct emu_stream *s = emu_stream_of(stream);
        if (!e || !s)
                return CUDA_INVALID_HANDLE;
        struct emu_operation *o = emu_new(sizeof *o);
        o->kind = kind;
        o->event = e;
        o->generation = kind == EMU_RECORD ? ++e->recorded : e->recorded;
        emu_queue(s, o);
        return CUDA_OK;
}

enum cuda_result cuEventRecord(struct cuda_event *event, struct cuda_stream *stream) {
        EMU_ENTER(EventRecord, EMU_CONTEXT);
        return emu_leave(queue_event(event, stream, EMU_RECORD));
}

enum cuda_result cuStreamWaitEvent(struct cuda_stream *stream, struct cuda_event *event,
                                   unsigned flags) {
        EMU_ENTER(StreamWaitEvent, EMU_CONTEXT);
        return emu_leave(flags ? CUDA_INVALID_VALUE : queue_event(event, stream, EMU_WAIT));
}

enum cuda_result cuEventQuery(struct cuda_event *event) {
        EMU_ENTER(EventQuery, EMU_CONTEXT);
        struct emu_event *e = event_of(event);
        if (!e)
                return emu_leave(CUDA_INVALID_HANDLE);
        return emu_leave(emu_answer(EMU_EventQuery, e->completed >= e->recorded));
}

enum cuda_result cuEventSynchronize(struct cuda_event *event) {
        EMU_ENTER(EventSynchronize, EMU_CONTEXT);
        struct emu_event *e = event_of(event);
        if (!e)
                return emu_leave(CUDA_INVALID_HANDLE);
        uint64_t generation = e->recorded;
        e->users++;
        while (e->completed < generation && e->context->sticky == CUDA_OK)
                emu_wait();
        enum cuda_result result = e->context->sticky;
        if (result != CUDA_OK)
                emu_settle(e->context);
        e->users--;
        event_settle(e);
        return emu_leave(result);
}

/* ---- copies and fills ---- */

/* Both of a copy's sides, or a fill's one, as they are when it is asked for. */
static bool is_legal(const struct emu_operation *o) {
        int device = emu_current()->device;
        if (!emu_may_access(device, o->target, o->bytes, true))
                return false;
        if (o->kind == EMU_FILL)
                return !is_host(o->target, o->bytes);
        bool overlap = o->target < o->source + o->bytes && o->source < o->target + o->bytes;
        return !overlap && emu_may_access(device, o->source, o->bytes, false);
}

static enum cuda_result queue_transfer(struct emu_operation transfer, struct cuda_stream *stream) {
        struct emu_stream *s = emu_stream_of(stream);
        if (!s)
                return CUDA_INVALID_HANDLE;
        if (transfer.bytes == 0)
                return CUDA_OK;
        if (!is_legal(&transfer))
                return CUDA_INVALID_VALUE;
        struct emu_operation *o = emu_new(sizeof *o);
        *o = transfer;
        o->device_target = !is_host(o->target, o->bytes);
        o->device_source = o->kind == EMU_COPY && !is_host(o->source, o->bytes);
        o->pinned = o->kind == EMU_COPY && !is_pageable(o);
        emu_queue(s, o);
        if (transfer.kind == EMU_FILL)
                return CUDA_OK;
        emu.copies++;
        if (!is_pageable(&transfer))
                return CUDA_OK;
        emu.pageable_copies++;
        return wait_for(stream, s->queued);
}

enum cuda_result cuMemcpyAsync(cuda_address target, cuda_address source, size_t bytes,
                               struct cuda_stream *stream) {
        EMU_ENTER(MemcpyAsync, EMU_CONTEXT);
        return emu_leave(queue_transfer(
                (struct emu_operation){
                        .kind = EMU_COPY, .target = target, .source = source, .bytes = bytes},
                stream));
}

static enum cuda_result fill(cuda_address target, unsigned value, unsigned width, size_t count,
                             struct cuda_stream *stream) {
        if (count > SIZE_MAX / width || target % width != 0)
                return CUDA_INVALID_VALUE;
        return queue_transfer((struct emu_operation){.kind = EMU_FILL,
                                                     .target = target,
                                                     .bytes = count * width,
                                                     .value = value,
                                                     .width = width},
                              stream);
}

enum cuda_result cuMemsetD8Async(cuda_address target, unsigned char value, size_t bytes,
                                 struct cuda_stream *stream) {
        EMU_ENTER(MemsetD8Async, EMU_CONTEXT);
        return emu_leave(fill(target, value, 1, bytes, stream));
}

enum cuda_result cuMemsetD32Async(cuda_address target, unsigned value, size_t count,
                                  struct cuda_stream *stream) {
        EMU_ENTER(MemsetD32Async, EMU_CONTEXT);
        return emu_leave(fill(target, value, sizeof value, count, stream));
}
