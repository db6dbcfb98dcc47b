/* SPDX-License-Identifier: Apache-2.0
 *
 * client/stream.c on the emulated driver: when the end of an update becomes a cut, and when not.
 */
#include "client/stream.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"

#include <sys/eventfd.h>
#include <sys/mman.h>

enum { STEPS = 4, VALUES = 16 };
#define AWHILE_NS (60 * NSEC_PER_SEC)

static const struct emu_control *emu;
static const struct cuda_driver *cuda;

struct fixture {
        struct device *device;
        struct slabs slabs;
        struct registry registry;
        struct stream stream;
        struct control_page *page;
        struct cuda_context *context;
        struct cuda_stream *queue;
        int ring_fd;
        int64_t truths[STEPS];
        float *steps, *statistics;
};

static void read_back(struct fixture *f, const void *source, void *target, uint64_t bytes) {
        assert_int_equal(f->device->ops->copy_async(f->device, NULL, target, source, bytes, NULL),
                         0);
        assert_int_equal(
                f->device->ops->synchronize(f->device, clock_now(&clock_system) + AWHILE_NS, NULL),
                0);
}

/* Three counters side by side, and one apart. */
static void declare(struct fixture *f) {
        float *apart;
        assert_int_equal(
                slabs_allocate(&f->slabs, 3 * sizeof(float), (void **) &f->steps, NULL, NULL), 0);
        assert_int_equal(slabs_allocate(&f->slabs, sizeof(float), (void **) &apart, NULL, NULL), 0);
        for (int i = 0; i < STEPS; i++) {
                char name[16];
                (void) snprintf(name, sizeof name, "step.%d", i);
                f->truths[i] = 10 + i;
                assert_int_equal(registry_add_step(&f->registry, &f->slabs, name,
                                                   i < 3 ? f->steps + i : apart, &f->truths[i],
                                                   NULL),
                                 0);
        }
        assert_int_equal(slabs_allocate(&f->slabs, VALUES * sizeof(float), (void **) &f->statistics,
                                        NULL, NULL),
                         0);
        struct cairn_tensor t = {CAIRN_TENSOR_INIT,
                                 .name = "s",
                                 .role = CAIRN_BUFFER,
                                 .dtype = CAIRN_F32,
                                 .rank = 1,
                                 .shape = {VALUES},
                                 .mutates = CAIRN_ANYTIME,
                                 .data = f->statistics};
        assert_int_equal(registry_add_tensor(&f->registry, &f->slabs, &t, NULL), 0);
}

static int set_up(void **state) {
        struct fixture *f = calloc(1, sizeof *f);
        emu = cuda_emulated(&cuda);
        assert_int_equal(device_cuda.open(0, &f->device, NULL), 0);
        slabs_init(&f->slabs, f->device);
        assert_int_equal(registry_init(&f->registry), 0);
        f->page = aligned_alloc(4096, CONTROL_PAGE_BYTES);
        memset(f->page, 0, CONTROL_PAGE_BYTES);
        control_page_init(f->page, 1);
        f->ring_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        assert_int_equal(cuda->DevicePrimaryCtxRetain(&f->context, 0), CUDA_OK);
        assert_int_equal(cuda->CtxSetCurrent(f->context), CUDA_OK);
        assert_int_equal(cuda->StreamCreateWithPriority(&f->queue, CUDA_STREAM_NON_BLOCKING, 0),
                         CUDA_OK);
        declare(f);
        stream_init(&f->stream, f->device, f->page, f->ring_fd, &clock_system);
        stream_set(&f->stream, f->queue);
        *state = f;
        return 0;
}

static int tear_down(void **state) {
        struct fixture *f = *state;
        bool stuck = f->stream.final.status != 0;
        emu->hold(false);
        emu->fault(NULL, 0, CUDA_OK);
        stream_done(&f->stream);
        (void) cuda->StreamDestroy(f->queue);
        registry_done(&f->registry);
        slabs_done(&f->slabs);
        device_cuda.close(f->device);
        (void) cuda->CtxSetCurrent(NULL);
        (void) cuda->DevicePrimaryCtxRelease(0);
        if (!stuck)
                cuda_emulated_assert_empty(emu);
        emu->reset();
        (void) close(f->ring_fd);
        free(f->page);
        free(f);
        return 0;
}

static int end(struct fixture *f, int64_t step) {
        return stream_end(&f->stream, &f->registry, step, 1, NULL);
}

static bool await(struct fixture *f) {
        return stream_await(&f->stream, clock_now(&clock_system) + AWHILE_NS);
}

static void an_end_is_a_cut_when_the_gpu_has_come_there(void **state) {
        struct fixture *f = *state;
        float steps[3], expected[3] = {10, 11, 12}, shadow[VALUES];
        emu->hold(true);
        assert_int_equal(cuda->MemsetD8Async((uintptr_t) f->statistics, 1, sizeof shadow, f->queue),
                         CUDA_OK);
        assert_int_equal(end(f, 5), 0);
        assert_int_equal(stream_look(&f->stream), CAIRN_ERR_BUSY);
        assert_int_equal(cut_read(f->page).phase, CUT_UPDATING);
        f->truths[0] = 99; /* what it was at the end counts */
        emu->hold(false);
        assert_true(await(f));
        assert_int_equal(cut_read(f->page).phase, CUT_STABLE);
        assert_int_equal(cut_read(f->page).seq, 1);
        assert_int_equal(atomic_load(&f->page->last_step), 5);
        assert_int_equal(atomic_load(&f->page->seal_number), 1);
        read_back(f, f->steps, steps, sizeof steps);
        assert_memory_equal(steps, expected, sizeof steps);
        read_back(f, f->registry.tensors[f->registry.shadowed[0]].shadow, shadow, sizeof shadow);
        unsigned char ones[sizeof shadow];
        memset(ones, 1, sizeof ones);
        assert_memory_equal(shadow, ones, sizeof ones);
}

static void counters_side_by_side_are_one_copy(void **state) {
        struct fixture *f = *state;
        struct emu_counts before, after;
        assert_int_equal(end(f, 1), 0);
        assert_true(await(f));
        assert_true(f->stream.steps_locked);
        emu->counts(&before);
        bool expired;
        struct cut_gate gate = {.deadline_duration_ns = GATE_DEADLINE_NS_MIN};
        assert_int_equal(cut_update_begin(f->page, &gate, &clock_system, &expired), 0);
        assert_int_equal(end(f, 2), 0);
        assert_true(await(f));
        emu->counts(&after);
        assert_int_equal(after.copies - before.copies, 3); /* of three, of one, the shadow */
        assert_int_equal(after.pageable_copies, before.pageable_copies);
}

static void a_request_rings(void **state) {
        struct fixture *f = *state;
        uint64_t count;
        bool updating;
        assert_int_equal(cut_request(f->page, &updating), 1);
        assert_true(updating);
        assert_int_equal(end(f, 1), 0);
        assert_true(await(f));
        assert_int_equal(read(f->ring_fd, &count, sizeof count), sizeof count);
}

/* The next end comes while the GPU still hangs, and the one after that when it no longer does. */
static void an_end_that_takes_too_long_is_no_cut(void **state) {
        struct fixture *f = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        emu->hold(true);
        assert_int_equal(end(f, 1), 0);
        assert_false(stream_await(&f->stream, clock_now(&clock_system)));
        assert_int_equal(stream_failure(&f->stream, &e), CAIRN_ERR_TIMEOUT);
        assert_int_equal(stream_failure(&f->stream, &e), 0);
        assert_int_equal(stream_check(&f->stream, &e), 0);
        assert_int_equal(end(f, 2), CAIRN_ERR_TIMEOUT);
        assert_false(await(f));
        assert_int_equal(stream_failure(&f->stream, &e), 0); /* its caller was told */
        emu->hold(false);
        assert_int_equal(f->device->ops->event_wait(f->device, &f->stream.event,
                                                    clock_now(&clock_system) + AWHILE_NS, NULL),
                         0);
        assert_int_equal(cut_read(f->page).phase, CUT_UPDATING);
        assert_int_equal(end(f, 3), 0);
        assert_true(await(f));
        assert_int_equal(cut_read(f->page).seq, 1);
        assert_int_equal(atomic_load(&f->page->last_step), 3);
}

/* One failure of each call that an end makes: it is no cut, the next one is. */
static void a_failure_costs_one_cut(void **state) {
        static const char *const calls[] = {"cuEventRecord", "cuMemcpyAsync", "cuEventCreate",
                                            "cuCtxPushCurrent_v2"};
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
                struct fixture *f = *state;
                struct cairn_error e = CAIRN_ERROR_INIT;
                emu->fault(calls[i], i == 1 ? 2 : 1, CUDA_INVALID_VALUE);
                int r = stream_end(&f->stream, &f->registry, 1, 1, &e);
                if (!emu->fired()) { /* the event is there already */
                        emu->fault(NULL, 0, CUDA_OK);
                        assert_int_equal(r, 0);
                        assert_true(await(f));
                } else {
                        assert_int_equal(r, CAIRN_ERR_DEVICE);
                        assert_true(e.message[0] != 0);
                        assert_false(await(f));
                        assert_int_equal(cut_read(f->page).phase, CUT_UPDATING);
                        assert_int_equal(end(f, 2), 0);
                        assert_true(await(f));
                }
                bool expired;
                struct cut_gate gate = {.deadline_duration_ns = GATE_DEADLINE_NS_MIN};
                assert_int_equal(cut_update_begin(f->page, &gate, &clock_system, &expired), 0);
        }
}

/* The steps of an end that failed halfway belong to the stream it was queued on: they are written
 * again only after an event of that one, or not at all. */
static void a_failure_and_another_stream(void **state) {
        struct fixture *f = *state;
        struct cuda_stream *other;
        assert_int_equal(cuda->StreamCreateWithPriority(&other, CUDA_STREAM_NON_BLOCKING, 0),
                         CUDA_OK);
        for (int lost = 0; lost < 2; lost++) {
                bool expired;
                struct cut_gate gate = {.deadline_duration_ns = GATE_DEADLINE_NS_MIN};
                emu->hold(true);
                emu->fault("cuMemcpyAsync", 2, CUDA_INVALID_VALUE);
                assert_int_equal(end(f, 1), CAIRN_ERR_DEVICE);
                assert_true(f->stream.unmarked);
                float *read_by_device = f->stream.steps;
                uint64_t bytes = f->stream.steps_bytes;
                if (lost)
                        emu->fault("cuEventRecord", 1, CUDA_INVALID_VALUE);
                stream_set(&f->stream, lost ? f->queue : other);
                assert_false(f->stream.unmarked);
                assert_int_equal(f->stream.queued, !lost);
                assert_ptr_equal(f->stream.steps, lost ? NULL : read_by_device);
                emu->hold(false);
                assert_int_equal(end(f, 2), 0);
                assert_true(await(f));
                assert_int_equal(cut_update_begin(f->page, &gate, &clock_system, &expired), 0);
                if (!lost)
                        continue;
                assert_int_equal(f->device->ops->host_unregister(f->device, read_by_device, NULL),
                                 0);
                assert_int_equal(munmap(read_by_device, bytes), 0);
        }
        assert_int_equal(cuda->StreamDestroy(other), CUDA_OK);
}

static void an_event_that_cannot_be_asked(void **state) {
        struct fixture *f = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_int_equal(end(f, 1), 0);
        emu->fault("cuEventQuery", 1, CUDA_INVALID_VALUE);
        assert_false(await(f));
        assert_int_equal(stream_failure(&f->stream, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(end(f, 2), 0);
        assert_true(await(f));
}

static void what_the_driver_keeps_ends_all_cuts(void **state) {
        struct fixture *f = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        emu->break_operation(1, CUDA_ILLEGAL_ADDRESS);
        emu->hold(true); /* what breaks early is told by the end itself */
        assert_int_equal(end(f, 1), 0);
        emu->hold(false);
        assert_false(await(f));
        for (int i = 0; i < 2; i++) {
                assert_int_equal(stream_check(&f->stream, &e), CAIRN_ERR_DEVICE);
                assert_non_null(strstr(e.message, "ILLEGAL_ADDRESS"));
                assert_int_equal(end(f, 2 + i), CAIRN_ERR_DEVICE);
                assert_false(await(f));
        }
        assert_int_equal(cut_read(f->page).phase, CUT_UPDATING);
}

/* Of the trainer's own kernels, after the end: the state before it is not entered. */
static void an_error_between_updates_is_seen(void **state) {
        struct fixture *f = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_int_equal(end(f, 1), 0);
        assert_true(await(f));
        assert_int_equal(stream_check(&f->stream, &e), 0);
        emu->break_operation(1, CUDA_ILLEGAL_ADDRESS);
        assert_int_equal(cuda->MemsetD8Async((uintptr_t) f->statistics, 1, 4, f->queue), CUDA_OK);
        while (cuda->StreamQuery(f->queue) == CUDA_NOT_READY)
                (void) usleep(1000);
        assert_int_equal(stream_check(&f->stream, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(cut_read(f->page).phase, CUT_STABLE);
}

static void page_locking_that_is_refused(void **state) {
        struct fixture *f = *state;
        float steps[3], expected[3] = {10, 11, 12};
        emu->fault("cuMemHostRegister_v2", 1, CUDA_OUT_OF_MEMORY);
        assert_int_equal(end(f, 1), 0);
        assert_non_null(emu->fired());
        assert_true(await(f));
        assert_false(f->stream.steps_locked);
        read_back(f, f->steps, steps, sizeof steps);
        assert_memory_equal(steps, expected, sizeof steps);
}

/* Poisoned: somebody else wrote the word. */
static void a_word_that_was_changed(void **state) {
        struct fixture *f = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        atomic_store(&f->page->word, cut_word_pack((struct cut_word){7, 1, CUT_STABLE}));
        assert_int_equal(end(f, 1), 0);
        assert_false(await(f));
        assert_int_equal(stream_check(&f->stream, &e), CAIRN_ERR_FATAL);
}

static void without_an_agent(void **state) {
        struct fixture *f = *state;
        f->stream.page = NULL;
        assert_int_equal(end(f, 1), 0);
        assert_true(await(f));
        assert_int_equal(cut_read(f->page).phase, CUT_UPDATING);
}

/* Of a session of the host there is no stream. */
static void one_that_was_never_made(void **state) {
        struct stream none = {0};
        stream_done(&none);
        (void) state;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(an_end_is_a_cut_when_the_gpu_has_come_there),
                TEST(counters_side_by_side_are_one_copy),
                TEST(a_request_rings),
                TEST(an_end_that_takes_too_long_is_no_cut),
                TEST(a_failure_costs_one_cut),
                TEST(a_failure_and_another_stream),
                TEST(an_event_that_cannot_be_asked),
                TEST(page_locking_that_is_refused),
                TEST(a_word_that_was_changed),
                TEST(without_an_agent),
                cmocka_unit_test(one_that_was_never_made),
                TEST(what_the_driver_keeps_ends_all_cuts),
                TEST(an_error_between_updates_is_seen),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
