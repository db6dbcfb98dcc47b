/* SPDX-License-Identifier: Apache-2.0
 *
 * device/chunks.c over both implementations of a device.
 */
#include "device/chunks.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"
#include "tests/unit/device_contract.h"

static void on_the_host(void **state) {
        struct device *d;
        assert_int_equal(device_host.open(0, &d, NULL), 0);
        contract_chunks_arrive(d);
        contract_chunks_stop(d);
        device_host.close(d);
}

static void on_the_emulated_gpu(void **state) {
        const struct cuda_driver *cuda;
        const struct emu_control *emu = cuda_emulated(&cuda);
        struct device *d;
        assert_int_equal(device_cuda.open(0, &d, NULL), 0);
        contract_chunks_arrive(d);
        contract_chunks_stop(d);
        device_cuda.close(d);
        cuda_emulated_assert_empty(emu);
}

/* An event that could not be recorded is recorded by the next call. */
static void an_event_that_failed(void **state) {
        const struct cuda_driver *cuda;
        const struct emu_control *emu = cuda_emulated(&cuda);
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct device_memory m;
        struct device *d;
        struct chunks c;
        assert_int_equal(device_cuda.open(0, &d, NULL), 0);
        assert_int_equal(d->ops->allocate(d, 4096 * 8, &m, NULL), 0);
        unsigned char *host = contract_host_new(d, 4096 * 8);
        chunks_init(&c, d, NULL, 4096, NULL, NULL);
        emu->fault("cuEventRecord", 3, CUDA_OUT_OF_MEMORY);
        assert_int_equal(
                chunks_copy(&c, m.address, host, UINT64_C(4096) * 8, contract_deadline(), &e),
                CAIRN_ERR_NOMEM);
        assert_int_equal(c.open_bytes, 4096);
        assert_int_equal(chunks_copy(&c, (char *) m.address + 4096 * 3, host, UINT64_C(4096) * 5,
                                     contract_deadline(), &e),
                         0);
        assert_int_equal(chunks_end(&c, contract_deadline(), &e), 0);
        assert_int_equal(c.arrived_bytes, UINT64_C(4096) * 8);
        chunks_done(&c);
        contract_host_free(d, host, 4096 * 8);
        d->ops->release(d, &m);
        device_cuda.close(d);
        cuda_emulated_assert_empty(emu);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(on_the_host),
                cmocka_unit_test(on_the_emulated_gpu),
                cmocka_unit_test(an_event_that_failed),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
