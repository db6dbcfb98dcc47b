/* SPDX-License-Identifier: Apache-2.0
 *
 * The probe on the emulated driver: what works, what is lacking, and each call of it failing once.
 */
#include "device/gpu_probe.h"

#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"

static const struct emu_control *emu;

static int set_up(void **state) {
        const struct cuda_driver *cuda;
        emu = cuda_emulated(&cuda);
        assert_int_equal(setenv("CAIRN_LIBNVML", getenv("CAIRN_LIBCUDA"), 1), 0);
        emu->reset();
        return 0;
}

static int tear_down(void **state) {
        cuda_emulated_assert_empty(emu);
        return 0;
}

static void all_is_well(void **state) {
        struct gpu_driver_found driver;
        struct gpu_found gpu;
        gpu_probe_driver(&driver);
        assert_int_equal(driver.error.status, 0);
        assert_true(driver.present);
        assert_false(driver.none);
        assert_non_null(strstr(driver.library, "libcuda-emu.so"));
        assert_int_equal(driver.version, 12040);
        assert_int_equal(driver.count, 2);
        assert_int_equal(setenv("CAIRN_EMU_PERSISTENCE", "0", 1), 0);
        gpu_probe(1, &gpu);
        assert_int_equal(unsetenv("CAIRN_EMU_PERSISTENCE"), 0);
        assert_int_equal(gpu.error.status, 0);
        assert_int_equal(gpu.slab.status, 0);
        assert_int_equal(gpu.staging.status, 0);
        assert_string_equal(gpu.name, "emulated GPU");
        assert_string_equal(gpu.uuid, "GPU-656d756c-6174-6564-2047-505500000001");
        assert_string_equal(gpu.bus_id, "0000:02:00.0");
        assert_true(gpu.memory_bytes > 0);
        assert_true(gpu.capability >= 70);
        assert_true(gpu.vmm && gpu.posix_fd && gpu.host_register && !gpu.exclusive);
        assert_int_equal(gpu.persistence, NVML_OFF);
}

static void what_is_lacking_is_said(void **state) {
        struct gpu_found gpu;
        emu->lack(CUDA_ATTRIBUTE_VMM_SUPPORTED);
        gpu_probe(0, &gpu);
        assert_int_equal(gpu.error.status, 0);
        assert_false(gpu.vmm);
        assert_true(gpu.posix_fd && gpu.host_register);
        assert_int_equal(gpu.slab.status, CAIRN_ERR_UNSUPPORTED);
        emu->lack(CUDA_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
        gpu_probe(0, &gpu);
        assert_true(gpu.vmm && !gpu.host_register);
        emu->lack(0);
        gpu_probe(7, &gpu);
        assert_int_equal(gpu.error.status, CAIRN_ERR_DEVICE);
}

/* Whichever call fails is seen in one of the three errors, and nothing stays. */
static void each_call_fails_once(void **state) {
        struct gpu_found gpu;
        unsigned failed = 0;
        for (uint64_t nth = 1;; nth++) {
                emu->reset();
                emu->fault(NULL, nth, CUDA_UNKNOWN);
                gpu_probe(0, &gpu);
                const char *fired = emu->fired();
                if (!fired)
                        break;
                emu->fault(NULL, 0, CUDA_OK);
                cuda_emulated_assert_empty(emu);
                failed += gpu.error.status < 0 || gpu.slab.status < 0 || gpu.staging.status < 0;
        }
        /* Most of them; what frees has nobody to tell. */
        assert_true(failed > 20);
}

static void a_driver_without_gpus(void **state) {
        struct gpu_driver_found driver;
        emu->fault("cuDeviceGetCount", 1, CUDA_UNKNOWN);
        gpu_probe_driver(&driver);
        assert_int_equal(driver.error.status, CAIRN_ERR_DEVICE);
        assert_int_equal(driver.count, 0);
        assert_false(driver.none);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(all_is_well, set_up, tear_down),
                cmocka_unit_test_setup_teardown(what_is_lacking_is_said, set_up, tear_down),
                cmocka_unit_test_setup_teardown(each_call_fails_once, set_up, tear_down),
                cmocka_unit_test_setup_teardown(a_driver_without_gpus, set_up, tear_down),
        };
        assert_int_equal(setenv("CAIRN_EMU_DEVICES", "2", 1), 0);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
