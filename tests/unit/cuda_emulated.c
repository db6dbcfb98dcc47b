/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/cuda_emulated.h"
#include "tests/test.h"

#include <dlfcn.h>

const struct emu_control *cuda_emulated(const struct cuda_driver **ret) {
        const char *build = getenv("BUILD");
        char path[512];
        (void) snprintf(path, sizeof path, "%s/tests/cuda/libcuda-emu.so", build ? build : "build");
        assert_int_equal(setenv("CAIRN_LIBCUDA", path, 1), 0);
        if (!ret)
                return NULL;
        assert_int_equal(cuda_driver_load(ret, NULL), 0);
        void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
        assert_non_null(handle);
        const struct emu_control *emu = dlsym(handle, "emu_control");
        assert_non_null(emu);
        (void) dlclose(handle); /* the table holds it */
        return emu;
}

void cuda_emulated_assert_empty(const struct emu_control *emu) {
        struct emu_counts c;
        /* A stream that was destroyed ends on its own. */
        for (int i = 0; i < 10000; i++) {
                emu->counts(&c);
                if (c.streams == 0)
                        break;
                (void) usleep(1000);
        }
        assert_int_equal(c.contexts, 0);
        assert_int_equal(c.allocations, 0);
        assert_int_equal(c.reservations, 0);
        assert_int_equal(c.mappings, 0);
        assert_int_equal(c.registrations, 0);
        assert_int_equal(c.streams, 0);
        assert_int_equal(c.events, 0);
        assert_int_equal(c.modules, 0);
        assert_int_equal(c.operations, 0);
        assert_int_equal(c.abandoned, 0);
}
