/* SPDX-License-Identifier: Apache-2.0
 *
 * A store: its marker, its file system, and real writes to a file without a name.
 */
#include "tools/doctor.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/io.h"
#include "base/limits.h"
#include "format/scan.h"
#include "tools/store_view.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#define FREE_BYTES_WANTED (1 * GiB)
enum { TRIAL_BYTES = 1 << 20, TRIAL_ALIGNMENT = 4096 };

const char *doctor_file_system(uint64_t type, const char **ret_why) {
        static const char network[] =
                "a store on it is shared, but a lost connection looks like a hanging disk: mount "
                "it hard, expect slow commits";
        static const char layer[] =
                "it belongs to the container and goes with it: put the store on a volume";
        static const struct {
                uint64_t type;
                const char *name, *why;
        } rows[] = {
                {0xef53, "ext4", NULL},
                {0x58465342, "XFS", NULL},
                {0x9123683e, "btrfs", NULL},
                {0x2fc12fc1, "ZFS", NULL},
                {0xf2f52010, "F2FS", NULL},
                {0x6969, "NFS", network},
                {0xff534d42, "CIFS", network},
                {0xfe534d42, "SMB", network},
                {0x65735546, "FUSE", "whether fsync means anything depends on its server"},
                {0x0bd00bd0, "Lustre", NULL},
                {0x00c36400, "Ceph", NULL},
                {0x47504653, "GPFS", NULL},
                {0x01021994, "tmpfs", "it is memory: nothing survives a power cut"},
                {0x858458f6, "ramfs", "it is memory: nothing survives a power cut"},
                {0x794c7630, "overlayfs", layer},
        };
        *ret_why = NULL;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
                if (rows[i].type == type) {
                        *ret_why = rows[i].why;
                        return rows[i].name;
                }
        return "unknown";
}

/* ---- the folder ---- */

static int visit_nothing(const char *name, void *argument) {
        return 1;
}

static bool is_empty(int fd) {
        return io_system.list(io_system.context, fd, visit_nothing, NULL) == 0;
}

/* The folder's descriptor, or -1 where there is none to look into. */
static int open_folder(struct doctor *d, const char *path, bool named) {
        struct cairn_error e = CAIRN_ERROR_INIT;
        char text[1024];
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), marked = -1;
        if (fd < 0 && errno == ENOENT && !named) {
                doctor_say(d, VERDICT_WEAK, "store",
                           "name one (cairn doctor STORE), or let the first `cairn run` make it",
                           "%s does not exist yet", path);
                return -1;
        }
        if (fd < 0) {
                doctor_say(d, VERDICT_BAD, "store",
                           "mount it, correct the path, or make it with `cairn init`", "%s: %s",
                           path, strerror(errno));
                return -1;
        }
        if (store_open(&io_system, path, &marked, &e) == 0)
                doctor_say(d, VERDICT_GOOD, "store", NULL, "%s, with its marker", path);
        else if (e.status == CAIRN_ERR_MISMATCH && is_empty(fd))
                doctor_say(d, VERDICT_WEAK, "store", "`cairn init`, or the first fresh run, does",
                           "%s is empty, it has no marker yet", path);
        else
                doctor_say(d, VERDICT_BAD, "store", "name the folder that holds CAIRN-STORE", "%s",
                           error_format(&e, text, sizeof text));
        cleanup_close(&marked);
        return fd;
}

static void probe_file_system(struct doctor *d, int fd) {
        struct statfs fs;
        struct statvfs space;
        const char *why;
        char bytes[32];
        if (fstatfs(fd, &fs) == 0) {
                const char *name = doctor_file_system((uint64_t) fs.f_type, &why);
                doctor_say(d, why ? VERDICT_WEAK : VERDICT_GOOD, "file system", why, "%s", name);
        }
        if (fstatvfs(fd, &space) < 0)
                return;
        uint64_t available = (uint64_t) space.f_bavail * space.f_frsize;
        doctor_say(d, available >= FREE_BYTES_WANTED ? VERDICT_GOOD : VERDICT_WEAK, "free space",
                   "a checkpoint needs the size of the training state, and one more while it is "
                   "written: `cairn prune`, or another disk",
                   "%s", human_bytes(available, bytes));
}

/* ---- writing ---- */

/* A file without a name; where the file system knows none, a name that is removed at once. */
static int open_trial(int folder) {
        int fd = io_system.openat(io_system.context, folder, ".", O_TMPFILE | O_RDWR, 0600);
        char name[64];
        if (fd >= 0 ||
            (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT))
                return fd;
        (void) snprintf(name, sizeof name, ".tmp-doctor-%d", (int) getpid());
        fd = io_system.openat(io_system.context, folder, name, O_CREAT | O_EXCL | O_RDWR, 0600);
        if (fd >= 0)
                (void) io_system.unlinkat(io_system.context, folder, name, 0);
        return fd;
}

static uint32_t direct_alignment(int fd) {
        struct statx st;
        if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) < 0 ||
            !(st.stx_mask & STATX_DIOALIGN))
                return TRIAL_ALIGNMENT; /* an older kernel does not say: try */
        return st.stx_dio_offset_align > st.stx_dio_mem_align ? st.stx_dio_offset_align
                                                              : st.stx_dio_mem_align;
}

/* Write, sync, read back. 0 or an errno. */
static int write_and_read(int fd, unsigned char *pattern, unsigned char *back) {
        const struct io_ops *io = &io_system;
        for (size_t i = 0; i < TRIAL_BYTES; i++)
                pattern[i] = (unsigned char) (i * 131 + i / 251);
        memset(back, 0, TRIAL_BYTES);
        if (io->pwrite(io->context, fd, pattern, TRIAL_BYTES, 0) != TRIAL_BYTES ||
            io->fdatasync(io->context, fd) < 0 ||
            io->pread(io->context, fd, back, TRIAL_BYTES, 0) != TRIAL_BYTES)
                return errno ? errno : EIO;
        return memcmp(pattern, back, TRIAL_BYTES) == 0 ? 0 : EIO;
}

static void probe_direct(struct doctor *d, int fd, unsigned char *pattern, unsigned char *back) {
        static const char remedy[] = "written through the page cache instead, more slowly";
        uint32_t alignment = direct_alignment(fd);
        int flags = fcntl(fd, F_GETFL);
        if (alignment == 0 || alignment > TRIAL_ALIGNMENT) {
                doctor_say(d, VERDICT_WEAK, "O_DIRECT", remedy, "not on this file system");
                return;
        }
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) < 0) {
                doctor_say(d, VERDICT_WEAK, "O_DIRECT", remedy, "refused: %s", strerror(errno));
                return;
        }
        errno = 0;
        int error_number = write_and_read(fd, pattern, back);
        if (error_number)
                doctor_say(d, VERDICT_WEAK, "O_DIRECT", remedy, "an aligned write failed: %s",
                           strerror(error_number));
        else
                doctor_say(d, VERDICT_GOOD, "O_DIRECT", NULL,
                           "written and read back, aligned to %u bytes", alignment);
}

static void probe_sync(struct doctor *d, int folder, int fd, unsigned char *pattern,
                       unsigned char *back) {
        char took[32];
        uint64_t start_ns = clock_now(&clock_system);
        errno = 0;
        int error_number = write_and_read(fd, pattern, back);
        uint64_t took_ns = clock_now(&clock_system) - start_ns;
        if (error_number == 0 && io_system.fsync(io_system.context, folder) < 0)
                error_number = errno;
        doctor_say(d, error_number ? VERDICT_BAD : VERDICT_GOOD, "fsync",
                   "nothing that is written here can be trusted: see the kernel's log (dmesg)",
                   "%s%s", error_number ? strerror(error_number) : "file and folder synced, ",
                   error_number ? "" : human_duration(took_ns, took));
}

static void probe_writing(struct doctor *d, int folder) {
        _cleanup_close_ int fd = open_trial(folder);
        if (fd < 0) {
                doctor_say(d, VERDICT_BAD, "writable",
                           "give this user the right to write there (or a store of their own)",
                           "no file can be made: %s", strerror(errno));
                return;
        }
        doctor_say(d, VERDICT_GOOD, "writable", NULL, "yes");
        int r = io_system.fallocate(io_system.context, fd, 0, TRIAL_BYTES);
        int error_number = errno;
        bool full = r < 0 && (error_number == ENOSPC || error_number == EDQUOT);
        doctor_say(d,
                   r == 0 ? VERDICT_GOOD
                   : full ? VERDICT_BAD
                          : VERDICT_WEAK,
                   "fallocate",
                   full ? "free space or raise the quota"
                        : "a full disk is found while writing, not before",
                   "%s", r == 0 ? "works" : strerror(error_number));
        void *memory;
        if (full || posix_memalign(&memory, TRIAL_ALIGNMENT, (size_t) 2 * TRIAL_BYTES) != 0)
                return;
        unsigned char *pattern = memory, *back = pattern + TRIAL_BYTES;
        probe_sync(d, folder, fd, pattern, back);
        probe_direct(d, fd, pattern, back);
        free(memory);
}

void doctor_store(struct doctor *d, const char *path, bool named) {
        _cleanup_close_ int folder = open_folder(d, path, named);
        if (folder < 0)
                return;
        probe_file_system(d, folder);
        probe_writing(d, folder);
}
