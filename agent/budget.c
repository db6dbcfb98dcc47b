/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/budget.h"
#include "base/cleanup.h"
#include <stdbool.h>

/* The number after `key` at the start of a line of a small proc file; false if it is not there. */
static bool read_field(const char *path, const char *key, uint64_t *ret) {
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        if (!f)
                return false;
        char line[512];
        size_t key_bytes = strlen(key);
        while (fgets(line, sizeof line, f)) {
                if (strncmp(line, key, key_bytes) != 0)
                        continue;
                char *end;
                unsigned long long v = strtoull(line + key_bytes, &end, 10);
                if (end == line + key_bytes)
                        return false; /* "max" */
                *ret = v;
                return true;
        }
        return false;
}

/* What the memory.max of this one group leaves; page cache that can be dropped does not count. */
static uint64_t group_left(const char *group) {
        char path[4352];
        uint64_t max, current, inactive = 0, active = 0;
        (void) snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
        if (!read_field(path, "", &max))
                return UINT64_MAX;
        (void) snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
        if (!read_field(path, "", &current))
                return UINT64_MAX;
        (void) snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.stat", group);
        (void) read_field(path, "inactive_file ", &inactive);
        (void) read_field(path, "active_file ", &active);
        uint64_t cache = inactive + active < current ? inactive + active : current;
        current -= cache;
        return max > current ? max - current : 0;
}

static uint64_t cgroup_left(void) {
        _cleanup_fclose_ FILE *f = fopen("/proc/self/cgroup", "re");
        if (!f)
                return UINT64_MAX;
        char line[4096];
        uint64_t least = UINT64_MAX;
        while (fgets(line, sizeof line, f)) {
                if (strncmp(line, "0::", 3) != 0)
                        continue;
                char *group = line + 3;
                group[strcspn(group, "\n")] = 0;
                for (;;) {
                        uint64_t left = group_left(group);
                        if (left < least)
                                least = left;
                        char *slash = strrchr(group, '/');
                        if (!slash || !*group)
                                break;
                        *slash = 0;
                }
        }
        return least;
}

void budget_read(uint64_t bytes_max, uint64_t used, struct budget *ret) {
        uint64_t available_kib;
        ret->configured_bytes = UINT64_MAX;
        if (bytes_max)
                ret->configured_bytes = bytes_max > used ? bytes_max - used : 0;
        ret->cgroup_bytes = cgroup_left();
        ret->memory_bytes = UINT64_MAX;
        if (read_field("/proc/meminfo", "MemAvailable:", &available_kib))
                ret->memory_bytes = available_kib * 1024;
}

int budget_check(const struct budget *b, uint64_t bytes, struct cairn_error *reterr) {
        uint64_t left = b->configured_bytes;
        const char *limit = "staging_bytes_max in cairnd's configuration";
        if (b->cgroup_bytes < left) {
                left = b->cgroup_bytes;
                limit = "memory.max of cairnd's control group";
        }
        if (b->memory_bytes < left) {
                left = b->memory_bytes;
                limit = "MemAvailable of this machine";
        }
        if (bytes <= left)
                return 0;
        return error_set(reterr, CAIRN_ERR_NOMEM, "reserve staging", "",
                         "%llu bytes of memory are needed for one snapshot and %llu are left (%s): "
                         "raise that limit, or register less",
                         (unsigned long long) bytes, (unsigned long long) left, limit);
}
