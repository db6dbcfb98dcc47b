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

#define WITH_DEVICE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(memory_outlives_its_owner),
                WITH_DEVICE(memory_is_zeroed_and_shared),
                WITH_DEVICE(foreign_descriptors_are_refused),
                WITH_DEVICE(sizes_out_of_range_are_refused),
                WITH_DEVICE(copies_and_events),
                WITH_DEVICE(chunks_arrive),
                WITH_DEVICE(chunks_stop),
                cmocka_unit_test(a_whole_life),
        };
        return cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1;
}
