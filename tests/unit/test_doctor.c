/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/doctor.h"

#include "base/limits.h"
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
        char root[] = "cgroup-XXXXXX";
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

/* ---- GPUs ---- */

#define DRIVER(count)                                                                            \
        "{\"present\":true,\"library\":\"/lib/libcuda.so.1\",\"version\":12040,\"count\":" count \
        ",\"none\":false,\"error\":null}\n"
#define GPU(number, facts)                                                       \
        "{\"gpu\":" number                                                       \
        ",\"name\":\"H\",\"uuid\":\"GPU-1\",\"bus\":\"0\",\"bytes\":1073741824," \
        "\"capability\":90," facts ",\"error\":null}\n"
#define SOUND                                                                        \
        "\"exclusive\":false,\"vmm\":true,\"posix_fd\":true,\"host_register\":true," \
        "\"persistence\":true,\"slab\":null,\"staging\":null"

static struct doctor report(const char *answer, bool in_time, const char *folder) {
        struct doctor d = {.probes = json_array()};
        char copy[4096];
        (void) snprintf(copy, sizeof copy, "%s", answer);
        doctor_report_gpus(&d, copy, in_time, folder);
        return d;
}

/* A folder of "device nodes"; links to nowhere cannot be opened. */
static void make_nodes(char *folder, bool uvm, bool broken) {
        assert_non_null(mkdtemp(folder));
        assert_int_equal(chdir(folder), 0);
        write_text("nvidiactl", "");
        write_text("nvidia0", "");
        write_text("nvidia-modeset", "");
        if (uvm)
                write_text("nvidia-uvm", "");
        if (broken)
                assert_int_equal(symlink("nowhere", "nvidia1"), 0);
        assert_int_equal(chdir(".."), 0);
}

static void remove_nodes(const char *folder) {
        static const char *const names[] = {"nvidiactl", "nvidia0", "nvidia1", "nvidia-modeset",
                                            "nvidia-uvm"};
        char path[64];
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
                (void) snprintf(path, sizeof path, "%s/%s", folder, names[i]);
                (void) unlink(path);
        }
        assert_int_equal(rmdir(folder), 0);
}

static void test_machine_without_gpu(void **state) {
        struct doctor d = report("{\"present\":false,\"library\":\"libcuda.so.1\",\"version\":0,"
                                 "\"count\":0,\"none\":false,\"error\":\"not there\"}\n",
                                 true, "/nowhere");
        assert_int_equal(json_array_size(d.probes), 1); /* one quiet line */
        assert_string_equal(verdict_of(&d, "NVIDIA driver"), "good: ");
        json_decref(d.probes);
        d = report("{\"present\":true,\"library\":\"libcuda.so.1\",\"version\":0,\"count\":0,"
                   "\"none\":true,\"error\":\"NO_DEVICE\"}\n",
                   true, "/nowhere");
        assert_int_equal(json_array_size(d.probes), 1);
        assert_string_equal(verdict_of(&d, "NVIDIA driver"), "good: ");
        assert_false(d.bad);
        json_decref(d.probes);
}

static void test_driver(void **state) {
        char folder[] = "nodes-XXXXXX";
        make_nodes(folder, true, false);
        struct doctor d = report("{\"present\":false,\"library\":\"libcuda.so.1\",\"version\":0,"
                                 "\"count\":0,\"none\":false,\"error\":\"not there\"}\n",
                                 true, folder);
        assert_non_null(strstr(verdict_of(&d, "NVIDIA driver"), "bad: install NVIDIA's driver"));
        assert_string_equal(verdict_of(&d, "GPU nodes"), "good: ");
        json_decref(d.probes);
        d = report("{\"present\":true,\"library\":\"libcuda.so.1\",\"version\":0,\"count\":0,"
                   "\"none\":true,\"error\":\"NO_DEVICE\"}\n",
                   true, folder); /* hidden by a variable */
        assert_non_null(strstr(verdict_of(&d, "NVIDIA driver"), "weak: look at $CUDA_VISIBLE"));
        json_decref(d.probes);
        d = report("{\"present\":true,\"library\":\"libcuda.so.1\",\"version\":0,\"count\":0,"
                   "\"none\":false,\"error\":\"it is too old\"}\n",
                   true, folder);
        assert_non_null(strstr(verdict_of(&d, "NVIDIA driver"), "bad: "));
        json_decref(d.probes);
        d = report("", false, folder);
        assert_non_null(strstr(verdict_of(&d, "NVIDIA driver"), "bad: "));
        json_decref(d.probes);
        remove_nodes(folder);
}

/* A library that the user named is the user's to correct, not the driver's. */
static void test_driver_that_was_named(void **state) {
        char folder[] = "nodes-XXXXXX";
        make_nodes(folder, true, false);
        assert_int_equal(setenv("CAIRN_LIBCUDA", "/nowhere/libcuda.so.1", 1), 0);
        for (int i = 0; i < 4; i++) { /* with a GPU and without; no library, and another one */
                struct doctor d = report(i < 2 ? "{\"present\":false,\"library\":\"/nowhere\","
                                                 "\"version\":0,\"count\":0,\"none\":false,"
                                                 "\"error\":\"not there\"}\n"
                                               : "{\"present\":true,\"library\":\"libm.so.6\","
                                                 "\"version\":0,\"count\":0,\"none\":false,"
                                                 "\"error\":\"it lacks cuInit\"}\n",
                                         true, i % 2 ? folder : "/nowhere");
                assert_non_null(strstr(verdict_of(&d, "NVIDIA driver"), "bad: unset $CAIRN_LIB"));
                json_decref(d.probes);
        }
        struct doctor d = report("{\"present\":true,\"library\":\"/lib/libcuda.so.1\","
                                 "\"version\":12040,\"count\":0,\"none\":false,"
                                 "\"error\":\"SYSTEM_DRIVER_MISMATCH\"}\n",
                                 true, folder); /* it is a driver */
        assert_non_null(strstr(verdict_of(&d, "NVIDIA driver"), "bad: nvidia-smi"));
        json_decref(d.probes);
        assert_int_equal(unsetenv("CAIRN_LIBCUDA"), 0);
        remove_nodes(folder);
}

static void test_trainer(void **state) {
        struct doctor d = {.probes = json_array()};
        char there[] = "cairn-cuda.so\tgood\t/lib/cairn-cuda.so\ncuBLAS\tlacks\tnot there\n"
                       "NCCL\tgood\t2.28.9\n",
             lacking[] = "cairn-cuda.so\tlacks\tbuild it\nNCCL\tlacks\tinstall it\n",
             none[] = "cairn-train: --probe-gpu: there is no such option\n";
        doctor_report_trainer(&d, there);
        assert_string_equal(verdict_of(&d, "cairn-cuda.so"), "good: ");
        assert_non_null(strstr(verdict_of(&d, "cuBLAS"), "weak: without it"));
        assert_string_equal(verdict_of(&d, "NCCL"), "good: ");
        assert_int_equal(json_array_size(d.probes), 3);
        json_array_clear(d.probes);
        doctor_report_trainer(&d, lacking);
        assert_non_null(strstr(verdict_of(&d, "cairn-cuda.so"), "weak: without it"));
        assert_non_null(strstr(verdict_of(&d, "NCCL"), "--collectives gloo"));
        json_array_clear(d.probes);
        doctor_report_trainer(&d, none);
        assert_non_null(strstr(verdict_of(&d, "cairn-train"), "weak: install"));
        assert_false(d.bad); /* a trainer of the user's own needs none of it */
        json_decref(d.probes);
}

static void test_gpus(void **state) {
        struct doctor d = report(DRIVER("2") GPU("0", SOUND) GPU("1", SOUND), true, "/nowhere");
        static const char *const probes[] = {"NVIDIA driver", "GPU nodes",   "GPU 0",
                                             "GPU 1",         "GPU memory",  "GPU handles",
                                             "GPU staging",   "persistence", "MPS"};
        for (size_t i = 0; i < sizeof probes / sizeof *probes; i++)
                assert_string_equal(verdict_of(&d, probes[i]), "good: ");
        assert_false(d.bad);
        json_decref(d.probes);
        d = report(DRIVER("3") GPU("0", SOUND) "{\"gpu\":1,\"error\":\"fell off the bus\"}\n",
                   false, "/nowhere");
        assert_non_null(strstr(verdict_of(&d, "GPU 1"), "bad: nvidia-smi"));
        assert_non_null(strstr(verdict_of(&d, "GPUs"), "bad: nvidia-smi")); /* the third */
        assert_string_equal(verdict_of(&d, "GPU memory"), "good: ");
        json_decref(d.probes);
}

static void test_abilities(void **state) {
        struct doctor d =
                report(DRIVER("2") GPU("0", SOUND)
                               GPU("1", "\"exclusive\":true,\"vmm\":false,\"posix_fd\":true,"
                                        "\"host_register\":true,\"persistence\":false,"
                                        "\"slab\":\"GPU or driver lacks\",\"staging\":\"refused\""),
                       true, "/nowhere");
        assert_non_null(strstr(verdict_of(&d, "GPU 1"), "weak: nvidia-smi -c DEFAULT"));
        assert_non_null(strstr(verdict_of(&d, "GPU memory"), "bad: without it"));
        assert_non_null(strstr(verdict_of(&d, "GPU handles"), "bad: without them"));
        assert_non_null(strstr(verdict_of(&d, "GPU staging"), "bad: allow more locked memory"));
        assert_non_null(strstr(verdict_of(&d, "persistence"), "weak: nvidia-smi -pm 1"));
        assert_true(d.bad);
        json_decref(d.probes);
        d = report(DRIVER("1") GPU("0", "\"exclusive\":false,\"vmm\":true,\"posix_fd\":true,"
                                        "\"host_register\":true,\"persistence\":null,"
                                        "\"slab\":null,\"staging\":null"),
                   true, "/nowhere");
        assert_string_equal(verdict_of(&d, "persistence"), "good: ");
        json_decref(d.probes);
}

static void test_nodes(void **state) {
        char broken[] = "nodes-XXXXXX", partial[] = "nodes-XXXXXX";
        make_nodes(broken, true, true);
        struct doctor d = report(DRIVER("1") GPU("0", SOUND), true, broken);
        assert_non_null(strstr(verdict_of(&d, "GPU nodes"), "bad: "));
        json_decref(d.probes);
        remove_nodes(broken);
        make_nodes(partial, false, false);
        d = report(DRIVER("1") GPU("0", SOUND), true, partial);
        assert_non_null(strstr(verdict_of(&d, "GPU nodes"), "bad: nvidia-modprobe"));
        json_decref(d.probes);
        remove_nodes(partial);
}

static void test_mps(void **state) {
        char folder[] = "mps-XXXXXX";
        struct doctor d = {.probes = json_array()};
        assert_non_null(mkdtemp(folder));
        assert_int_equal(setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1), 0);
        doctor_report_mps(&d);
        assert_string_equal(verdict_of(&d, "MPS"), "good: ");
        json_array_clear(d.probes);
        assert_int_equal(chdir(folder), 0);
        write_text("control", "");
        assert_int_equal(chdir(".."), 0);
        doctor_report_mps(&d);
        assert_non_null(strstr(verdict_of(&d, "MPS"), "weak: echo quit"));
        json_decref(d.probes);
        assert_int_equal(chdir(folder), 0);
        assert_int_equal(unlink("control"), 0);
        assert_int_equal(chdir(".."), 0);
        assert_int_equal(rmdir(folder), 0);
        assert_int_equal(unsetenv("CUDA_MPS_PIPE_DIRECTORY"), 0);
}

/* A program of that name in $PATH, for this test has none beside it. */
static void make_agent(const char *script) {
        write_text("cairnd", script);
        assert_int_equal(chmod("cairnd", 0700), 0);
}

static void test_asking(void **state) {
        char folder[] = "agent-XXXXXX", answer[8];
        char *before = strdup(getenv("PATH"));
        assert_non_null(mkdtemp(folder));
        char *absolute = realpath(folder, NULL);
        assert_non_null(absolute);
        assert_int_equal(setenv("PATH", absolute, 1), 0);
        answer[0] = 'x';
        assert_int_equal(doctor_ask("cairnd", "--any", NSEC_PER_SEC, answer, sizeof answer), 0);
        assert_string_equal(answer, ""); /* there is none */
        assert_int_equal(chdir(folder), 0);
        make_agent("#!/bin/sh\necho \"$1\"\n");
        assert_int_equal(doctor_ask("cairnd", "--any", 30 * NSEC_PER_SEC, answer, sizeof answer),
                         0);
        assert_string_equal(answer, "--any\n");
        /* More than there is room for; then one that hangs. */
        make_agent("#!/bin/sh\necho 0123456789abcdef\n");
        assert_int_equal(doctor_ask("cairnd", "--any", 30 * NSEC_PER_SEC, answer, sizeof answer),
                         0);
        assert_string_equal(answer, "0123456");
        make_agent("#!/bin/sh\necho first\nexec /bin/sleep 1000\n");
        assert_int_equal(doctor_ask("cairnd", "--any", 3 * NSEC_PER_SEC, answer, sizeof answer),
                         CAIRN_ERR_TIMEOUT);
        assert_string_equal(answer, "first\n");
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nor is anything left */
        assert_int_equal(unlink("cairnd"), 0);
        assert_int_equal(chdir(".."), 0);
        assert_int_equal(rmdir(folder), 0);
        assert_int_equal(setenv("PATH", before, 1), 0);
        free(before);
        free(absolute);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_ring),
                cmocka_unit_test(test_cgroup_limit),
                cmocka_unit_test(test_file_systems),
                cmocka_unit_test(test_machine_without_gpu),
                cmocka_unit_test(test_driver),
                cmocka_unit_test(test_gpus),
                cmocka_unit_test(test_abilities),
                cmocka_unit_test(test_nodes),
                cmocka_unit_test(test_mps),
                cmocka_unit_test(test_asking),
                cmocka_unit_test(test_driver_that_was_named),
                cmocka_unit_test(test_trainer),
        };
        const char *temporary = getenv("TMPDIR");
        if (chdir(temporary ? temporary : "/tmp") < 0)
                return 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
}
