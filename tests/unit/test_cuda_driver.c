/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_driver.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"

static void name(const char *path) {
        assert_int_equal(setenv("CAIRN_LIBCUDA", path, 1), 0);
}

static void what_is_not_it_is_refused(void **state) {
        const struct cuda_driver *cuda = NULL;
        struct cairn_error e = CAIRN_ERROR_INIT;
        name("/no/such/library.so");
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_UNSUPPORTED);
        assert_string_equal(e.object, "/no/such/library.so");
        assert_non_null(strstr(e.message, "$CAIRN_LIBCUDA names it: /no/such/library.so: cannot "
                                          "open"));
        assert_non_null(strstr(e.message, "correct or unset the variable"));
        name("libm.so.6");
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "it lacks cuGetErrorName, which drivers have since "
                                          "CUDA 6.0"));
        assert_null(cuda);
}

static enum cuda_result error_name(enum cuda_result result, const char **ret) {
        if (result == CUDA_UNKNOWN)
                return CUDA_INVALID_VALUE;
        *ret = "CUDA_ERROR_NAME";
        return CUDA_OK;
}

static enum cuda_result error_text(enum cuda_result result, const char **ret) {
        *ret = "its text";
        return result == CUDA_UNKNOWN ? CUDA_INVALID_VALUE : CUDA_OK;
}

static void errors_say_what_to_do(void **state) {
        const struct cuda_driver cuda = {.GetErrorName = error_name, .GetErrorString = error_text};
        struct cairn_error e = CAIRN_ERROR_INIT;
        assert_int_equal(cuda_error(&cuda, CUDA_OK, "map", "x", &e), 0);
        assert_int_equal(e.status, 0);
        assert_int_equal(cuda_error(&cuda, CUDA_INVALID_VALUE, "map", "x", &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, 1);
        assert_string_equal(e.operation, "map");
        assert_string_equal(e.object, "x");
        assert_string_equal(e.message, "CUDA_ERROR_NAME (its text)");
        assert_int_equal(cuda_error(&cuda, CUDA_OUT_OF_MEMORY, "map", "x", &e), CAIRN_ERR_NOMEM);
        assert_int_equal(e.system_code, 0);
        assert_non_null(strstr(e.message, "nvidia-smi"));
        assert_int_equal(cuda_error(&cuda, CUDA_NOT_READY, "ask", "x", &e), CAIRN_ERR_BUSY);
        assert_int_equal(cuda_error(&cuda, CUDA_LAUNCH_FAILED, "ask", "x", &e), CAIRN_ERR_DEVICE);
        assert_non_null(strstr(e.message, "it has to end"));
        assert_int_equal(cuda_error(&cuda, CUDA_UNKNOWN, "ask", "x", &e), CAIRN_ERR_DEVICE);
        assert_string_equal(e.message, "an error that the driver does not know (no description)");
        assert_int_equal(cuda_error(&cuda, CUDA_UNKNOWN, "ask", "x", NULL), CAIRN_ERR_DEVICE);
}

static void errors_that_stay(void **state) {
        assert_true(cuda_result_is_sticky(CUDA_ILLEGAL_ADDRESS));
        assert_true(cuda_result_is_sticky(CUDA_ECC_UNCORRECTABLE));
        assert_true(cuda_result_is_sticky(CUDA_CONTAINED));
        assert_true(cuda_result_is_sticky(CUDA_MPS_CLIENT_TERMINATED));
        assert_false(cuda_result_is_sticky(CUDA_OK));
        assert_false(cuda_result_is_sticky(CUDA_OUT_OF_MEMORY));
        assert_false(cuda_result_is_sticky(CUDA_NOT_READY));
        assert_false(cuda_result_is_sticky(CUDA_INVALID_HANDLE));
}

/* The toolkit's stub exports what the real driver does, so that each name is looked up for real. */
static void the_toolkits_stub(void **state) {
        const struct cuda_driver *cuda = NULL;
        struct cairn_error e = CAIRN_ERROR_INIT;
        const char *home = getenv("CUDA_HOME");
        char path[512];
        (void) snprintf(path, sizeof path, "%s/lib64/stubs/libcuda.so",
                        home && home[0] ? home : "/usr/local/cuda");
        if (access(path, R_OK) < 0) {
                print_message("without %s: not tried on it\n", path);
                return;
        }
        name(path);
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_STUB_LIBRARY);
        assert_non_null(strstr(e.message, "the toolkit's stub"));
}

/* The emulated one is read from the environment each time it is loaded, and unloaded after a
 * failure. */
static void one_that_does_not_do_is_refused(void **state) {
        const struct cuda_driver *cuda = NULL;
        struct cairn_error e = CAIRN_ERROR_INIT;
        (void) cuda_emulated(NULL);
        (void) setenv("CAIRN_EMU_VERSION", "11030", 1);
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "made for CUDA 11.3, 11.4 is needed"));
        (void) setenv("CAIRN_EMU_VERSION", "11040", 1);
        (void) setenv("CAIRN_EMU_DEVICES", "0", 1);
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_NO_DEVICE);
        assert_non_null(strstr(e.message, "CUDA_ERROR_NO_DEVICE"));
        assert_non_null(strstr(e.message, "$CUDA_VISIBLE_DEVICES"));
        (void) setenv("CAIRN_EMU_DEVICES", "1", 1);
        (void) setenv("CAIRN_EMU_FAULT", "cuDriverGetVersion:1:803", 1);
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_DEVICE);
        assert_non_null(strstr(e.message, "restart the machine"));
        (void) setenv("CAIRN_EMU_FAULT", "cuInit:1:999", 1);
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_DEVICE);
        assert_int_equal(e.system_code, CUDA_UNKNOWN);
        assert_string_equal(e.operation, "start CUDA");
        assert_null(cuda);
        (void) unsetenv("CAIRN_EMU_FAULT");
}

static void it_is_loaded_once(void **state) {
        const struct cuda_driver *cuda = NULL, *again = NULL;
        int count = 0;
        (void) cuda_emulated(&cuda);
        assert_int_equal(cuda->version, 11040);
        assert_int_equal(cuda->DeviceGetCount(&count), CUDA_OK);
        assert_int_equal(count, 1);
        name("/no/such/library.so");
        assert_int_equal(cuda_driver_load(&again, NULL), 0);
        assert_ptr_equal(again, cuda);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_not_it_is_refused),
                cmocka_unit_test(the_toolkits_stub),
                cmocka_unit_test(one_that_does_not_do_is_refused),
                cmocka_unit_test(it_is_loaded_once),
                cmocka_unit_test(errors_say_what_to_do),
                cmocka_unit_test(errors_that_stay),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
