/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/nccl_library.h"
#include "tests/test.h"

#include <dlfcn.h>

static void name(const char *path) {
        assert_int_equal(setenv("CAIRN_LIBNCCL", path, 1), 0);
}

static void name_script(void) {
        const char *build = getenv("BUILD");
        char path[512];
        (void) snprintf(path, sizeof path, "%s/tests/comm/libnccl-script.so",
                        build ? build : "build");
        name(path);
}

static void the_scripted_one(void **state) {
        struct nccl_library l = {0};
        name_script();
        assert_int_equal(setenv("NCCL_COMM_BLOCKING", "1", 1), 0);
        assert_int_equal(nccl_library_load(&l, NULL), 0);
        assert_int_equal(l.version, 22809);
        assert_non_null(l.GroupEnd);
        assert_null(getenv("NCCL_COMM_BLOCKING"));
}

static void what_is_not_it_is_refused(void **state) {
        struct nccl_library l = {0};
        struct cairn_error e = CAIRN_ERROR_INIT;
        name("/no/such/library.so");
        assert_int_equal(nccl_library_load(&l, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "$CAIRN_LIBNCCL"));
        name("libm.so.6");
        assert_int_equal(nccl_library_load(&l, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "ncclGetVersion"));
        name_script();
        assert_int_equal(setenv("CAIRN_NCCL_SCRIPT", "version=old", 1), 0);
        assert_int_equal(nccl_library_load(&l, &e), CAIRN_ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "21300"));
        assert_int_equal(unsetenv("CAIRN_NCCL_SCRIPT"), 0);
        assert_null(l.GetVersion);
}

/* NVIDIA's own takes our table, where it is installed; an id needs no device. */
static void the_real_one(void **state) {
        struct nccl_library l = {0};
        struct nccl_id id = {{0}}, none = {{0}};
        void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
                print_message("without libnccl.so.2: not tried on the real one\n");
                return;
        }
        name("");
        assert_int_equal(nccl_library_load(&l, NULL), 0);
        assert_true(l.version >= NCCL_ABI_VERSION_MIN);
        assert_int_equal(l.GetUniqueId(&id), NCCL_OK);
        assert_memory_not_equal(&id, &none, sizeof id);
        assert_string_equal(l.GetErrorString(NCCL_INVALID_USAGE), "invalid usage (run with "
                                                                  "NCCL_DEBUG=WARN for details)");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_scripted_one),
                cmocka_unit_test(what_is_not_it_is_refused),
                cmocka_unit_test(the_real_one),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
