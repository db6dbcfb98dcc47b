/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor.h"

#include "tests/test.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* What the probe said about it: "weak: remedy". */
static const char *verdict_of(const struct doctor *d, const char *probe) {
        static char text[512];
        size_t i;
        json_t *row;
        json_array_foreach(d->probes, i, row) {
                const char *remedy = json_string_value(json_object_get(row, "remedy"));
                if (strcmp(json_string_value(json_object_get(row, "probe")), probe) != 0)
                        continue;
                (void) snprintf(text, sizeof text, "%s: %s",
                                json_string_value(json_object_get(row, "verdict")),
                                remedy ? remedy : "");
                return text;
        }
        return "";
}

static void test_ring(void **state) {
        struct doctor d = {.probes = json_array()};
        doctor_report_ring(&d, "{\"backend\":\"io_uring\",\"registered_bytes\":4096,"
                               "\"warning\":null}");
        assert_string_equal(verdict_of(&d, "io_uring"), "good: ");
        assert_string_equal(verdict_of(&d, "locked memory"), "good: ");
        json_array_clear(d.probes);
        doctor_report_ring(&d, "{\"backend\":\"io_uring\",\"registered_bytes\":0,"
                               "\"warning\":\"registering buffers refused\"}");
        assert_non_null(strstr(verdict_of(&d, "locked memory"), "weak: ulimit -l"));
        json_array_clear(d.probes);
        doctor_report_ring(&d, "{\"backend\":\"threads\",\"registered_bytes\":0,\"warning\":"
                               "\"io_uring refused (Operation not permitted)\"}");
        assert_non_null(strstr(verdict_of(&d, "io_uring"), "weak: "));
        assert_string_equal(verdict_of(&d, "locked memory"), "");
        assert_false(d.bad); /* threads do it, too */
        doctor_report_ring(&d, "no answer");
        assert_true(d.bad);
        json_decref(d.probes);
}

static void write_text(const char *path, const char *text) {
        int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
        (void) close(fd);
}

static void test_cgroup_limit(void **state) {
        const char *temporary = getenv("TMPDIR");
        char root[] = "cgroup-XXXXXX";
        assert_int_equal(chdir(temporary ? temporary : "/tmp"), 0);
        assert_non_null(mkdtemp(root));
        assert_int_equal(chdir(root), 0);
        assert_int_equal(mkdir("m", 0700) | mkdir("m/a", 0700) | mkdir("m/a/b", 0700), 0);
        write_text("memory.max", "1\n"); /* above the mount: not looked at */
        assert_true(doctor_cgroup_limit("m", "/a/b") == UINT64_MAX);
        write_text("m/a/b/memory.max", "max\n");
        assert_true(doctor_cgroup_limit("m", "/a/b") == UINT64_MAX);
        write_text("m/a/memory.max", "4096\n");
        assert_int_equal(doctor_cgroup_limit("m", "/a/b"), 4096); /* the parent's counts */
        write_text("m/a/b/memory.max", "8192\n");
        assert_int_equal(doctor_cgroup_limit("m", "/a/b"), 4096);
        assert_true(doctor_cgroup_limit("m", "/") == UINT64_MAX);
        assert_int_equal(unlink("m/a/b/memory.max") | unlink("m/a/memory.max") |
                                 unlink("memory.max") | rmdir("m/a/b") | rmdir("m/a") | rmdir("m"),
                         0);
        assert_int_equal(chdir(".."), 0);
        assert_int_equal(rmdir(root), 0);
}

static void test_file_systems(void **state) {
        const char *why;
        assert_string_equal(doctor_file_system(0xef53, &why), "ext4");
        assert_null(why);
        assert_string_equal(doctor_file_system(0x6969, &why), "NFS");
        assert_non_null(why);
        assert_string_equal(doctor_file_system(0x794c7630, &why), "overlayfs");
        assert_non_null(why);
        assert_string_equal(doctor_file_system(1, &why), "unknown");
        assert_null(why);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ring),
                cmocka_unit_test(test_cgroup_limit),
                cmocka_unit_test(test_file_systems),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
