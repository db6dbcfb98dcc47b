/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/limits.h"
#include "device/device.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

static int set_up(void **state) {
        return device_host.open(0, (struct device **) state, NULL);
}
static int tear_down(void **state) {
        device_host.close(*state);
        return 0;
}

static void memory_is_zeroed_sealed_and_shared(void **state) {
        struct device *d = *state;
        struct device_memory m, other;
        int fd;
        assert_int_equal(d->ops->allocate(d, 3 * MiB, &m, NULL), 0);
        assert_int_equal(m.bytes, 4 * MiB);
        for (uint64_t i = 0; i < m.bytes; i += 4096)
                assert_int_equal(((char *) m.address)[i], 0);
        assert_int_equal(ftruncate(m.fd, 1), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(d->ops->export_fd(d, &m, &fd, NULL), 0);
        assert_int_equal(d->ops->import_fd(d, fd, m.bytes, true, &other, NULL), 0);
        close(fd);
        memset(m.address, 7, 64);
        assert_memory_equal(m.address, other.address, 64);
        /* Memory outlives its owner: the importer still reads it. */
        d->ops->release(d, &m);
        assert_null(m.address);
        assert_int_equal(((char *) other.address)[63], 7);
        d->ops->unmap(d, &other);
}

static void foreign_descriptors_are_refused(void **state) {
        struct device *d = *state;
        struct device_memory m = DEVICE_MEMORY_INIT;
        struct cairn_error e = CAIRN_ERROR_INIT;
        int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(plain, 4096), 0);
        assert_int_equal(d->ops->import_fd(d, plain, 4096, true, &m, &e), CAIRN_ERR_CORRUPT);
        assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        assert_int_equal(d->ops->import_fd(d, plain, 8192, true, &m, &e), CAIRN_ERR_CORRUPT);
        assert_int_equal(d->ops->import_fd(d, plain, 4096, true, &m, &e), 0);
        d->ops->unmap(d, &m);
        close(plain);
        int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(d->ops->import_fd(d, directory, 4096, true, &m, &e), CAIRN_ERR_CORRUPT);
        close(directory);
}

static void sizes_out_of_range_are_refused(void **state) {
        struct device *d = *state;
        struct device_memory m;
        assert_int_equal(d->ops->allocate(d, 0, &m, NULL), CAIRN_ERR_API);
        assert_int_equal(d->ops->allocate(d, UINT64_MAX, &m, NULL), CAIRN_ERR_API);
        assert_int_equal(d->ops->allocate(d, SLAB_BYTES_MAX + 1, &m, NULL), CAIRN_ERR_API);
}

/* Asked of the kernel: another runtime may put something else at that address of the child. */
static bool is_kept_from_children(const void *address) {
        char line[512], start[32];
        bool found = false, kept = false;
        FILE *f = fopen("/proc/self/smaps", "re");
        assert_non_null(f);
        (void) snprintf(start, sizeof start, "%lx-", (unsigned long) (uintptr_t) address);
        while (fgets(line, sizeof line, f)) {
                if (strncmp(line, start, strlen(start)) == 0)
                        found = true;
                if (found && strncmp(line, "VmFlags:", 8) == 0) {
                        kept = strstr(line, " dc") != NULL;
                        break;
                }
        }
        (void) fclose(f);
        return kept;
}

static void a_forked_child_has_no_mapping(void **state) {
        struct device *d = *state;
        struct device_memory m, other;
        assert_int_equal(d->ops->allocate(d, 4096, &m, NULL), 0);
        assert_true(is_kept_from_children(m.address));
        assert_int_equal(d->ops->import_fd(d, m.fd, m.bytes, true, &other, NULL), 0);
        assert_true(is_kept_from_children(other.address));
        d->ops->unmap(d, &other);
        d->ops->release(d, &m);
}

static void copies_and_events_are_immediate(void **state) {
        struct device *d = *state;
        struct device_event e = {0};
        char source[100], target[100] = {0};
        memset(source, 3, sizeof source);
        assert_int_equal(d->ops->event_query(d, &e, NULL), CAIRN_ERR_API);
        assert_int_equal(d->ops->copy_async(d, NULL, target, source, sizeof source, NULL), 0);
        assert_int_equal(d->ops->copy_async(d, NULL, NULL, NULL, 0, NULL), 0);
        assert_int_equal(d->ops->event_record(d, &e, NULL, NULL), 0);
        assert_int_equal(d->ops->event_query(d, &e, NULL), 0);
        assert_int_equal(d->ops->event_wait(d, &e, 0, NULL), 0);
        assert_int_equal(d->ops->synchronize(d, NULL), 0);
        assert_memory_equal(source, target, sizeof source);
        assert_int_equal(d->ops->host_register(d, source, sizeof source, NULL), 0);
        assert_int_equal(d->ops->host_unregister(d, source, NULL), 0);
        d->ops->event_done(d, &e);
        assert_string_equal(d->ops->name, "host");
        assert_int_equal(d->ops->class, DEVICE_CLASS_HOST);
        assert_int_equal(d->ops->granularity(d), 2 * MiB);
}

static void there_is_one_host(void **state) {
        struct device *d;
        assert_int_equal(device_host.open(1, &d, NULL), CAIRN_ERR_API);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(memory_is_zeroed_sealed_and_shared, set_up,
                                                tear_down),
                cmocka_unit_test_setup_teardown(foreign_descriptors_are_refused, set_up, tear_down),
                cmocka_unit_test_setup_teardown(sizes_out_of_range_are_refused, set_up, tear_down),
                cmocka_unit_test_setup_teardown(a_forked_child_has_no_mapping, set_up, tear_down),
                cmocka_unit_test_setup_teardown(copies_and_events_are_immediate, set_up, tear_down),
                cmocka_unit_test(there_is_one_host),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
