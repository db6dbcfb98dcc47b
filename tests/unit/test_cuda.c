/* SPDX-License-Identifier: Apache-2.0
 *
 * time limit: 300 s
 *
 * device/cuda.c on the emulated driver: what device.h promises, and each way in which the driver
 * can fail.
 */
#include "base/clock.h"
#include "device/chunks.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"
#include "tests/unit/device_contract.h"

#include <dirent.h>

static const struct cuda_driver *cu;
static const struct emu_control *emu;

static int set_up(void **state) {
        emu = cuda_emulated(&cu);
        emu->reset();
        return device_cuda.open(0, (struct device **) state, NULL);
}

static int tear_down(void **state) {
        device_cuda.close(*state);
        cuda_emulated_assert_empty(emu);
        return 0;
}

static int tear_down_broken(void **state) {
        device_cuda.close(*state);
        emu->reset();
        return 0;
}

static void memory_outlives_its_owner(void **state) {
        (void) cuda_emulated(NULL);
        contract_memory_outlives_its_owner(&device_cuda);
}

static void memory_is_zeroed_and_shared(void **state) {
        contract_memory_is_zeroed_and_shared(*state);
}
static void foreign_descriptors_are_refused(void **state) {
        contract_foreign_descriptors_are_refused(*state);
}
static void sizes_out_of_range_are_refused(void **state) {
        contract_sizes_out_of_range_are_refused(*state);
}
static void good_memory_is_taken(void **state) {
        contract_good_memory_is_taken(*state);
}
static void copies_and_events(void **state) {
        contract_copies_and_events(*state);
}
/* ---- opening ---- */

static void what_cannot_be_opened(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct device *d = NULL;
        assert_int_equal(device_cuda.open(2, &d, &e), CAIRN_ERR_API);
        assert_string_equal(e.object, "GPU 2");
        assert_non_null(strstr(e.message, "2 GPUs are visible"));
        assert_int_equal(device_cuda.open(-1, &d, &e), CAIRN_ERR_API);
        emu->lack(CUDA_ATTRIBUTE_POSIX_FD_SUPPORTED);
        assert_int_equal(device_cuda.open(0, &d, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "memory handles as descriptors"));
        emu->lack(CUDA_ATTRIBUTE_VMM_SUPPORTED);
        assert_int_equal(device_cuda.open(0, &d, &e), CAIRN_ERR_UNSUPPORTED);
        emu->lack(0);
        assert_null(d);
        device_cuda.close(NULL);
        assert_int_equal(device_ops_check(&device_cuda, &e), 0);
        assert_int_equal(device_cuda.class, DEVICE_CLASS_CUDA);
}

/* Two GPUs: what is of one is not touched by the other's verbs, nor is the thread's context. */
static void the_threads_context_stays(void **state) {
        struct device *second;
        struct device_memory m;
        struct cuda_context *mine, *now = NULL;
        assert_int_equal(device_cuda.open(1, &second, NULL), 0);
        assert_int_equal(cu->CtxGetCurrent(&now), CUDA_OK);
        assert_null(now);
        assert_int_equal(cu->DevicePrimaryCtxRetain(&mine, 0), CUDA_OK);
        assert_int_equal(cu->CtxPushCurrent(mine), CUDA_OK);
        contract_copies_and_events(second);
        assert_int_equal(device_cuda.allocate(second, 1, &m, NULL), 0);
        assert_int_equal(cu->CtxGetCurrent(&now), CUDA_OK);
        assert_ptr_equal(now, mine);
        int ordinal = -1;
        assert_int_equal(cu->PointerGetAttribute(&ordinal, CUDA_POINTER_DEVICE_ORDINAL,
                                                 (uintptr_t) m.address),
                         CUDA_OK);
        assert_int_equal(ordinal, 1);
        device_cuda.release(second, &m);
        device_cuda.close(second);
        assert_int_equal(cu->CtxGetCurrent(&now), CUDA_OK);
        assert_ptr_equal(now, mine);
        assert_int_equal(cu->CtxPopCurrent(NULL), CUDA_OK);
        assert_int_equal(cu->CtxPopCurrent(NULL), CUDA_INVALID_CONTEXT);
        assert_int_equal(cu->DevicePrimaryCtxRelease(0), CUDA_OK);
}

/* ---- memory ---- */

static void memory_that_is_not_there(void **state) {
        struct device *d = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct device_memory m = DEVICE_MEMORY_INIT;
        assert_int_equal(d->ops->allocate(d, 1 * GiB, &m, &e), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(e.message, "1073741824 bytes are not there, 67108864 of 67108864"));
        assert_null(m.address);
        emu->fault("cuMemGetInfo_v2", 1, CUDA_NOT_PERMITTED);
        assert_int_equal(d->ops->allocate(d, 1 * GiB, &m, &e), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(e.message, "1073741824 bytes are not there; use less"));
        unsigned char page[1];
        emu->fault("cuMemHostRegister_v2", 1, CUDA_OUT_OF_MEMORY);
        assert_int_equal(d->ops->host_register(d, page, 1, &e), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(e.message, "cannot be locked"));
        assert_int_equal(d->ops->host_register(d, NULL, 4096, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_INVALID_VALUE);
        assert_int_equal(d->ops->host_unregister(d, page, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_HOST_MEMORY_NOT_REGISTERED);
}

/* Where the driver knows no read-only access, the mapping is as any other. */
static void read_only_where_it_can(void **state) {
        struct device *d = *state;
        struct device_memory m, other;
        int fd;
        assert_int_equal(d->ops->allocate(d, 1, &m, NULL), 0);
        assert_int_equal(d->ops->export_fd(d, &m, &fd, NULL), 0);
        unsigned char *host = contract_host_new(d, 4096);
        assert_int_equal(d->ops->import_fd(d, fd, m.bytes, true, &other, NULL), 0);
        assert_int_equal(d->ops->copy_async(d, NULL, other.address, host, 16, NULL),
                         CAIRN_ERR_DEVICE);
        d->ops->unmap(d, &other);
        emu->fault("cuMemSetAccess", 1, CUDA_NOT_SUPPORTED);
        assert_int_equal(d->ops->import_fd(d, fd, m.bytes, true, &other, NULL), 0);
        assert_string_equal(emu->fired(), "cuMemSetAccess");
        assert_int_equal(d->ops->copy_async(d, NULL, host, other.address, 16, NULL), 0);
        assert_int_equal(d->ops->synchronize(d, contract_deadline(), NULL), 0);
        d->ops->unmap(d, &other);
        (void) close(fd);
        contract_host_free(d, host, 4096);
        d->ops->release(d, &m);
}

/* ---- memory that others allocated ---- */

static int look_at(struct device *d, cuda_address address, uint64_t bytes, bool *ret_host,
                   struct cairn_error *e) {
        *e = (struct cairn_error) CAIRN_ERROR_INIT;
        return d->ops->check_memory(d, (void *) (uintptr_t) address, bytes, ret_host, e);
}

#define REFUSED(address, bytes, text)                                                   \
        do {                                                                            \
                assert_int_equal(look_at(d, address, bytes, &host, &e), CAIRN_ERR_API); \
                if (!strstr(e.message, text))                                           \
                        fail_msg("%s", e.message);                                      \
        } while (0)
#define TAKEN(address, bytes, on_host)                                      \
        do {                                                                \
                assert_int_equal(look_at(d, address, bytes, &host, &e), 0); \
                assert_int_equal(host, on_host);                            \
        } while (0)

static void memory_of_others_is_looked_at(void **state) {
        struct device *d = *state, *second;
        struct device_memory far;
        struct cairn_error e;
        cuda_address a;
        bool host;
        assert_int_equal(device_cuda.open(1, &second, NULL), 0);
        assert_int_equal(second->ops->allocate(second, 1, &far, NULL), 0);
        struct cuda_context *context;
        assert_int_equal(cu->DevicePrimaryCtxRetain(&context, 0), CUDA_OK);
        assert_int_equal(cu->CtxPushCurrent(context), CUDA_OK);
        assert_int_equal(cu->MemAlloc(&a, 8192), CUDA_OK);
        TAKEN(a, 8192, false);
        TAKEN(a + 8191, 1, false);
        REFUSED(a + 8191, 2, "beyond the allocation, which has 1 from there on");
        REFUSED(a, UINT64_MAX - a, "beyond the allocation, which has 8192");
        REFUSED((uintptr_t) far.address, 1, "memory of GPU 1, and this is a session of GPU 0");
        emu->manage(far.address); /* it is on no GPU for good */
        TAKEN((uintptr_t) far.address, 1, false);
        /* What a driver does not say is not checked, nor is it an error. */
        for (uint64_t nth = 1; nth <= 6; nth++) {
                emu->fault("cuPointerGetAttribute", nth, CUDA_NOT_SUPPORTED);
                TAKEN(a, 8192, false);
                assert_string_equal(emu->fired(), "cuPointerGetAttribute");
        }
        emu->fault(NULL, 0, CUDA_OK);
        assert_int_equal(cu->MemFree(a), CUDA_OK);
        TAKEN(a, 1, true); /* nobody's: the process is asked */
        assert_int_equal(cu->CtxPopCurrent(&context), CUDA_OK);
        assert_int_equal(cu->DevicePrimaryCtxRelease(0), CUDA_OK);
        second->ops->release(second, &far);
        second->ops->close(second);
}

/* Several allocations side by side behind reserved addresses, as frameworks let a segment grow. */
static void memory_that_grows_is_looked_at(void **state) {
        enum { UNIT = 64 * KiB };
        const struct cuda_allocation unit = {.type = CUDA_ALLOCATION_PINNED,
                                             .location = {CUDA_LOCATION_DEVICE, 0}};
        struct device *d = *state;
        struct cairn_error e;
        struct cuda_context *context;
        cuda_handle handles[2];
        cuda_address a;
        bool host;
        assert_int_equal(cu->DevicePrimaryCtxRetain(&context, 0), CUDA_OK);
        assert_int_equal(cu->CtxPushCurrent(context), CUDA_OK);
        assert_int_equal(cu->MemAddressReserve(&a, 4 * UNIT, 0, 0, 0), CUDA_OK);
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(cu->MemCreate(&handles[i], UNIT, &unit, 0), CUDA_OK);
                assert_int_equal(cu->MemMap(a + i * UNIT, UNIT, 0, handles[i], 0), CUDA_OK);
                assert_int_equal(cu->MemRelease(handles[i]), CUDA_OK);
        }
        TAKEN(a, 2 * UNIT, false);
        TAKEN(a + UNIT - 1, 2, false);
        REFUSED(a, 2 * UNIT + 1, "not all of its 131073 bytes are mapped");
        REFUSED(a, 4 * UNIT + 1, "beyond the allocation");
        TAKEN(a + 3 * UNIT, 1, true); /* nothing is there: the process is asked, and has nothing */
        for (unsigned i = 0; i < 2; i++)
                assert_int_equal(cu->MemUnmap(a + i * UNIT, UNIT), CUDA_OK);
        assert_int_equal(cu->MemAddressFree(a, 4 * UNIT), CUDA_OK);
        assert_int_equal(cu->CtxPopCurrent(&context), CUDA_OK);
        assert_int_equal(cu->DevicePrimaryCtxRelease(0), CUDA_OK);
}

/* Errors that the driver cannot name are told none the less. */
static void errors_without_a_name(void **state) {
        struct device *d = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        emu->fault("cuGetErrorName", 1, CUDA_DEINITIALIZED);
        assert_int_equal(d->ops->host_register(d, NULL, 4096, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_INVALID_VALUE);
        assert_non_null(strstr(e.message, "an error that the driver does not know"));
        emu->fault("cuGetErrorString", 1, CUDA_DEINITIALIZED);
        assert_int_equal(d->ops->host_register(d, NULL, 4096, &e), CAIRN_ERR_DEVICE);
        assert_string_equal(e.message, "CUDA_ERROR_INVALID_VALUE (no description)");
}

/* ---- time ---- */

static uint64_t soon(void) {
        return clock_now(&clock_system) + 20 * NSEC_PER_MSEC;
}

static void waits_end_at_their_deadline(void **state) {
        struct device *d = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct device_event event = {0};
        struct device_memory m;
        struct chunks c;
        assert_int_equal(d->ops->allocate(d, 1, &m, NULL), 0);
        unsigned char *host = contract_host_new(d, 4096 * 8);
        emu->hold(true);
        assert_int_equal(d->ops->copy_async(d, NULL, m.address, host, 4096, NULL), 0);
        assert_int_equal(d->ops->event_record(d, &event, NULL, NULL), 0);
        assert_int_equal(d->ops->event_query(d, &event, &e), CAIRN_ERR_BUSY);
        assert_int_equal(d->ops->event_wait(d, &event, soon(), &e), CAIRN_ERR_TIMEOUT);
        assert_int_equal(d->ops->synchronize(d, soon(), &e), CAIRN_ERR_TIMEOUT);
        /* The third chunk waits for the first; then it can still be ended. */
        chunks_init(&c, d, NULL, 4096, NULL, NULL);
        assert_int_equal(chunks_copy(&c, m.address, host, 4096 * 8ull, soon(), &e),
                         CAIRN_ERR_TIMEOUT);
        assert_int_equal(c.in_flight, 2);
        assert_int_equal(chunks_end(&c, soon(), &e), CAIRN_ERR_TIMEOUT);
        emu->hold(false);
        assert_int_equal(chunks_end(&c, contract_deadline(), &e), 0);
        assert_int_equal(c.arrived_bytes, UINT64_C(2) * 4096);
        chunks_done(&c);
        assert_int_equal(d->ops->event_wait(d, &event, contract_deadline(), NULL), 0);
        d->ops->event_done(d, &event);
        contract_host_free(d, host, 4096 * 8);
        d->ops->release(d, &m);
}

/* A queue of the caller's: the own stream has nothing to do with it. */
static void copies_on_another_queue(void **state) {
        struct device *d = *state;
        struct device_event event = {0};
        struct device_memory m;
        struct cuda_context *context;
        struct cuda_stream *stream;
        assert_int_equal(cu->DevicePrimaryCtxRetain(&context, 0), CUDA_OK);
        assert_int_equal(cu->CtxPushCurrent(context), CUDA_OK);
        assert_int_equal(cu->StreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0),
                         CUDA_OK);
        assert_int_equal(d->ops->allocate(d, 1, &m, NULL), 0);
        unsigned char *host = contract_host_new(d, 4096);
        emu->hold(true);
        assert_int_equal(d->ops->copy_async(d, stream, m.address, host, 4096, NULL), 0);
        assert_int_equal(d->ops->event_record(d, &event, stream, NULL), 0);
        assert_int_equal(d->ops->synchronize(d, soon(), NULL), 0);
        assert_int_equal(d->ops->event_query(d, &event, NULL), CAIRN_ERR_BUSY);
        emu->hold(false);
        assert_int_equal(d->ops->event_wait(d, &event, contract_deadline(), NULL), 0);
        d->ops->event_done(d, &event);
        contract_host_free(d, host, 4096);
        d->ops->release(d, &m);
        assert_int_equal(cu->StreamDestroy(stream), CUDA_OK);
        assert_int_equal(cu->CtxPopCurrent(NULL), CUDA_OK);
        assert_int_equal(cu->DevicePrimaryCtxRelease(0), CUDA_OK);
}

/* ---- errors ---- */

static void a_copy_that_breaks_is_told_by_its_event(void **state) {
        struct device *d = *state;
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct device_event event = {0};
        struct device_memory m;
        assert_int_equal(d->ops->allocate(d, 1, &m, NULL), 0);
        unsigned char *host = contract_host_new(d, 4096);
        emu->break_operation(1, CUDA_ECC_UNCORRECTABLE);
        assert_int_equal(d->ops->copy_async(d, NULL, host, m.address, 4096, NULL), 0);
        (void) d->ops->event_record(d, &event, NULL, NULL);
        event.recorded = true; /* the error may have come before it was */
        assert_int_equal(d->ops->event_wait(d, &event, contract_deadline(), &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_ECC_UNCORRECTABLE);
        assert_non_null(strstr(e.message, "it has to end"));
        assert_int_equal(d->ops->copy_async(d, NULL, host, m.address, 4096, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_ECC_UNCORRECTABLE);
        /* Everything can still be called; the process has to end to be rid of it. */
        d->ops->event_done(d, &event);
        d->ops->release(d, &m);
        (void) d->ops->host_unregister(d, host, NULL);
}

static unsigned descriptors(void) {
        unsigned count = 0;
        DIR *dir = opendir("/proc/self/fd");
        assert_non_null(dir);
        while (readdir(dir))
                count++;
        (void) closedir(dir);
        return count;
}

/* Functions whose error is of earlier work, in verbs that have nobody to tell or cannot fail. */
static bool may_pass(const char *function) {
        static const char *const quiet[] = {"cuCtxPopCurrent_v2",
                                            "cuMemUnmap",
                                            "cuMemAddressFree",
                                            "cuMemRelease",
                                            "cuStreamDestroy_v2",
                                            "cuEventDestroy_v2",
                                            "cuDevicePrimaryCtxRelease_v2"};
        for (size_t i = 0; i < sizeof quiet / sizeof *quiet; i++)
                if (strcmp(function, quiet[i]) == 0)
                        return true;
        /* The first push of a verb that frees is tried again; synchronize is, in the test. */
        return strcmp(function, "cuCtxPushCurrent_v2") == 0 ||
               strcmp(function, "cuStreamQuery") == 0;
}

struct met {
        const char *names[64];
        unsigned count;
};

static void note(struct met *met, const char *function) {
        for (unsigned i = 0; i < met->count; i++)
                if (met->names[i] == function)
                        return;
        met->names[met->count++] = function;
}

static void sweep(enum cuda_result result, struct met *met) {
        unsigned open_before = descriptors();
        for (uint64_t n = 1;; n++) {
                struct cairn_error e = CAIRN_ERROR_INIT;
                emu->fault(NULL, n, result);
                int r = contract_life(&device_cuda, &e);
                const char *fired = emu->fired();
                emu->fault(NULL, 0, CUDA_OK);
                if (!fired) {
                        assert_int_equal(r, 0);
                        assert_true(n > 50);
                        break;
                }
                note(met, fired);
                if (r == 0 && !may_pass(fired))
                        fail_msg("%s failed and nobody was told", fired);
                if (r < 0 && result == CUDA_NOT_PERMITTED &&
                    (r != CAIRN_ERR_DEVICE || e.system_code != (int) result))
                        fail_msg("%s: %d, %s", fired, r, e.message);
                if (r < 0)
                        assert_true(e.message[0] && e.operation[0] && e.object[0]);
                struct emu_counts c;
                emu->counts(&c);
                if (!cuda_result_is_sticky(result)) {
                        assert_int_equal(c.refused, 0);
                        cuda_emulated_assert_empty(emu);
                }
                emu->reset();
                assert_int_equal(descriptors(), open_before);
        }
}

/* Each function once, at each of its calls: a clean error, and nothing is left. */
static void every_call_fails_once(void **state) {
        struct met met = {0};
        emu = cuda_emulated(&cu);
        emu->reset();
        assert_int_equal(contract_life(&device_cuda, NULL), 0);
        struct emu_counts c;
        emu->counts(&c);
        assert_true(c.copies > 0);
        assert_int_equal(c.pageable_copies, 0);
        assert_int_equal(c.refused, 0);
        sweep(CUDA_NOT_PERMITTED, &met);
        sweep(CUDA_OUT_OF_MEMORY, &met);
        print_message("%u functions failed in turn\n", met.count);
        assert_int_equal(met.count, 28);
}

static void every_call_fails_for_good(void **state) {
        struct met met = {0};
        sweep(CUDA_LAUNCH_FAILED, &met);
}

#define GOOD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(memory_outlives_its_owner),
                GOOD(memory_is_zeroed_and_shared),
                GOOD(foreign_descriptors_are_refused),
                GOOD(sizes_out_of_range_are_refused),
                GOOD(good_memory_is_taken),
                GOOD(copies_and_events),
                GOOD(what_cannot_be_opened),
                GOOD(the_threads_context_stays),
                GOOD(memory_that_is_not_there),
                GOOD(read_only_where_it_can),
                GOOD(memory_of_others_is_looked_at),
                GOOD(memory_that_grows_is_looked_at),
                GOOD(errors_without_a_name),
                GOOD(waits_end_at_their_deadline),
                GOOD(copies_on_another_queue),
                cmocka_unit_test_setup_teardown(a_copy_that_breaks_is_told_by_its_event, set_up,
                                                tear_down_broken),
                cmocka_unit_test(every_call_fails_once),
                cmocka_unit_test(every_call_fails_for_good),
        };
        (void) setenv("CAIRN_EMU_DEVICES", "2", 1);
        (void) setenv("CAIRN_EMU_MEMORY", "64", 1);
        (void) setenv("CAIRN_EMU_GRANULARITY", "64", 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
