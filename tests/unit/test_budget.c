/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/budget.h"
#include "base/limits.h"
#include "tests/test.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char folder[512], membership[600], mounts[600];

static int setup(void **state) {
        (void) close(test_folder(folder, sizeof folder));
        (void) snprintf(membership, sizeof membership, "%s/cgroup", folder);
        (void) snprintf(mounts, sizeof mounts, "%s/fs", folder);
        return mkdir(mounts, 0700);
}

/* With the folders on the way. */
static void put(const char *path, const char *text) {
        char full[1200];
        (void) snprintf(full, sizeof full, "%s/%s", mounts, path);
        for (char *c = full + strlen(mounts) + 1; (c = strchr(c, '/')); *c++ = '/') {
                *c = 0;
                assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        }
        FILE *f = fopen(full, "we");
        assert_non_null(f);
        (void) fputs(text, f);
        assert_int_equal(fclose(f), 0);
}

static uint64_t left_of(const char *lines) {
        FILE *f = fopen(membership, "we");
        assert_non_null(f);
        (void) fputs(lines, f);
        assert_int_equal(fclose(f), 0);
        return budget_groups_left(membership, mounts);
}

static void test_second_version(void **state) {
        assert_int_equal(left_of("0::/job.slice/cairnd.service\n"), UINT64_MAX);
        put("job.slice/cairnd.service/memory.max", "max\n");
        put("job.slice/cairnd.service/memory.current", "1000\n");
        assert_int_equal(left_of("0::/job.slice/cairnd.service\n"), UINT64_MAX);
        put("job.slice/memory.max", "10000\n");
        put("job.slice/memory.current", "4000\n");
        assert_int_equal(left_of("0::/job.slice/cairnd.service\n"), 6000);
        /* What can be dropped does not count. */
        put("job.slice/memory.stat", "anon 1\nactive_file 100\ninactive_file 900\n");
        assert_int_equal(left_of("0::/job.slice/cairnd.service\n"), 7000);
        put("job.slice/cairnd.service/memory.max", "1500\n");
        assert_int_equal(left_of("0::/job.slice/cairnd.service\n"), 500);
        put("job.slice/cairnd.service/memory.max", "900\n"); /* lowered beneath what is used */
        assert_int_equal(left_of("0::/job.slice/cairnd.service\n"), 0);
}

static void test_first_version(void **state) {
        const char *lines = "9:name=systemd:/\n5:cpu,memory,pids:/docker/abc\n3:cpuset:/x\n0::/\n";
        put("memory/docker/abc/memory.limit_in_bytes", "2000\n");
        put("memory/docker/abc/memory.usage_in_bytes", "1800\n");
        put("memory/docker/abc/memory.stat",
            "inactive_file 7\ntotal_inactive_file 100\ntotal_active_file 50\n");
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        put("memory/memory.usage_in_bytes", "5000\n");
        assert_int_equal(left_of(lines), 350);
        /* In a container the machine's path is not there: its own group is the root. */
        put("memory/memory.limit_in_bytes", "5100\n");
        assert_int_equal(left_of("5:memory:/kubepods/pod1/c\n"), 100);
        /* Other controllers, and lines that are none. */
        assert_int_equal(left_of("5:memory2:/docker/abc\n4:mem:/docker/abc\nmemory\n:\n"),
                         UINT64_MAX);
        assert_int_equal(budget_groups_left("/nonexistent", mounts), UINT64_MAX);
}

static void test_others_count(void **state) {
        struct budget all, some;
        budget_read(&(struct budget_use){0}, &all);
        assert_int_equal(all.configured_bytes, UINT64_MAX);
        assert_true(all.memory_bytes > 4 * MiB);
        budget_read(&(struct budget_use){.bytes_max = 100, .promised = 60}, &some);
        assert_int_equal(some.configured_bytes, 40);
        budget_read(&(struct budget_use){.bytes_max = 100, .promised = 160}, &some);
        assert_int_equal(some.configured_bytes, 0);
        /* Promised and not filled yet: whoever comes next may not have it. */
        budget_read(&(struct budget_use){.unfilled = UINT64_MAX / 2}, &some);
        assert_int_equal(some.memory_bytes, 0);
        budget_read(&(struct budget_use){.unfilled = (1024 * GiB), .freed = (1024 * GiB)}, &some);
        assert_true(some.memory_bytes > 0);
}

static void test_sentence(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        const struct budget b = {
                .configured_bytes = 4000, .cgroup_bytes = 3000, .memory_bytes = 5000};
        assert_int_equal(budget_check(&b, 3000, &e), 0);
        assert_int_equal(budget_check(&b, 3001, &e), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(e.message, "3001 bytes of memory are needed"));
        assert_non_null(strstr(e.message, "3000 are left (the memory limit of cairnd's control"));
        assert_non_null(strstr(e.message, "raise that limit"));
        /* Another start cannot do better. */
        assert_int_equal(status_exit_code(CAIRN_ERR_NOMEM), 73);
}

static void test_open_files(void **state) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        struct rlimit limit, small;
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
        small = limit;
        small.rlim_cur = 24;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
        assert_int_equal(budget_check_files(1, &e), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(e.message, "for 1 rank and cairnd may have 24: raise"));
        small.rlim_cur = 200;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &small), 0);
        assert_int_equal(budget_check_files(1, &e), 0);
        assert_int_equal(budget_check_files(64, &e), CAIRN_ERR_NOMEM);
        assert_non_null(strstr(e.message, "for 64 ranks"));
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(test_second_version, setup),
                cmocka_unit_test_setup(test_first_version, setup),
                cmocka_unit_test(test_others_count),
                cmocka_unit_test(test_sentence),
                cmocka_unit_test(test_open_files),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
