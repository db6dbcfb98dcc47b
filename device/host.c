/* SPDX-License-Identifier: Apache-2.0
 *
 * The host implementation: an allocation is a memfd whose size can no longer change, so that no
 * holder of the descriptor can make another's access fault. Pages appear when they are touched.
 */
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/limits.h"
#include "device/device.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define HOST_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
/* The size of a huge page: mappings of slabs can then be made of them. */
#define HOST_GRANULARITY (2 * MiB)

static int host_open(int ordinal, struct device **ret, struct cairn_error *reterr) {
        if (ordinal != 0)
                return error_set(reterr, CAIRN_ERR_API, "open device", "host",
                                 "there is one host, not number %d", ordinal);
        TRY(device_ops_check(&device_host, reterr));
        struct device *d = calloc(1, sizeof *d);
        if (!d)
                return error_set_errno(reterr, ENOMEM, "open device", "host");
        d->ops = &device_host;
        *ret = d;
        return 0;
}

static void host_close(struct device *d) {
        free(d);
}

static uint64_t host_granularity(const struct device *d) {
        return HOST_GRANULARITY;
}

static int host_map(int fd, uint64_t bytes, int protection, void **ret,
                    struct cairn_error *reterr) {
        void *address = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED)
                return error_set_errno(reterr, errno, "map host memory", "memfd");
        /* A forked child that wrote here would write into the cut. */
        if (madvise(address, bytes, MADV_DONTFORK) < 0) {
                int r = error_set_errno(reterr, errno, "keep host memory from children", "memfd");
                (void) munmap(address, bytes);
                return r;
        }
        *ret = address;
        return 0;
}

static int host_allocate(struct device *d, uint64_t bytes, struct device_memory *ret,
                         struct cairn_error *reterr) {
        uint64_t rounded;
        if (bytes == 0 || !align_up_checked(bytes, HOST_GRANULARITY, &rounded) ||
            rounded > SLAB_BYTES_MAX)
                return error_set(reterr, CAIRN_ERR_API, "allocate host memory", "",
                                 "%" PRIu64 " bytes are not between 1 and %" PRIu64, bytes,
                                 SLAB_BYTES_MAX);
        _cleanup_close_ int fd = memfd_create("cairn-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return error_set_errno(reterr, errno, "allocate host memory", "memfd");
        if (ftruncate(fd, (off_t) rounded) < 0 || fcntl(fd, F_ADD_SEALS, HOST_SEALS) < 0)
                return error_set_errno(reterr, errno, "allocate host memory", "memfd");
        void *address;
        TRY(host_map(fd, rounded, PROT_READ | PROT_WRITE, &address, reterr));
        *ret = (struct device_memory){
                .address = address,
                .bytes = rounded,
                .kind = DEVICE_HANDLE_MEMFD,
                .fd = TAKE_FD(fd),
        };
        return 0;
}

static void host_forget(struct device_memory *m) {
        if (m->address)
                (void) munmap(m->address, m->bytes);
        if (m->fd >= 0)
                (void) close(m->fd);
        *m = (struct device_memory) DEVICE_MEMORY_INIT;
}

static void host_release(struct device *d, struct device_memory *m) {
        host_forget(m);
}

static int host_export(struct device *d, const struct device_memory *m, int *ret_fd,
                       struct cairn_error *reterr) {
        int fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return error_set_errno(reterr, errno, "export host memory", "memfd");
        *ret_fd = fd;
        return 0;
}

static int host_import(struct device *d, int fd, uint64_t bytes, bool read_only,
                       struct device_memory *ret, struct cairn_error *reterr) {
        int seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "import host memory", "memfd",
                                 "the descriptor is not a memfd sealed against shrinking");
        struct stat st;
        if (fstat(fd, &st) < 0)
                return error_set_errno(reterr, errno, "import host memory", "memfd");
        if (bytes == 0 || (uint64_t) st.st_size != bytes)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "import host memory", "memfd",
                                 "%" PRIu64 " bytes were announced, %jd are there", bytes,
                                 (intmax_t) st.st_size);
        void *address;
        TRY(host_map(fd, bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE, &address, reterr));
        *ret = (struct device_memory){
                .address = address,
                .bytes = bytes,
                .kind = DEVICE_HANDLE_MEMFD,
                .fd = -1,
                .imported = true,
        };
        return 0;
}

static void host_unmap(struct device *d, struct device_memory *m) {
        host_forget(m);
}

static int host_copy(struct device *d, void *queue, void *target, const void *source,
                     uint64_t bytes, struct cairn_error *reterr) {
        if (bytes > 0)
                memcpy(target, source, bytes);
        return 0;
}

static int host_event_record(struct device *d, struct device_event *e, void *queue,
                             struct cairn_error *reterr) {
        e->recorded = true;
        return 0;
}

static int host_event_query(struct device *d, const struct device_event *e,
                            struct cairn_error *reterr) {
        if (!e->recorded)
                return error_set(reterr, CAIRN_ERR_API, "query event", "host",
                                 "it was never recorded");
        return 0;
}

static int host_event_wait(struct device *d, const struct device_event *e, uint64_t deadline_ns,
                           struct cairn_error *reterr) {
        return host_event_query(d, e, reterr);
}

static void host_event_done(struct device *d, struct device_event *e) {
        *e = (struct device_event){0};
}

static int host_synchronize(struct device *d, uint64_t deadline_ns, struct cairn_error *reterr) {
        return 0;
}

static int host_check_memory(struct device *d, const void *address, uint64_t bytes, bool *ret_host,
                             struct cairn_error *reterr) {
        *ret_host = true;
        return 0;
}

static int host_register(struct device *d, void *address, uint64_t bytes,
                         struct cairn_error *reterr) {
        return 0; /* memcpy needs no page-locked memory */
}

static int host_unregister(struct device *d, void *address, struct cairn_error *reterr) {
        return 0;
}

const struct device_ops device_host = {
        .name = "host",
        .class = DEVICE_CLASS_HOST,
        .open = host_open,
        .close = host_close,
        .granularity = host_granularity,
        .allocate = host_allocate,
        .release = host_release,
        .export_fd = host_export,
        .import_fd = host_import,
        .unmap = host_unmap,
        .copy_async = host_copy,
        .event_record = host_event_record,
        .event_query = host_event_query,
        .event_wait = host_event_wait,
        .event_done = host_event_done,
        .synchronize = host_synchronize,
        .check_memory = host_check_memory,
        .host_register = host_register,
        .host_unregister = host_unregister,
};
