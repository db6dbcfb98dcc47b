/* SPDX-License-Identifier: Apache-2.0
 *
 * A session of a GPU through cairn.h, on the emulated driver; the test is the trainer and the
 * saver. Each call of the driver that a whole life makes fails once: whoever called is told,
 * training goes on, the next cut is whole, and nothing is left.
 */
#include "client/handle.h"
#include "format/wire.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"
#include "tests/unit/fake_agent.h"

#include <poll.h>
#include <sys/mman.h>

enum { VALUES = 3000, CALLS_MAX = 4000 };
#define VALUE_BYTES (VALUES * UINT64_C(4))
#define IMAGE_BYTES (16 * DATA_BLOCK_BYTES)
#define AWHILE_MS 20000

static const struct emu_control *emu;
static const struct cuda_driver *cuda;

struct session {
        struct fake_agent agent;
        struct cairn *c;
        struct cuda_context *context;
        struct cuda_stream *stream;
        float *weights, *step, *statistics;
        float plain[VALUES]; /* registered by its pointer */
        int64_t truth, samples;
        int staging_fd;
        unsigned char *staging;
        uint64_t order;
        bool met; /* the driver's failure */
};

/* The trainer's own calls may meet the fault: it tries again. */
#define UNTIL_OK(call)                                \
        do {                                          \
                enum cuda_result until_ok_ = call;    \
                if (until_ok_ != CUDA_OK)             \
                        until_ok_ = call;             \
                assert_int_equal(until_ok_, CUDA_OK); \
        } while (0)

static void begin(struct session *s) {
        *s = (struct session){.staging_fd = -1};
        fake_agent_init(&s->agent);
        fake_agent_start(&s->agent);
        assert_int_equal(wire_memfd_create("staging", IMAGE_BYTES, &s->staging_fd, NULL), 0);
        assert_int_equal(wire_memfd_seal(s->staging_fd, F_SEAL_SHRINK | F_SEAL_GROW, NULL), 0);
        s->staging = mmap(NULL, IMAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, s->staging_fd, 0);
        assert_ptr_not_equal(s->staging, MAP_FAILED);
        assert_int_equal(cuda->DevicePrimaryCtxRetain(&s->context, 0), CUDA_OK);
        assert_int_equal(cuda->CtxSetCurrent(s->context), CUDA_OK);
        assert_int_equal(cuda->StreamCreateWithPriority(&s->stream, CUDA_STREAM_NON_BLOCKING, 0),
                         CUDA_OK);
}

static void end(struct session *s) {
        cairn_close(s->c);
        emu->fault(NULL, 0, CUDA_OK);
        assert_int_equal(cuda->StreamDestroy(s->stream), CUDA_OK);
        assert_int_equal(cuda->CtxSetCurrent(NULL), CUDA_OK);
        assert_int_equal(cuda->DevicePrimaryCtxRelease(0), CUDA_OK);
        (void) munmap(s->staging, IMAGE_BYTES);
        (void) close(s->staging_fd);
        fake_agent_done(&s->agent);
}

/* Also after it was disarmed: what came of it is told later. */
static bool has_met(struct session *s) {
        s->met = s->met || emu->fired();
        return s->met;
}

/* Once more where the driver failed: it fails once. */
static int told(struct session *s, int r) {
        if (r < 0) {
                assert_true(has_met(s));
                assert_true(r == CAIRN_ERR_DEVICE || r == CAIRN_ERR_NOMEM ||
                            r == CAIRN_ERR_UNSUPPORTED);
                assert_true(strlen(cairn_error_text(s->c)) > 20);
        }
        return r;
}
#define TOLD(s, call)                              \
        do {                                       \
                if (told(s, call) < 0)             \
                        assert_int_equal(call, 0); \
        } while (0)

static bool open_session(struct session *s) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        o.run = "run";
        o.rank = 0;
        o.socket = s->agent.path;
        o.device = CAIRN_DEVICE_CUDA;
        return told(s, cairn_open(&o, &s->c)) == 0;
}

static int add(struct session *s, const char *name, enum cairn_mutates mutates, void *data) {
        struct cairn_tensor t = {CAIRN_TENSOR_INIT,  .name = name, .role = CAIRN_PARAMETER,
                                 .dtype = CAIRN_F32, .rank = 1,    .shape = {VALUES},
                                 .mutates = mutates, .data = data};
        return cairn_register(s->c, &t);
}

static void declare(struct session *s) {
        if (s->stream != CUDA_STREAM_LEGACY)
                TOLD(s, cairn_set_stream(s->c, s->stream));
        TOLD(s, cairn_alloc(s->c, VALUE_BYTES, (void **) &s->weights));
        TOLD(s, cairn_alloc(s->c, VALUE_BYTES, (void **) &s->statistics));
        TOLD(s, cairn_alloc(s->c, sizeof(float), (void **) &s->step));
        TOLD(s, add(s, "weights", CAIRN_IN_UPDATE, s->weights));
        TOLD(s, add(s, "plain", CAIRN_IN_UPDATE, s->plain));
        TOLD(s, add(s, "statistics", CAIRN_ANYTIME, s->statistics));
        TOLD(s, cairn_register_step(s->c, "step", s->step, &s->truth));
        TOLD(s, cairn_state_i64(s->c, "samples", &s->samples));
}

static void fill(struct session *s, int step) {
        UNTIL_OK(cuda->MemsetD8Async((uintptr_t) s->weights, (unsigned char) step, VALUE_BYTES,
                                     s->stream));
        UNTIL_OK(cuda->MemsetD8Async((uintptr_t) s->statistics, (unsigned char) (step + 100),
                                     VALUE_BYTES, s->stream));
        memset(s->plain, step + 50, sizeof s->plain);
        s->truth++;
        s->samples += 8;
}

/* An error of begin: it has not begun. Those of end are told, and the update has ended. */
static bool update(struct session *s, int step) {
        if (told(s, cairn_update_begin(s->c)) < 0)
                assert_int_equal(cairn_update_begin(s->c), 0);
        fill(s, step);
        return told(s, cairn_update_end(s->c, step)) == 0;
}

/* ---- the saver ---- */

static int copy(struct session *s, struct cut_word mine) {
        struct pollfd p = {.fd = s->agent.push_fd, .events = POLLIN};
        struct push_packet o = {.verb = PUSH_COPY,
                                .order = ++s->order,
                                .seal = s->agent.seal_number,
                                .seq = mine.seq,
                                .attempt = mine.attempt};
        int fd;
        assert_true(s->agent.push_fd >= 0);
        memset(s->staging, 0, IMAGE_BYTES);
        assert_int_equal(push_send(s->agent.push_fd, &o, s->staging_fd), 0);
        assert_int_equal(poll(&p, 1, AWHILE_MS), 1);
        assert_int_equal(push_receive(s->agent.push_fd, &o, &fd), 0);
        assert_int_equal(o.order, s->order);
        return o.status;
}

static bool holds(const unsigned char *bytes, int value, uint64_t count) {
        while (count > 0 && bytes[count - 1] == (unsigned char) value)
                count--;
        return count == 0;
}

/* In the order of their registration, 256 bytes apart. */
static void check_image(const struct session *s, int step) {
        const unsigned char *at = s->staging + DATA_BLOCK_BYTES;
        uint64_t stride = (VALUE_BYTES + 255) / 256 * 256;
        float counter;
        assert_true(holds(at, step, VALUE_BYTES));
        assert_true(holds(at + stride, step + 50, VALUE_BYTES));
        assert_true(holds(at + 2 * stride, step + 100, VALUE_BYTES));
        memcpy(&counter, at + 3 * stride, sizeof counter);
        assert_true(counter == (float) s->truth);
}

/* False: the GPU's part of the last update failed, so there is no such cut. `may_fail`: it is not
 * waited for long once the failure was met. */
static bool take_if(struct session *s, int step, bool may_fail) {
        struct cut_word mine;
        int r = CAIRN_ERR_BUSY;
        for (int i = 0; i < 40000 && r == CAIRN_ERR_BUSY; i++) {
                r = cut_copy_begin(s->agent.page, true, &mine);
                if (r == CAIRN_ERR_BUSY)
                        (void) usleep(500);
                if (i >= 20 && may_fail && has_met(s))
                        break;
        }
        if (r < 0 || atomic_load(&s->agent.page->last_step) != step) {
                assert_true(has_met(s));
                if (r == 0)
                        cut_copy_abandon(s->agent.page, mine);
                return false;
        }
        r = copy(s, mine);
        if (r == 0)
                check_image(s, step);
        else
                assert_true(has_met(s));
        assert_int_equal(cut_copy_end(s->agent.page, mine), 0);
        return r == 0;
}

static bool take(struct session *s, int step) {
        return take_if(s, step, false);
}

/* ---- tests ---- */

/* Whether the failure was met. */
static bool train(struct session *s, int steps) {
        if (!open_session(s))
                return true;
        declare(s);
        TOLD(s, cairn_seal(s->c));
        TOLD(s, cairn_restore(s->c, NULL));
        for (int step = 1; step <= steps; step++) {
                (void) update(s, step);
                (void) take_if(s, step, true);
        }
        /* What came late is told now; then all is well. */
        bool fired = has_met(s);
        emu->fault(NULL, 0, CUDA_OK);
        (void) update(s, steps + 1);
        assert_true(update(s, steps + 2));
        assert_true(take(s, steps + 2));
        return fired;
}

static void a_life_without_failures(void **state) {
        struct session s;
        begin(&s);
        assert_true(open_session(&s));
        declare(&s);
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(s.agent.slabs, 1);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        for (int step = 1; step <= 5; step++) {
                assert_true(update(&s, step));
                assert_true(take(&s, step));
        }
        end(&s);
        cuda_emulated_assert_empty(emu);
}

static void each_call_fails_once(void **state) {
        uint64_t n = 1;
        bool fired;
        do {
                struct session s;
                assert_true(n < CALLS_MAX);
                begin(&s);
                emu->fault(NULL, n, CUDA_INVALID_VALUE);
                fired = train(&s, 2);
                end(&s);
                cuda_emulated_assert_empty(emu);
                n++;
        } while (fired);
        print_message("%u calls\n", (unsigned) n);
        assert_true(n > 100);
}

/* An optimizer that makes its state at the first step: the cut of that step has it. */
static void sealed_again_in_an_update(void **state) {
        struct session s;
        float *late;
        begin(&s);
        assert_true(open_session(&s));
        declare(&s);
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        assert_true(update(&s, 1));
        assert_true(take(&s, 1));
        assert_int_equal(cairn_update_begin(s.c), 0);
        assert_int_equal(cairn_alloc(s.c, VALUE_BYTES, (void **) &late), 0);
        assert_int_equal(add(&s, "late", CAIRN_IN_UPDATE, late), 0);
        fill(&s, 2);
        UNTIL_OK(cuda->MemsetD8Async((uintptr_t) late, 77, VALUE_BYTES, s.stream));
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(s.agent.seal_number, 2);
        assert_int_equal(cairn_update_end(s.c, 2), 0);
        assert_true(take(&s, 2));
        uint64_t stride = (VALUE_BYTES + 255) / 256 * 256;
        assert_true(holds(s.staging + DATA_BLOCK_BYTES + 3 * stride + 256, 77, VALUE_BYTES));
        end(&s);
        cuda_emulated_assert_empty(emu);
}

/* A wait for a cut that will not come ends at once; who trains on is told the same each time. */
static void what_the_driver_keeps_is_told_everywhere(void **state) {
        struct session s;
        cairn_ticket ticket;
        int64_t step;
        begin(&s);
        assert_true(open_session(&s));
        declare(&s);
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        assert_true(update(&s, 1));
        assert_true(take(&s, 1));
        assert_int_equal(cairn_update_begin(s.c), 0);
        emu->break_operation(1, CUDA_ILLEGAL_ADDRESS);
        assert_int_equal(cuda->MemsetD8Async((uintptr_t) s.weights, 2, VALUE_BYTES, s.stream),
                         CUDA_OK);
        assert_int_equal(cairn_snapshot(s.c, &ticket), 0);
        (void) cairn_update_end(s.c, 2); /* where it is over by now it says so */
        assert_int_equal(cairn_snapshot_wait(s.c, ticket, AWHILE_MS * NSEC_PER_MSEC, &step),
                         CAIRN_ERR_DEVICE);
        for (int i = 0; i < 2; i++) {
                assert_int_equal(cairn_update_begin(s.c), CAIRN_ERR_DEVICE);
                assert_int_equal(cairn_update_end(s.c, 3 + i), CAIRN_ERR_DEVICE);
                assert_non_null(strstr(cairn_error_text(s.c), "ILLEGAL_ADDRESS"));
        }
        assert_int_equal(cut_read(s.agent.page).phase, CUT_UPDATING);
        assert_int_equal(atomic_load(&s.agent.page->last_step), 1);
        cairn_close(s.c);
        emu->reset();
        (void) munmap(s.staging, IMAGE_BYTES);
        (void) close(s.staging_fd);
        fake_agent_done(&s.agent);
}

/* The device is asked, and what was written between updates is found in its memory. */
static void mutations_on_the_gpu(void **state) {
        struct session s;
        begin(&s);
        assert_int_equal(setenv("CAIRN_DEBUG_MUTATION", "1", 1), 0);
        assert_true(open_session(&s));
        assert_int_equal(unsetenv("CAIRN_DEBUG_MUTATION"), 0);
        declare(&s);
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        assert_true(update(&s, 1));
        UNTIL_OK(cuda->MemsetD8Async((uintptr_t) s.statistics, 3, 4, s.stream)); /* it may */
        UNTIL_OK(cuda->StreamSynchronize(s.stream));
        assert_true(update(&s, 2));
        UNTIL_OK(cuda->MemsetD8Async((uintptr_t) s.weights, 9, 4, s.stream));
        UNTIL_OK(cuda->StreamSynchronize(s.stream));
        assert_int_equal(cairn_update_begin(s.c), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(s.c), "weights"));
        assert_true(update(&s, 3));
        end(&s);
        cuda_emulated_assert_empty(emu);
}

static void without_an_agent(void **state) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        struct session s;
        begin(&s);
        o.device = CAIRN_DEVICE_CUDA;
        o.without_checkpoints = true;
        assert_int_equal(cairn_open(&o, &s.c), 0);
        declare(&s);
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        float counter;
        for (int step = 1; step <= 3; step++)
                assert_true(update(&s, step));
        UNTIL_OK(cuda->MemcpyAsync((uintptr_t) &counter, (uintptr_t) s.step, sizeof counter,
                                   s.stream));
        assert_true(counter == 3.0f);
        end(&s);
        cuda_emulated_assert_empty(emu);
}

static void wrong_devices(void **state) {
        struct cairn_options o = CAIRN_OPTIONS_INIT;
        struct session s;
        begin(&s);
        o.run = "run";
        o.socket = s.agent.path;
        o.device = CAIRN_DEVICE_CUDA;
        o.device_ordinal = 7;
        assert_int_equal(cairn_open(&o, &s.c), CAIRN_ERR_API);
        assert_non_null(strstr(cairn_error_text(s.c), "CUDA_VISIBLE_DEVICES"));
        cairn_close(s.c);
        o.device = (enum cairn_device) 9;
        assert_int_equal(cairn_open(&o, &s.c), CAIRN_ERR_UNSUPPORTED);
        cairn_close(s.c);
        o.device = CAIRN_DEVICE_HOST;
        assert_int_equal(cairn_open(&o, &s.c), 0);
        assert_int_equal(cairn_set_stream(s.c, s.stream), CAIRN_ERR_API);
        end(&s);
        cuda_emulated_assert_empty(emu);
}

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_changed = PTHREAD_COND_INITIALIZER;
static bool gate_is_open;

static void set_gate(bool open) {
        (void) pthread_mutex_lock(&gate_lock);
        gate_is_open = open;
        (void) pthread_cond_broadcast(&gate_changed);
        (void) pthread_mutex_unlock(&gate_lock);
}

static enum cuda_result pass_gate(const struct emu_launch *launch, void **parameters) {
        (void) pthread_mutex_lock(&gate_lock);
        while (!gate_is_open)
                (void) pthread_cond_wait(&gate_changed, &gate_lock);
        (void) pthread_mutex_unlock(&gate_lock);
        return CUDA_OK;
}

/* Who names no stream trains on the default one: its update has ended when what was queued there
 * has, whatever the streams of libcairn's own have done by then. */
static void updates_of_the_default_stream(void **state) {
        static const struct emu_kernel kernels[] = {{"gate", pass_gate, 0, NULL}};
        static const struct emu_image image = {EMU_IMAGE_MAGIC, 1, kernels};
        struct cuda_module *module;
        struct cuda_function *gate;
        struct session s;
        begin(&s);
        assert_true(open_session(&s));
        assert_int_equal(cuda->StreamDestroy(s.stream), CUDA_OK);
        s.stream = CUDA_STREAM_LEGACY;
        declare(&s);
        assert_int_equal(cuda->ModuleLoadData(&module, &image), CUDA_OK);
        assert_int_equal(cuda->ModuleGetFunction(&gate, module, "gate"), CUDA_OK);
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        for (int step = 1; step <= 3; step++) {
                set_gate(false);
                assert_int_equal(cairn_update_begin(s.c), 0);
                assert_int_equal(
                        cuda->LaunchKernel(gate, 1, 1, 1, 1, 1, 1, 0, s.stream, NULL, NULL),
                        CUDA_OK);
                fill(&s, step);
                assert_int_equal(cairn_update_end(s.c, step), 0);
                bool early = false;
                for (int look = 0; look < 100; look++) {
                        early = early || cut_read(s.agent.page).phase != CUT_UPDATING;
                        (void) usleep(1000);
                }
                set_gate(true);
                assert_false(early);
                assert_true(take(&s, step));
        }
        assert_int_equal(cairn_set_stream(s.c, NULL), 0); /* the same one */
        assert_true(update(&s, 4));
        assert_true(take(&s, 4));
        assert_int_equal(cuda->ModuleUnload(module), CUDA_OK);
        assert_int_equal(cuda->StreamCreateWithPriority(&s.stream, CUDA_STREAM_NON_BLOCKING, 0),
                         CUDA_OK);
        end(&s);
        cuda_emulated_assert_empty(emu);
}

static void refused(struct session *s, const char *name, cuda_address data, const char *text) {
        assert_int_equal(add(s, name, CAIRN_IN_UPDATE, (void *) (uintptr_t) data), CAIRN_ERR_API);
        if (!strstr(cairn_error_text(s->c), name) || !strstr(cairn_error_text(s->c), text))
                fail_msg("%s", cairn_error_text(s->c));
}

/* At the call, by the tensor's name: not when the first cut is copied. What was refused is not
 * there. */
static void wrong_pointers(void **state) {
        struct session s;
        cuda_address good, small, gone;
        begin(&s);
        assert_true(open_session(&s));
        declare(&s);
        assert_int_equal(cuda->MemAlloc(&good, VALUE_BYTES), CUDA_OK);
        assert_int_equal(cuda->MemAlloc(&small, VALUE_BYTES - 4096), CUDA_OK);
        assert_int_equal(cuda->MemAddressReserve(&gone, 2 * MiB, 0, 0, 0), CUDA_OK);
        refused(&s, "short.weight", small, "reach beyond the allocation");
        refused(&s, "freed.weight", gone, "no memory of this process or of the session's GPU");
        assert_int_equal(add(&s, "good", CAIRN_IN_UPDATE, (void *) (uintptr_t) good), 0);
        assert_int_equal(cairn_seal(s.c), CAIRN_ERR_API); /* once, to who did not look */
        assert_non_null(strstr(cairn_error_text(s.c), "short.weight"));
        assert_int_equal(cairn_seal(s.c), 0);
        assert_int_equal(cairn_restore(s.c, NULL), 0);
        assert_true(update(&s, 1));
        assert_true(take(&s, 1));
        cairn_close(s.c);
        s.c = NULL;
        assert_int_equal(cuda->MemFree(good), CUDA_OK);
        assert_int_equal(cuda->MemFree(small), CUDA_OK);
        assert_int_equal(cuda->MemAddressFree(gone, 2 * MiB), CUDA_OK);
        end(&s);
        cuda_emulated_assert_empty(emu);
}

static int set_up(void **state) {
        emu = cuda_emulated(&cuda);
        return 0;
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_life_without_failures),
                cmocka_unit_test(each_call_fails_once),
                cmocka_unit_test(what_the_driver_keeps_is_told_everywhere),
                cmocka_unit_test(mutations_on_the_gpu),
                cmocka_unit_test(without_an_agent),
                cmocka_unit_test(wrong_devices),
                cmocka_unit_test(updates_of_the_default_stream),
                cmocka_unit_test(wrong_pointers),
                cmocka_unit_test(sealed_again_in_an_update),
        };
        return cmocka_run_group_tests(tests, set_up, NULL);
}
