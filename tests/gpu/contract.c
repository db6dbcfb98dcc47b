/* SPDX-License-Identifier: Apache-2.0
 *
 * Step 2: what device.h promises, asserted of the driver that is there; the same assertions that
 * the emulated one meets in tests/unit/test_cuda.c.
 */
#include "tests/gpu/step.h"
#include "tests/test.h"
#include "tests/unit/device_contract.h"

static int set_up(void **state) {
        return device_cuda.open(0, (struct device **) state, NULL);
}
static int tear_down(void **state) {
        device_cuda.close(*state);
        return 0;
}

/* Before this process has a context: it forks. */
static void memory_outlives_its_owner(void **state) {
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
static void chunks_arrive(void **state) {
        contract_chunks_arrive(*state);
}
static void chunks_stop(void **state) {
        contract_chunks_stop(*state);
}
static void a_whole_life(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[1024];
        if (contract_life(&device_cuda, &e) < 0)
                fail_msg("%s", error_format(&e, text, sizeof text));
}
/* As frameworks allocate: by the driver, and reserved addresses behind which a segment grows out of
 * several allocations. None of it may be refused, wherever in it a tensor lies. */
static void memory_of_frameworks_is_taken(void **state) {
        struct step s;
        struct cuda_allocation unit = {.type = CUDA_ALLOCATION_PINNED,
                                       .location = {CUDA_LOCATION_DEVICE, 0}};
        cuda_address address[2];
        cuda_handle handle;
        (void) state;
        step_open(&s);
        step_enter(&s);
        uint64_t bytes = s.device->ops->granularity(s.device), tiny = 1000;
        assert_int_equal(s.cuda->MemAlloc(&address[0], tiny), CUDA_OK);
        assert_int_equal(s.cuda->MemAddressReserve(&address[1], 4 * bytes, 0, 0, 0), CUDA_OK);
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(s.cuda->MemCreate(&handle, bytes, &unit, 0), CUDA_OK);
                assert_int_equal(s.cuda->MemMap(address[1] + i * bytes, bytes, 0, handle, 0),
                                 CUDA_OK);
                assert_int_equal(s.cuda->MemRelease(handle), CUDA_OK);
        }
        const struct {
                cuda_address first;
                uint64_t bytes;
        } tensors[] = {{address[0], tiny},
                       {address[0] + tiny - 4, 4},
                       {address[1], 2 * bytes},
                       {address[1] + bytes - 4, 8},
                       {address[1] + 2 * bytes - 4, 4}};
        for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
                bool host = true;
                STEP_TRY(s.device->ops->check_memory(s.device,
                                                     (void *) (uintptr_t) tensors[i].first,
                                                     tensors[i].bytes, &host, &s.error));
                assert_false(host);
        }
        for (unsigned i = 0; i < 2; i++)
                assert_int_equal(s.cuda->MemUnmap(address[1] + i * bytes, bytes), CUDA_OK);
        assert_int_equal(s.cuda->MemAddressFree(address[1], 4 * bytes), CUDA_OK);
        assert_int_equal(s.cuda->MemFree(address[0]), CUDA_OK);
        assert_int_equal(step_passed(&s), 0);
}

#define WITH_DEVICE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(memory_outlives_its_owner),
                WITH_DEVICE(memory_is_zeroed_and_shared),
                WITH_DEVICE(foreign_descriptors_are_refused),
                WITH_DEVICE(sizes_out_of_range_are_refused),
                WITH_DEVICE(good_memory_is_taken),
                WITH_DEVICE(copies_and_events),
                WITH_DEVICE(chunks_arrive),
                WITH_DEVICE(chunks_stop),
                cmocka_unit_test(a_whole_life),
                cmocka_unit_test(memory_of_frameworks_is_taken),
        };
        return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
