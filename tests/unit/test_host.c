/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test.h"
#include "tests/unit/device_contract.h"

#include "base/limits.h"
#include <errno.h>
#include <sys/mman.h>

static int set_up(void **state) {
        return device_host.open(0, (struct device **) state, NULL);
}
static int tear_down(void **state) {
        device_host.close(*state);
        return 0;
}

static void memory_outlives_its_owner(void **state) {
        contract_memory_outlives_its_owner(&device_host);
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
static void a_life(void **state) {
        assert_int_equal(contract_life(&device_host, NULL), 0);
}

static void memory_is_sealed(void **state) {
        struct device *d = *state;
        struct device_memory m, other;
        assert_int_equal(d->ops->allocate(d, 3 * MiB, &m, NULL), 0);
        assert_int_equal(m.bytes, 4 * MiB);
        assert_int_equal(ftruncate(m.fd, 1), -1);
        assert_int_equal(errno, EPERM);
        /* Host code may touch it. */
        assert_int_equal(d->ops->import_fd(d, m.fd, m.bytes, true, &other, NULL), 0);
        memset(m.address, 7, 64);
        assert_memory_equal(m.address, other.address, 64);
        d->ops->unmap(d, &other);
        d->ops->release(d, &m);
}

static void seals_are_what_counts(void **state) {
        struct device *d = *state;
        struct device_memory m = DEVICE_MEMORY_INIT;
        int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(plain, 4096), 0);
        assert_int_equal(d->ops->import_fd(d, plain, 4096, true, &m, NULL), CAIRN_ERR_CORRUPT);
        assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        assert_int_equal(d->ops->import_fd(d, plain, 4096, true, &m, NULL), 0);
        d->ops->unmap(d, &m);
        close(plain);
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

/* No deadline is needed. */
static void copies_and_events_are_immediate(void **state) {
        struct device *d = *state;
        struct device_event e = {0};
        char source[100], target[100] = {0};
        memset(source, 3, sizeof source);
        assert_int_equal(d->ops->copy_async(d, NULL, target, source, sizeof source, NULL), 0);
        assert_int_equal(d->ops->event_record(d, &e, NULL, NULL), 0);
        assert_int_equal(d->ops->event_wait(d, &e, 0, NULL), 0);
        assert_int_equal(d->ops->synchronize(d, 0, NULL), 0);
        assert_memory_equal(source, target, sizeof source);
        d->ops->event_done(d, &e);
        assert_string_equal(d->ops->name, "host");
        assert_int_equal(d->ops->class, DEVICE_CLASS_HOST);
        assert_int_equal(d->ops->granularity(d), 2 * MiB);
}

static void there_is_one_host(void **state) {
        struct device *d;
        assert_int_equal(device_host.open(1, &d, NULL), CAIRN_ERR_API);
}

#define ON_HOST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(memory_outlives_its_owner),
                ON_HOST(memory_is_zeroed_and_shared),
                ON_HOST(foreign_descriptors_are_refused),
                ON_HOST(sizes_out_of_range_are_refused),
                ON_HOST(good_memory_is_taken),
                ON_HOST(copies_and_events),
                cmocka_unit_test(a_life),
                ON_HOST(memory_is_sealed),
                ON_HOST(seals_are_what_counts),
                ON_HOST(a_forked_child_has_no_mapping),
                ON_HOST(copies_and_events_are_immediate),
                cmocka_unit_test(there_is_one_host),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
