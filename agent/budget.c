/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/budget.h"
#include "base/cleanup.h"
#include <sys/resource.h>

/* Of a rank: its connection and process, page, event, inventory, host state, staging, a few slabs,
 * its saver, and files on their way to it; the rest is for the agent and whoever asks it. */
enum { FILES_BASE = 32, FILES_A_RANK = 24 };

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

/* The files of the two versions of control groups. */
struct group_files {
        const char *max, *current, *inactive, *active;
};
static const struct group_files version1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                            "total_inactive_file ", "total_active_file "};
static const struct group_files version2 = {"memory.max", "memory.current", "inactive_file ",
                                            "active_file "};

/* What the limit of this one group leaves; page cache that can be dropped does not count. */
static uint64_t group_left(const struct group_files *files, const char *root, const char *group) {
        char path[8704];
        uint64_t max, current, inactive = 0, active = 0;
        (void) snprintf(path, sizeof path, "%s%s/%s", root, group, files->max);
        if (!read_field(path, "", &max))
                return UINT64_MAX;
        (void) snprintf(path, sizeof path, "%s%s/%s", root, group, files->current);
        if (!read_field(path, "", &current))
                return UINT64_MAX;
        (void) snprintf(path, sizeof path, "%s%s/memory.stat", root, group);
        (void) read_field(path, files->inactive, &inactive);
        (void) read_field(path, files->active, &active);
        uint64_t cache = inactive + active < current ? inactive + active : current;
        current -= cache;
        return max > current ? max - current : 0;
}

/* In a container the path may be that of the machine and not be there: its own group is then the
 * root of what is mounted, which comes last. */
static uint64_t least_left(const struct group_files *files, const char *root, char *group) {
        uint64_t least = UINT64_MAX;
        for (;;) {
                uint64_t left = group_left(files, root, group);
                least = left < least ? left : least;
                char *slash = strrchr(group, '/');
                if (!slash)
                        return least;
                *slash = 0;
        }
}

static bool lists_memory(const char *controllers, size_t bytes) {
        static const char name[] = "memory";
        for (const char *end = controllers + bytes; controllers < end;) {
                const char *comma = memchr(controllers, ',', (size_t) (end - controllers));
                const char *stop = comma ? comma : end;
                if ((size_t) (stop - controllers) == sizeof name - 1 &&
                    memcmp(controllers, name, sizeof name - 1) == 0)
                        return true;
                controllers = stop + 1;
        }
        return false;
}

uint64_t budget_groups_left(const char *membership, const char *mounts) {
        _cleanup_fclose_ FILE *f = fopen(membership, "re");
        if (!f)
                return UINT64_MAX;
        char line[4096], root[4096];
        uint64_t least = UINT64_MAX;
        while (fgets(line, sizeof line, f)) { /* number:controllers:path */
                line[strcspn(line, "\n")] = 0;
                char *controllers = strchr(line, ':'),
                     *group = controllers ? strchr(controllers + 1, ':') : NULL;
                if (!group)
                        continue;
                controllers++;
                bool is_second = group == controllers;
                if (!is_second && !lists_memory(controllers, (size_t) (group - controllers)))
                        continue;
                (void) snprintf(root, sizeof root, "%s%s", mounts, is_second ? "" : "/memory");
                uint64_t left = least_left(is_second ? &version2 : &version1, root, group + 1);
                least = left < least ? left : least;
        }
        return least;
}

static uint64_t less(uint64_t left, uint64_t promised, uint64_t freed) {
        if (left == UINT64_MAX)
                return left;
        left = left > UINT64_MAX - freed ? UINT64_MAX : left + freed;
        return left > promised ? left - promised : 0;
}

void budget_read(const struct budget_use *use, struct budget *ret) {
        uint64_t available_kib;
        ret->configured_bytes = UINT64_MAX;
        if (use->bytes_max)
                ret->configured_bytes =
                        use->bytes_max > use->promised ? use->bytes_max - use->promised : 0;
        ret->cgroup_bytes = less(budget_groups_left("/proc/self/cgroup", "/sys/fs/cgroup"),
                                 use->unfilled + (use->same_group ? use->trainers : 0), use->freed);
        ret->memory_bytes = UINT64_MAX;
        if (read_field("/proc/meminfo", "MemAvailable:", &available_kib))
                ret->memory_bytes =
                        less(available_kib * 1024, use->unfilled + use->trainers, use->freed);
}

int budget_check(const struct budget *b, uint64_t bytes, struct cairn_error *reterr) {
        uint64_t left = b->configured_bytes;
        const char *limit = "staging_bytes_max in cairnd's configuration";
        if (b->cgroup_bytes < left) {
                left = b->cgroup_bytes;
                limit = "the memory limit of cairnd's control group";
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

int budget_check_files(uint32_t ranks, struct cairn_error *reterr) {
        struct rlimit files;
        uint64_t needed = FILES_BASE + (uint64_t) ranks * FILES_A_RANK;
        if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_cur == RLIM_INFINITY ||
            needed <= files.rlim_cur)
                return 0;
        return error_set(reterr, CAIRN_ERR_NOMEM, "reserve open files", "",
                         "%llu open files are needed for %u rank%s and cairnd may have %llu: raise "
                         "its limit (ulimit -Hn, LimitNOFILE=)",
                         (unsigned long long) needed, ranks, ranks == 1 ? "" : "s",
                         (unsigned long long) files.rlim_cur);
}
