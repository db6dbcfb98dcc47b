/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_driver.h"
#include "tests/test.h"

static void name(const char *path) {
        assert_int_equal(setenv("CAIRN_LIBCUDA", path, 1), 0);
}

static void what_is_not_it_is_refused(void **state) {
        const struct cuda_driver *cuda = NULL;
        struct cairn_error e = CAIRN_ERROR_INIT;
        name("/no/such/library.so");
        assert_int_equal(cuda_driver_load(&cuda, &e), CAIRN_ERR_UNSUPPORTED);
        assert_string_equal(e.object, "/no/such/library.so");
        assert_non_null(strstr(e.message, "$CAIRN_LIBCUDA"));
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

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_not_it_is_refused),
                cmocka_unit_test(errors_say_what_to_do),
                cmocka_unit_test(errors_that_stay),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
