/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPUs: driver, device nodes, each GPU, what works of what Cairn uses, how they are shared. A
 * machine without any is one line.
 */
#include "tools/doctor.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/limits.h"
#include "tools/agent_process.h"
#include "tools/store_view.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_BYTES = 64 * 1024, GPU_COUNT_MAX = 64 };
/* Waking eight GPUs that nobody used takes half a minute. */
#define GPU_PROBE_NS (90 * NSEC_PER_SEC)
#define LIBCUDA_REMEDY                                                                           \
        "unset $CAIRN_LIBCUDA for the driver's own libcuda.so.1, or name a library that can be " \
        "loaded"
#define SMI "nvidia-smi shows what the driver sees, dmesg what the kernel's module says"

static const char *text_of(const json_t *object, const char *key) {
        return json_string_value(json_object_get(object, key));
}

static bool is_set(const char *variable) {
        const char *value = getenv(variable);
        return value && *value;
}

/* ---- device nodes ---- */

struct nodes {
        unsigned gpus;             /* /dev/nvidia0, ... */
        bool control, uvm;         /* nvidiactl, nvidia-uvm */
        char closed[NAME_MAX + 1]; /* the first that cannot be opened */
        int error_number;
};

static bool is_gpu_node(const char *name) {
        return strncmp(name, "nvidia", 6) == 0 && name[6] &&
               name[6 + strspn(name + 6, "0123456789")] == '\0';
}

static struct nodes find_nodes(const char *folder) {
        struct nodes n = {0};
        DIR *listing = opendir(folder);
        for (struct dirent *e; listing && (e = readdir(listing));) {
                bool control = strcmp(e->d_name, "nvidiactl") == 0,
                     uvm = strcmp(e->d_name, "nvidia-uvm") == 0, gpu = is_gpu_node(e->d_name);
                if (!control && !uvm && !gpu)
                        continue;
                _cleanup_close_ int fd = openat(dirfd(listing), e->d_name, O_RDWR | O_CLOEXEC);
                if (fd < 0 && !n.error_number) {
                        n.error_number = errno;
                        memcpy(n.closed, e->d_name, strlen(e->d_name) + 1);
                }
                n.control = n.control || control;
                n.uvm = n.uvm || uvm;
                n.gpus += gpu;
        }
        if (listing)
                (void) closedir(listing);
        return n;
}

static const char *node_remedy(int error_number) {
        if (error_number == EPERM)
                return "the device cgroup forbids it: docker run --gpus all, DeviceAllow= in a "
                       "unit, --gres=gpu in a Slurm job";
        if (error_number == EACCES)
                return "join the group that owns it (ls -l), often video";
        return SMI;
}

static void report_nodes(struct doctor *d, const char *folder, const struct nodes *n) {
        if (n->error_number)
                doctor_say(d, VERDICT_BAD, "GPU nodes", node_remedy(n->error_number),
                           "%s/%s cannot be opened: %s", folder, n->closed,
                           strerror(n->error_number));
        else if (n->gpus > 0 && (!n->control || !n->uvm))
                doctor_say(d, VERDICT_BAD, "GPU nodes",
                           "nvidia-modprobe -c 0 -u makes them; a container has to be given them "
                           "(docker run --gpus all)",
                           "%s/%s is not there", folder, n->control ? "nvidia-uvm" : "nvidiactl");
        else if (n->gpus > 0)
                doctor_say(d, VERDICT_GOOD, "GPU nodes", NULL, "%u in %s, all can be opened",
                           n->gpus, folder);
        else
                doctor_say(d, VERDICT_GOOD, "GPU nodes", NULL,
                           "none in %s, the driver does without", folder);
}

/* ---- driver ---- */

static void report_no_library(struct doctor *d, const json_t *driver, const struct nodes *n) {
        const char *error = text_of(driver, "error");
        if (is_set("CAIRN_LIBCUDA"))
                doctor_say(d, VERDICT_BAD, "NVIDIA driver", LIBCUDA_REMEDY, "%s",
                           error ? error : "cannot be loaded");
        else if (n->gpus > 0)
                doctor_say(d, VERDICT_BAD, "NVIDIA driver",
                           "install NVIDIA's driver; a container needs it passed in "
                           "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
                           "%s", error ? error : "cannot be loaded");
        else
                doctor_say(d, VERDICT_GOOD, "NVIDIA driver", NULL, "none: this machine has no GPU");
}

/* Returns whether there are GPUs to report. */
static bool report_driver(struct doctor *d, const json_t *driver, bool in_time,
                          const struct nodes *n) {
        const char *error = text_of(driver, "error"), *library = text_of(driver, "library");
        json_int_t version = json_integer_value(json_object_get(driver, "version"));
        if (!driver) {
                doctor_say(d, VERDICT_BAD, "NVIDIA driver", SMI, "%s",
                           in_time ? "`cairnd --probe-gpu` did not answer"
                                   : "it hangs when it is started");
                return false;
        }
        if (!json_is_true(json_object_get(driver, "present"))) {
                report_no_library(d, driver, n);
                return false;
        }
        if (json_is_true(json_object_get(driver, "none"))) {
                bool hidden = n->gpus > 0 || getenv("CUDA_VISIBLE_DEVICES");
                doctor_say(d, hidden ? VERDICT_WEAK : VERDICT_GOOD, "NVIDIA driver",
                           "look at $CUDA_VISIBLE_DEVICES and at nvidia-smi -L",
                           "%s, no GPU is visible", library);
                return false;
        }
        if (error) {
                /* Without a version it did not get so far that it is a driver. */
                doctor_say(d, VERDICT_BAD, "NVIDIA driver",
                           version == 0 && is_set("CAIRN_LIBCUDA") ? LIBCUDA_REMEDY : SMI, "%s",
                           error);
                return false;
        }
        doctor_say(d, VERDICT_GOOD, "NVIDIA driver", NULL, "for CUDA %d.%d, %s",
                   (int) (version / 1000), (int) (version % 1000 / 10), library);
        return true;
}

/* ---- GPUs ---- */

static void report_gpu(struct doctor *d, const json_t *gpu) {
        char probe[24], bytes[32];
        const char *error = text_of(gpu, "error");
        (void) snprintf(probe, sizeof probe, "GPU %d",
                        (int) json_integer_value(json_object_get(gpu, "gpu")));
        if (error) {
                doctor_say(d, VERDICT_BAD, probe, SMI, "%s", error);
                return;
        }
        bool exclusive = json_is_true(json_object_get(gpu, "exclusive"));
        doctor_say(d, exclusive ? VERDICT_WEAK : VERDICT_GOOD, probe,
                   "nvidia-smi -c DEFAULT, where ranks share it or something else is to look at it",
                   "%s, %s, %s, sm_%d%s", text_of(gpu, "name"), text_of(gpu, "uuid"),
                   human_bytes((uint64_t) json_integer_value(json_object_get(gpu, "bytes")), bytes),
                   (int) json_integer_value(json_object_get(gpu, "capability")),
                   exclusive ? ", for one process at a time" : "");
}

/* What every GPU has to have. */
static const struct ability {
        const char *probe, *flag; /* true: it is said to be there */
        const char *trial;        /* null: it worked; NULL: not tried */
        const char *works, *lacks, *remedy;
} abilities[] = {
        {"GPU memory", "vmm", NULL, "virtual memory management", "no virtual memory management",
         "without it nothing can be checkpointed: a newer driver, another vGPU profile"},
        {"GPU handles", "posix_fd", "slab", "memory was passed on as a descriptor",
         "no memory handles as descriptors",
         "without them nothing can be checkpointed: a newer driver, another vGPU profile"},
        {"GPU staging", "host_register", "staging", "a memfd was registered and copied to",
         "no registered host memory",
         "allow more locked memory (ulimit -l, the container's memory limit), or a newer driver"},
};

/* One line for all GPUs; the first that lacks it is named. */
static void report_ability(struct doctor *d, const struct ability *a, json_t *const *gpus,
                           size_t count) {
        const json_t *full = NULL;
        for (size_t i = 0; i < count; i++) {
                const char *trial = a->trial ? text_of(gpus[i], a->trial) : NULL;
                bool said = json_is_true(json_object_get(gpus[i], a->flag));
                if (text_of(gpus[i], "error") || (said && !trial))
                        continue;
                if (said && json_is_true(json_object_get(gpus[i], "full"))) {
                        full = gpus[i];
                        continue;
                }
                doctor_say(d, VERDICT_BAD, a->probe, a->remedy, "GPU %d: %s",
                           (int) json_integer_value(json_object_get(gpus[i], "gpu")),
                           said ? trial : a->lacks);
                return;
        }
        if (full) /* by what trains there now, perhaps */
                doctor_say(d, VERDICT_WEAK, a->probe, "ask again when the GPU has room",
                           "GPU %d: not tried, its memory is full",
                           (int) json_integer_value(json_object_get(full, "gpu")));
        else
                doctor_say(d, VERDICT_GOOD, a->probe, NULL, "%s", a->works);
}

static void report_persistence(struct doctor *d, json_t *const *gpus, size_t count) {
        bool known = true;
        for (size_t i = 0; i < count; i++) {
                const json_t *mode = json_object_get(gpus[i], "persistence");
                known = known && json_is_boolean(mode);
                if (!json_is_false(mode))
                        continue;
                doctor_say(d, VERDICT_WEAK, "persistence",
                           "nvidia-smi -pm 1, or run nvidia-persistenced: else each start waits "
                           "for GPUs to wake",
                           "GPU %d is put to sleep when nobody uses it",
                           (int) json_integer_value(json_object_get(gpus[i], "gpu")));
                return;
        }
        doctor_say(d, VERDICT_GOOD, "persistence", NULL, "%s",
                   known ? "GPUs stay awake" : "unknown: libnvidia-ml.so.1 does not say");
}

void doctor_report_mps(struct doctor *d) {
        char path[PATH_MAX];
        const char *folder = is_set("CUDA_MPS_PIPE_DIRECTORY") ? getenv("CUDA_MPS_PIPE_DIRECTORY")
                                                               : "/tmp/nvidia-mps";
        (void) snprintf(path, sizeof path, "%s/control", folder);
        if (access(path, F_OK) < 0)
                doctor_say(d, VERDICT_GOOD, "MPS", NULL, "not in use");
        else
                doctor_say(d, VERDICT_WEAK, "MPS",
                           "echo quit | nvidia-cuda-mps-control, where ranks do not share a GPU",
                           "%s is there: a fault of one process on a GPU ends all of them, and "
                           "with the agent's saver the post-mortem cut",
                           path);
}

static void report_all(struct doctor *d, json_t *const *gpus, size_t count, int expected,
                       bool in_time) {
        bool any = false;
        for (size_t i = 0; i < count; i++) {
                report_gpu(d, gpus[i]);
                any = any || !text_of(gpus[i], "error");
        }
        if ((int) count < expected)
                doctor_say(d, VERDICT_BAD, "GPUs", SMI, "%s after %zu of %d",
                           in_time ? "the probe ended" : "the driver hangs", count, expected);
        if (!any)
                return;
        for (size_t i = 0; i < sizeof abilities / sizeof *abilities; i++)
                report_ability(d, &abilities[i], gpus, count);
        report_persistence(d, gpus, count);
        doctor_report_mps(d);
}

bool doctor_report_gpus(struct doctor *d, char *answer, bool in_time, const char *device_folder) {
        json_t *driver = NULL, *gpus[GPU_COUNT_MAX];
        size_t count = 0;
        char *rest = NULL;
        struct nodes n = find_nodes(device_folder);
        for (char *line = strtok_r(answer, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
                json_t *object = json_loads(line, 0, NULL);
                if (object && !driver)
                        driver = object;
                else if (object && count < GPU_COUNT_MAX)
                        gpus[count++] = object;
                else
                        json_decref(object);
        }
        bool there = report_driver(d, driver, in_time, &n);
        if (there || n.gpus > 0)
                report_nodes(d, device_folder, &n);
        if (there)
                report_all(d, gpus, count,
                           (int) json_integer_value(json_object_get(driver, "count")), in_time);
        for (size_t i = 0; i < count; i++)
                json_decref(gpus[i]);
        json_decref(driver);
        return there;
}

/* ---- what cairn-train needs beside a driver; other trainers do not ---- */

static const char *trainer_remedy(const char *name) {
        return strcmp(name, "NCCL") == 0
                       ? "without it ranks of cairn-train on GPUs need --collectives gloo"
                       : "without it there is no cairn-train --device cuda";
}

void doctor_report_trainer(struct doctor *d, char *answer) {
        bool any = false;
        for (char *line; (line = strsep(&answer, "\n"));) {
                const char *name = strsep(&line, "\t"), *verdict = strsep(&line, "\t");
                if (!verdict || !line)
                        continue;
                doctor_say(d, strcmp(verdict, "good") == 0 ? VERDICT_GOOD : VERDICT_WEAK, name,
                           trainer_remedy(name), "%s", line);
                any = true;
        }
        if (!any)
                doctor_say(d, VERDICT_WEAK, "cairn-train",
                           "install cairn and cairn-train of one version",
                           "`cairn-train --probe-gpu` did not answer");
}

/* A context is made, and driver and libraries are loaded, in processes that end at once. */
void doctor_gpu(struct doctor *d) {
        static char answer[ANSWER_BYTES];
        char path[PATH_MAX];
        int r = doctor_ask("cairnd", "--probe-gpu", GPU_PROBE_NS, answer, sizeof answer);
        if ((!*answer && r == 0) || !doctor_report_gpus(d, answer, r == 0, "/dev") ||
            agent_process_find("cairn-train", path, sizeof path, NULL) < 0)
                return;
        (void) doctor_ask("cairn-train", "--probe-gpu", GPU_PROBE_NS, answer, sizeof answer);
        doctor_report_trainer(d, answer);
}
