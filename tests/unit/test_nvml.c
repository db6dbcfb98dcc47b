/* SPDX-License-Identifier: Apache-2.0 */
#include "device/nvml.h"

#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"

static void it_tells(void **state) {
        (void) cuda_emulated(NULL);
        assert_int_equal(setenv("CAIRN_LIBNVML", getenv("CAIRN_LIBCUDA"), 1), 0);
        assert_int_equal(setenv("CAIRN_EMU_PERSISTENCE", "1", 1), 0);
        assert_int_equal(nvml_persistence("0000:01:00.0"), NVML_ON);
        assert_int_equal(setenv("CAIRN_EMU_PERSISTENCE", "0", 1), 0);
        assert_int_equal(nvml_persistence("0000:01:00.0"), NVML_OFF);
        assert_int_equal(nvml_persistence("0000:01:00.1"), NVML_UNKNOWN);
        assert_int_equal(unsetenv("CAIRN_EMU_PERSISTENCE"), 0);
        assert_int_equal(nvml_persistence("0000:01:00.0"), NVML_UNKNOWN);
}

static void what_is_no_such_library_does_not(void **state) {
        assert_int_equal(setenv("CAIRN_LIBNVML", "/nowhere/libnvidia-ml.so.1", 1), 0);
        assert_int_equal(nvml_persistence("0000:01:00.0"), NVML_UNKNOWN);
        assert_int_equal(setenv("CAIRN_LIBNVML", "libm.so.6", 1), 0);
        assert_int_equal(nvml_persistence("0000:01:00.0"), NVML_UNKNOWN);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(it_tells),
                cmocka_unit_test(what_is_no_such_library_does_not),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
