/* SPDX-License-Identifier: Apache-2.0
 *
 * The emulated driver itself: what it does, and each thing that it refuses.
 */
#include "base/limits.h"
#include "tests/test.h"
#include "tests/unit/cuda_emulated.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define SLAB_BYTES (2 * MiB)
#define IS(call, result) assert_int_equal(cu->call, (result))

static const struct cuda_driver *cu;
static const struct emu_control *emu;

static const struct cuda_allocation exportable = {.type = CUDA_ALLOCATION_PINNED,
                                                  .handle_types = CUDA_HANDLE_POSIX_FD,
                                                  .location = {CUDA_LOCATION_DEVICE, 0}};
static const struct cuda_access read_write = {{CUDA_LOCATION_DEVICE, 0}, CUDA_ACCESS_READ_WRITE};

/* ---- helpers ---- */

struct slab {
        cuda_handle handle;
        cuda_address address;
};

static struct slab slab_new(void) {
        struct slab s;
        IS(MemCreate(&s.handle, SLAB_BYTES, &exportable, 0), CUDA_OK);
        IS(MemAddressReserve(&s.address, SLAB_BYTES, 0, 0, 0), CUDA_OK);
        IS(MemMap(s.address, SLAB_BYTES, 0, s.handle, 0), CUDA_OK);
        IS(MemSetAccess(s.address, SLAB_BYTES, &read_write, 1), CUDA_OK);
        return s;
}

static void slab_free(struct slab *s) {
        IS(MemUnmap(s->address, SLAB_BYTES), CUDA_OK);
        IS(MemAddressFree(s->address, SLAB_BYTES), CUDA_OK);
        IS(MemRelease(s->handle), CUDA_OK);
}

static unsigned char *host_new(size_t bytes) {
        unsigned char *p =
                mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(p, MAP_FAILED);
        IS(MemHostRegister(p, bytes, 0), CUDA_OK);
        return p;
}

static void host_free(unsigned char *p, size_t bytes) {
        IS(MemHostUnregister(p), CUDA_OK);
        assert_int_equal(munmap(p, bytes), 0);
}

static struct cuda_stream *stream_new(void) {
        struct cuda_stream *s;
        IS(StreamCreateWithPriority(&s, CUDA_STREAM_NON_BLOCKING, 0), CUDA_OK);
        return s;
}

static cuda_address at(const void *p) {
        return (uintptr_t) p;
}

/* Whether host code may read there: asked of the kernel. */
static bool is_readable(cuda_address address) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        ssize_t n = write(ends[1], (const void *) (uintptr_t) address, 1);
        assert_true(n == 1 || errno == EFAULT);
        (void) close(ends[0]);
        (void) close(ends[1]);
        return n == 1;
}

static int set_up(void **state) {
        struct cuda_context *context;
        emu = cuda_emulated(&cu);
        emu->reset();
        IS(DevicePrimaryCtxRetain(&context, 0), CUDA_OK);
        IS(CtxPushCurrent(context), CUDA_OK);
        *state = context;
        return 0;
}

static int tear_down(void **state) {
        IS(CtxPopCurrent(NULL), CUDA_OK);
        IS(DevicePrimaryCtxRelease(0), CUDA_OK);
        cuda_emulated_assert_empty(emu);
        return 0;
}

static int tear_down_broken(void **state) {
        emu->reset();
        cuda_emulated_assert_empty(emu);
        return 0;
}

/* ---- between processes ---- */

static bool send_fd(int socket, int fd) {
        char byte = 0, control[CMSG_SPACE(sizeof fd)] = {0};
        struct iovec iov = {&byte, 1};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
        return sendmsg(socket, &message, 0) == 1;
}

static int receive_fd(int socket) {
        char byte, control[CMSG_SPACE(sizeof(int))];
        struct iovec iov = {&byte, 1};
        struct msghdr message = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        int fd = -1;
        assert_int_equal(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        if (c)
                memcpy(&fd, CMSG_DATA(c), sizeof fd);
        assert_true(fd >= 0);
        return fd;
}

/* In a process of its own: exports memory that is all 7 and is killed. */
static void exporter(void *argument) {
        struct cuda_context *context;
        int fd = -1;
        emu = cuda_emulated(&cu);
        (void) cu->DevicePrimaryCtxRetain(&context, 0);
        (void) cu->CtxPushCurrent(context);
        struct slab s = slab_new();
        struct cuda_stream *stream = stream_new();
        IS(MemsetD8Async(s.address, 7, SLAB_BYTES, stream), CUDA_OK);
        IS(StreamSynchronize(stream), CUDA_OK);
        IS(MemExportToShareableHandle(&fd, s.handle, CUDA_HANDLE_POSIX_FD, 0), CUDA_OK);
        if (send_fd(*(int *) argument, fd))
                (void) raise(SIGKILL);
}

/* Before this process starts the driver: a child of one that did finds nothing. */
static void memory_outlives_its_process(void **state) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        int status = test_in_child(exporter, &ends[1]);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        int fd = receive_fd(ends[0]);
        assert_int_equal(set_up(state), 0);

        struct slab s;
        IS(MemImportFromShareableHandle(&s.handle, (void *) (intptr_t) fd, CUDA_HANDLE_POSIX_FD),
           CUDA_OK);
        (void) close(fd);
        IS(MemAddressReserve(&s.address, SLAB_BYTES, 0, 0, 0), CUDA_OK);
        IS(MemMap(s.address, SLAB_BYTES, 0, s.handle, 0), CUDA_OK);
        IS(MemSetAccess(s.address, SLAB_BYTES, &read_write, 1), CUDA_OK);
        unsigned char *host = host_new(SLAB_BYTES);
        struct cuda_stream *stream = stream_new();
        IS(MemcpyAsync(at(host), s.address, SLAB_BYTES, stream), CUDA_OK);
        IS(StreamSynchronize(stream), CUDA_OK);
        for (size_t i = 0; i < SLAB_BYTES; i++)
                assert_int_equal(host[i], 7);
        IS(StreamDestroy(stream), CUDA_OK);
        host_free(host, SLAB_BYTES);
        slab_free(&s);
        (void) close(ends[0]);
        (void) close(ends[1]);
        tear_down(state);
}

static void asks(void *ret) {
        int count;
        _exit(cu->DeviceGetCount(&count) == CUDA_NOT_INITIALIZED ? 3 : 0);
}

static void a_forked_child_has_no_driver(void **state) {
        int status = test_in_child(asks, NULL);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

/* ---- devices and contexts ---- */

static void devices_are_told(void **state) {
        int count = 0, device = -1, value = 0;
        char name[64] = "";
        struct cuda_uuid a, b;
        size_t bytes = 0;
        IS(DeviceGetCount(&count), CUDA_OK);
        assert_int_equal(count, 2);
        IS(DeviceGet(&device, 1), CUDA_OK);
        IS(DeviceGet(&device, 2), CUDA_INVALID_DEVICE);
        IS(DeviceGet(&device, -1), CUDA_INVALID_DEVICE);
        IS(DeviceGetName(name, sizeof name, 0), CUDA_OK);
        assert_string_equal(name, "emulated GPU");
        IS(DeviceGetPCIBusId(name, sizeof name, 1), CUDA_OK);
        assert_string_equal(name, "0000:02:00.0");
        IS(DeviceGetPCIBusId(name, 5, 1), CUDA_INVALID_VALUE);
        IS(DeviceGetUuid(&a, 0), CUDA_OK);
        IS(DeviceGetUuid(&b, 1), CUDA_OK);
        assert_memory_not_equal(&a, &b, sizeof a);
        IS(DeviceTotalMem(&bytes, 0), CUDA_OK);
        assert_int_equal(bytes, 64 * MiB);
        IS(DeviceGetAttribute(&value, CUDA_ATTRIBUTE_VMM_SUPPORTED, 0), CUDA_OK);
        assert_int_equal(value, 1);
        emu->lack(CUDA_ATTRIBUTE_VMM_SUPPORTED);
        IS(DeviceGetAttribute(&value, CUDA_ATTRIBUTE_VMM_SUPPORTED, 0), CUDA_OK);
        assert_int_equal(value, 0);
        IS(DeviceGetAttribute(&value, CUDA_ATTRIBUTE_POSIX_FD_SUPPORTED, 0), CUDA_OK);
        assert_int_equal(value, 1);
        emu->lack(0);
        IS(DeviceGetAttribute(&value, (enum cuda_attribute) 9999, 0), CUDA_INVALID_VALUE);
        IS(DeviceGetAttribute(&value, CUDA_ATTRIBUTE_VMM_SUPPORTED, 7), CUDA_INVALID_DEVICE);
        IS(Init(1), CUDA_INVALID_VALUE);
}

static void errors_have_names(void **state) {
        const char *text;
        IS(GetErrorName(CUDA_ILLEGAL_ADDRESS, &text), CUDA_OK);
        assert_string_equal(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
        IS(GetErrorString(CUDA_OK, &text), CUDA_OK);
        IS(GetErrorName((enum cuda_result) 12345, &text), CUDA_INVALID_VALUE);
        IS(GetErrorString((enum cuda_result) 12345, &text), CUDA_INVALID_VALUE);
}

static void contexts_are_current_by_thread(void **state) {
        struct cuda_context *now = NULL, *other;
        struct cuda_stream *stream = stream_new(), *none;
        cuda_handle handle;
        unsigned flags;
        int active, device = -1;
        IS(CtxGetCurrent(&now), CUDA_OK);
        assert_ptr_equal(now, *state);
        IS(CtxGetDevice(&device), CUDA_OK);
        assert_int_equal(device, 0);
        IS(DevicePrimaryCtxGetState(1, &flags, &active), CUDA_OK);
        assert_false(active);
        IS(DevicePrimaryCtxRetain(&other, 1), CUDA_OK);
        IS(DevicePrimaryCtxGetState(1, &flags, &active), CUDA_OK);
        assert_true(active);
        /* What belongs to another context is refused. */
        IS(CtxPushCurrent(other), CUDA_OK);
        IS(StreamQuery(stream), CUDA_INVALID_HANDLE);
        IS(StreamDestroy(stream), CUDA_INVALID_HANDLE);
        IS(CtxPopCurrent(&now), CUDA_OK);
        assert_ptr_equal(now, other);
        IS(DevicePrimaryCtxRelease(1), CUDA_OK);
        IS(DevicePrimaryCtxRelease(1), CUDA_INVALID_CONTEXT);
        IS(CtxPushCurrent(other), CUDA_INVALID_CONTEXT);
        IS(CtxSetCurrent(other), CUDA_INVALID_CONTEXT);
        /* Without one there is nothing. */
        IS(CtxSetCurrent(NULL), CUDA_OK);
        IS(CtxPopCurrent(NULL), CUDA_INVALID_CONTEXT);
        IS(StreamCreateWithPriority(&none, CUDA_STREAM_NON_BLOCKING, 0), CUDA_INVALID_CONTEXT);
        IS(MemCreate(&handle, SLAB_BYTES, &exportable, 0), CUDA_INVALID_CONTEXT);
        IS(CtxSetCurrent(*state), CUDA_OK);
        IS(StreamDestroy(stream), CUDA_OK);
        IS(StreamDestroy(stream), CUDA_INVALID_HANDLE);
}

static void a_context_that_ends_takes_its_objects(void **state) {
        struct emu_counts c;
        struct cuda_event *event;
        (void) stream_new();
        IS(EventCreate(&event, CUDA_EVENT_DISABLE_TIMING), CUDA_OK);
        struct cuda_stream *stream = stream_new();
        emu->hold(true);
        IS(EventRecord(event, stream), CUDA_OK);
        IS(StreamDestroy(stream), CUDA_OK);
        emu->counts(&c);
        assert_int_equal(c.refused, 0);
        IS(DevicePrimaryCtxRelease(0), CUDA_OK);
        emu->counts(&c);
        assert_int_equal(c.abandoned, 3);
        assert_int_equal(c.streams, 0);
        assert_int_equal(c.events, 0);
        IS(CtxSynchronize(), CUDA_CONTEXT_IS_DESTROYED);
        IS(EventDestroy(event), CUDA_CONTEXT_IS_DESTROYED);
        emu->counts(&c);
        assert_int_equal(c.refused, 2);
}

/* ---- memory ---- */

static void allocations_are_checked(void **state) {
        cuda_handle a, b;
        struct cuda_allocation p = exportable;
        size_t bytes = 0, total = 0;
        int fd = -1;
        IS(MemGetAllocationGranularity(&bytes, &p, CUDA_GRANULARITY_MINIMUM), CUDA_OK);
        assert_int_equal(bytes, SLAB_BYTES);
        IS(MemCreate(&a, 0, &p, 0), CUDA_INVALID_VALUE);
        IS(MemCreate(&a, SLAB_BYTES - 1, &p, 0), CUDA_INVALID_VALUE);
        IS(MemCreate(&a, SLAB_BYTES, &p, 1), CUDA_INVALID_VALUE);
        IS(MemCreate(&a, SLAB_BYTES, NULL, 0), CUDA_INVALID_VALUE);
        p.location.id = 2;
        IS(MemCreate(&a, SLAB_BYTES, &p, 0), CUDA_INVALID_VALUE);
        IS(MemGetAllocationGranularity(&bytes, &p, CUDA_GRANULARITY_MINIMUM), CUDA_INVALID_VALUE);
        p = exportable;
        p.reserved[3] = 1;
        IS(MemCreate(&a, SLAB_BYTES, &p, 0), CUDA_INVALID_VALUE);
        IS(MemCreate(&a, 66 * MiB, &exportable, 0), CUDA_OUT_OF_MEMORY);
        IS(MemCreate(&a, 62 * MiB, &exportable, 0), CUDA_OK);
        IS(MemGetInfo(&bytes, &total), CUDA_OK);
        assert_int_equal(bytes, 2 * MiB);
        assert_int_equal(total, 64 * MiB);
        IS(MemCreate(&b, 4 * MiB, &exportable, 0), CUDA_OUT_OF_MEMORY);
        IS(MemRelease(a), CUDA_OK);
        IS(MemRelease(a), CUDA_INVALID_VALUE);
        IS(MemGetAllocationPropertiesFromHandle(&p, a), CUDA_INVALID_VALUE);
        IS(MemExportToShareableHandle(&fd, a, CUDA_HANDLE_POSIX_FD, 0), CUDA_INVALID_VALUE);
        p = exportable;
        p.handle_types = CUDA_HANDLE_NONE;
        IS(MemCreate(&b, SLAB_BYTES, &p, 0), CUDA_OK);
        assert_true(a != b);
        IS(MemExportToShareableHandle(&fd, b, CUDA_HANDLE_POSIX_FD, 0), CUDA_INVALID_VALUE);
        IS(MemRelease(b), CUDA_OK);
}

static void foreign_descriptors_are_not_imported(void **state) {
        cuda_handle handle;
        int fd = memfd_create("mine", MFD_CLOEXEC);
        IS(MemImportFromShareableHandle(&handle, (void *) (intptr_t) fd, CUDA_HANDLE_POSIX_FD),
           CUDA_INVALID_VALUE);
        (void) close(fd);
        IS(MemImportFromShareableHandle(&handle, (void *) (intptr_t) fd, CUDA_HANDLE_POSIX_FD),
           CUDA_INVALID_VALUE);
        struct slab s = slab_new();
        IS(MemExportToShareableHandle(&fd, s.handle, CUDA_HANDLE_NONE, 0), CUDA_INVALID_VALUE);
        IS(MemExportToShareableHandle(&fd, s.handle, CUDA_HANDLE_POSIX_FD, 1), CUDA_INVALID_VALUE);
        slab_free(&s);
}

static void mappings_keep_to_their_order(void **state) {
        cuda_handle handle, small;
        cuda_address a, b;
        struct cuda_access other = {{CUDA_LOCATION_DEVICE, 1}, CUDA_ACCESS_READ_WRITE};
        IS(MemAddressReserve(&a, SLAB_BYTES + 1, 0, 0, 0), CUDA_INVALID_VALUE);
        IS(MemAddressReserve(&a, SLAB_BYTES, 3, 0, 0), CUDA_INVALID_VALUE);
        IS(MemAddressReserve(&a, SLAB_BYTES, 0, 0, 1), CUDA_INVALID_VALUE);
        IS(MemAddressReserve(&a, 2 * SLAB_BYTES, 4 * SLAB_BYTES, 0, 0), CUDA_OK);
        assert_int_equal(a % (4 * SLAB_BYTES), 0);
        IS(MemCreate(&handle, 2 * SLAB_BYTES, &exportable, 0), CUDA_OK);
        IS(MemCreate(&small, SLAB_BYTES, &exportable, 0), CUDA_OK);
        IS(MemMap(a + 4096, SLAB_BYTES, 0, handle, 0), CUDA_INVALID_VALUE);
        IS(MemMap(a, 2 * SLAB_BYTES, 0, small, 0), CUDA_INVALID_VALUE);
        IS(MemMap(a, 4 * SLAB_BYTES, 0, handle, 0), CUDA_INVALID_VALUE);
        IS(MemMap(a, SLAB_BYTES, SLAB_BYTES, handle, 0), CUDA_INVALID_VALUE);
        IS(MemMap(a, SLAB_BYTES, 0, handle, 1), CUDA_INVALID_VALUE);
        IS(MemMap(a, SLAB_BYTES, 0, handle + 1, 0), CUDA_INVALID_VALUE);
        IS(MemSetAccess(a, 2 * SLAB_BYTES, &read_write, 1), CUDA_INVALID_VALUE);
        IS(MemUnmap(a, 2 * SLAB_BYTES), CUDA_INVALID_VALUE);
        IS(MemMap(a, 2 * SLAB_BYTES, 0, handle, 0), CUDA_OK);
        IS(MemMap(a, SLAB_BYTES, 0, small, 0), CUDA_INVALID_VALUE);
        IS(MemSetAccess(a, 2 * SLAB_BYTES, &other, 1), CUDA_INVALID_DEVICE);
        IS(MemSetAccess(a, SLAB_BYTES, &read_write, 1), CUDA_INVALID_VALUE);
        IS(MemSetAccess(a, 2 * SLAB_BYTES, &read_write, 0), CUDA_INVALID_VALUE);
        IS(MemAddressFree(a, 2 * SLAB_BYTES), CUDA_INVALID_VALUE);
        IS(MemUnmap(a, SLAB_BYTES), CUDA_INVALID_VALUE);
        IS(MemUnmap(a, 2 * SLAB_BYTES), CUDA_OK);
        IS(MemUnmap(a, 2 * SLAB_BYTES), CUDA_INVALID_VALUE);
        IS(MemAddressFree(a, SLAB_BYTES), CUDA_INVALID_VALUE);
        IS(MemAddressFree(a, 2 * SLAB_BYTES), CUDA_OK);
        IS(MemAddressFree(a, 2 * SLAB_BYTES), CUDA_INVALID_VALUE);
        IS(MemRelease(small), CUDA_OK);
        /* A mapping keeps what it maps. */
        IS(MemAddressReserve(&b, 2 * SLAB_BYTES, 0, 0, 0), CUDA_OK);
        IS(MemMap(b, 2 * SLAB_BYTES, 0, handle, 0), CUDA_OK);
        IS(MemRelease(handle), CUDA_OK);
        struct emu_counts c;
        emu->counts(&c);
        assert_int_equal(c.allocations, 1);
        IS(MemUnmap(b, 2 * SLAB_BYTES), CUDA_OK);
        IS(MemAddressFree(b, 2 * SLAB_BYTES), CUDA_OK);
}

static void host_code_faults_on_device_memory(void **state) {
        struct slab s = slab_new();
        cuda_address plain;
        IS(MemAlloc(&plain, 100), CUDA_OK);
        assert_false(is_readable(s.address));
        assert_false(is_readable(s.address + SLAB_BYTES - 1));
        assert_false(is_readable(plain));
        assert_true(is_readable(at(&plain)));
        IS(MemFree(plain), CUDA_OK);
        slab_free(&s);
}

static void plain_allocations(void **state) {
        cuda_address a;
        unsigned type;
        IS(MemAlloc(&a, 0), CUDA_INVALID_VALUE);
        IS(MemAlloc(&a, 65 * MiB), CUDA_OUT_OF_MEMORY);
        IS(MemAlloc(&a, 1000), CUDA_OK);
        IS(PointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, a + 999), CUDA_OK);
        assert_int_equal(type, CUDA_MEMORY_DEVICE);
        IS(MemFree(a + 1), CUDA_INVALID_VALUE);
        IS(MemUnmap(a, 4096), CUDA_INVALID_VALUE);
        IS(MemAddressFree(a, 4096), CUDA_INVALID_VALUE);
        IS(MemFree(a), CUDA_OK);
        IS(MemFree(a), CUDA_INVALID_VALUE);
        IS(PointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, a), CUDA_INVALID_VALUE);
}

static void pointers_are_told_apart(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        unsigned type = 0;
        int device = -1;
        cuda_address start = 0;
        size_t bytes = 0;
        IS(PointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, s.address + 5), CUDA_OK);
        assert_int_equal(type, CUDA_MEMORY_DEVICE);
        IS(PointerGetAttribute(&device, CUDA_POINTER_DEVICE_ORDINAL, s.address), CUDA_OK);
        assert_int_equal(device, 0);
        IS(PointerGetAttribute(&start, CUDA_POINTER_RANGE_START, s.address + 5), CUDA_OK);
        assert_int_equal(start, s.address);
        IS(PointerGetAttribute(&bytes, CUDA_POINTER_RANGE_BYTES, s.address + 5), CUDA_OK);
        assert_int_equal(bytes, SLAB_BYTES);
        unsigned flag = 7;
        IS(PointerGetAttribute(&flag, CUDA_POINTER_IS_MANAGED, s.address + 5), CUDA_OK);
        assert_int_equal(flag, 0);
        emu->manage((void *) (uintptr_t) s.address);
        IS(PointerGetAttribute(&flag, CUDA_POINTER_IS_MANAGED, s.address + 5), CUDA_OK);
        assert_int_equal(flag, 1);
        IS(PointerGetAttribute(&flag, CUDA_POINTER_IS_MANAGED, at(&type)), CUDA_INVALID_VALUE);
        IS(PointerGetAttribute(&flag, CUDA_POINTER_MAPPED, at(host)), CUDA_INVALID_VALUE);
        IS(PointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, at(host)), CUDA_OK);
        assert_int_equal(type, CUDA_MEMORY_HOST);
        IS(PointerGetAttribute(&type, CUDA_POINTER_MEMORY_TYPE, at(&type)), CUDA_INVALID_VALUE);
        host_free(host, 4096);
        slab_free(&s);
}

/* The range is that of the addresses, of which a part may be mapped. */
static void ranges_are_of_addresses(void **state) {
        cuda_address a, start;
        cuda_handle handle;
        size_t bytes;
        unsigned flag = 7;
        IS(MemAddressReserve(&a, 3 * SLAB_BYTES, 0, 0, 0), CUDA_OK);
        IS(MemCreate(&handle, SLAB_BYTES, &exportable, 0), CUDA_OK);
        IS(MemMap(a + SLAB_BYTES, SLAB_BYTES, 0, handle, 0), CUDA_OK);
        IS(PointerGetAttribute(&start, CUDA_POINTER_RANGE_START, a + SLAB_BYTES + 5), CUDA_OK);
        assert_int_equal(start, a);
        IS(PointerGetAttribute(&bytes, CUDA_POINTER_RANGE_BYTES, a + SLAB_BYTES), CUDA_OK);
        assert_int_equal(bytes, 3 * SLAB_BYTES);
        IS(PointerGetAttribute(&flag, CUDA_POINTER_MAPPED, a), CUDA_OK);
        assert_int_equal(flag, 0);
        IS(PointerGetAttribute(&flag, CUDA_POINTER_MAPPED, a + SLAB_BYTES), CUDA_OK);
        assert_int_equal(flag, 1);
        IS(PointerGetAttribute(&flag, CUDA_POINTER_MEMORY_TYPE, a), CUDA_INVALID_VALUE);
        IS(MemUnmap(a + SLAB_BYTES, SLAB_BYTES), CUDA_OK);
        IS(MemAddressFree(a, 3 * SLAB_BYTES), CUDA_OK);
        IS(PointerGetAttribute(&flag, CUDA_POINTER_MAPPED, a), CUDA_INVALID_VALUE);
        IS(MemRelease(handle), CUDA_OK);
}

static void host_memory_is_registered_once(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(8192);
        IS(MemHostRegister(host + 4096, 8192, 0), CUDA_HOST_MEMORY_ALREADY_REGISTERED);
        IS(MemHostRegister(host, 0, 0), CUDA_INVALID_VALUE);
        IS(MemHostRegister(host, 1, 64), CUDA_INVALID_VALUE);
        IS(MemHostRegister((void *) (uintptr_t) s.address, 4096, 0), CUDA_INVALID_VALUE);
        IS(MemHostRegister((void *) 4096, 4096, 0), CUDA_INVALID_VALUE);
        IS(MemHostUnregister(host + 4096), CUDA_HOST_MEMORY_NOT_REGISTERED);
        host_free(host, 8192);
        IS(MemHostUnregister(host), CUDA_HOST_MEMORY_NOT_REGISTERED);
        slab_free(&s);
}

/* ---- streams, events, copies ---- */

static void copies_reach_and_stay_within(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(8192);
        struct cuda_stream *stream = stream_new();
        struct emu_counts c;
        memset(host, 1, 4096);
        IS(MemsetD32Async(s.address, 0x01020304, SLAB_BYTES / 4, stream), CUDA_OK);
        IS(MemcpyAsync(s.address + 100, at(host), 4096, stream), CUDA_OK);
        IS(MemcpyAsync(at(host) + 4096, s.address + 96, 8, stream), CUDA_OK);
        IS(CtxSynchronize(), CUDA_OK);
        assert_memory_equal(host + 4096, "\4\3\2\1\1\1\1\1", 8);
        IS(MemcpyAsync(s.address, at(host), 0, stream), CUDA_OK);
        IS(MemcpyAsync(s.address + SLAB_BYTES - 1, at(host), 2, stream), CUDA_INVALID_VALUE);
        IS(MemcpyAsync(at(host), s.address - 1, 2, stream), CUDA_INVALID_VALUE);
        IS(MemcpyAsync(0, at(host), 2, stream), CUDA_INVALID_VALUE);
        IS(MemcpyAsync(s.address, s.address + 1, 2, stream), CUDA_INVALID_VALUE);
        IS(MemcpyAsync(s.address, at(host), 2, NULL), CUDA_INVALID_HANDLE);
        IS(MemsetD8Async(at(host), 1, 2, stream), CUDA_INVALID_VALUE);
        IS(MemsetD8Async(s.address + SLAB_BYTES - 1, 1, 2, stream), CUDA_INVALID_VALUE);
        IS(MemsetD32Async(s.address + 2, 1, 2, stream), CUDA_INVALID_VALUE);
        /* Memory that is not registered is waited for, and counted. */
        unsigned char plain[16] = {9, 9};
        IS(MemcpyAsync(s.address, at(plain), sizeof plain, stream), CUDA_OK);
        memset(plain, 8, sizeof plain);
        IS(MemcpyAsync(at(plain), s.address, sizeof plain, stream), CUDA_OK);
        assert_int_equal(plain[1], 9);
        emu->counts(&c);
        assert_int_equal(c.copies, 4);
        assert_int_equal(c.pageable_copies, 2);
        IS(StreamDestroy(stream), CUDA_OK);
        host_free(host, 8192);
        slab_free(&s);
}

static void access_is_granted_first(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        struct cuda_stream *stream = stream_new();
        struct cuda_access access = {{CUDA_LOCATION_DEVICE, 0}, CUDA_ACCESS_READ};
        IS(MemSetAccess(s.address, SLAB_BYTES, &access, 1), CUDA_OK);
        IS(MemcpyAsync(at(host), s.address, 16, stream), CUDA_OK);
        IS(MemcpyAsync(s.address, at(host), 16, stream), CUDA_INVALID_VALUE);
        IS(StreamSynchronize(stream), CUDA_OK);
        access.flags = CUDA_ACCESS_NONE;
        IS(MemSetAccess(s.address, SLAB_BYTES, &access, 1), CUDA_OK);
        IS(MemcpyAsync(at(host), s.address, 16, stream), CUDA_INVALID_VALUE);
        access.flags = (enum cuda_access_flags) 2;
        IS(MemSetAccess(s.address, SLAB_BYTES, &access, 1), CUDA_INVALID_VALUE);
        IS(StreamDestroy(stream), CUDA_OK);
        host_free(host, 4096);
        slab_free(&s);
}

/* What is changed after the call and before the copy is what is copied. */
static void a_source_that_is_changed_too_early_shows(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        struct cuda_stream *stream = stream_new();
        memset(host, 1, 2048);
        emu->hold(true);
        IS(MemcpyAsync(s.address, at(host), 2048, stream), CUDA_OK);
        IS(StreamQuery(stream), CUDA_NOT_READY);
        memset(host, 2, 1024);
        emu->hold(false);
        IS(MemcpyAsync(at(host) + 2048, s.address, 2048, stream), CUDA_OK);
        IS(StreamSynchronize(stream), CUDA_OK);
        IS(StreamQuery(stream), CUDA_OK);
        assert_int_equal(host[2048], 2);
        assert_int_equal(host[2048 + 1024], 1);
        IS(StreamDestroy(stream), CUDA_OK);
        host_free(host, 4096);
        slab_free(&s);
}

static void events_order_streams(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        struct cuda_stream *first = stream_new(), *second = stream_new();
        struct cuda_event *event;
        IS(EventCreate(&event, 0), CUDA_INVALID_VALUE);
        IS(EventCreate(&event, CUDA_EVENT_DISABLE_TIMING), CUDA_OK);
        IS(EventQuery(event), CUDA_OK); /* never recorded */
        emu->hold(true);
        IS(MemsetD8Async(s.address, 5, 4096, first), CUDA_OK);
        IS(EventRecord(event, first), CUDA_OK);
        IS(EventQuery(event), CUDA_NOT_READY);
        IS(StreamWaitEvent(second, event, 1), CUDA_INVALID_VALUE);
        IS(StreamWaitEvent(second, event, 0), CUDA_OK);
        IS(MemcpyAsync(at(host), s.address, 4096, second), CUDA_OK);
        emu->hold(false);
        IS(EventSynchronize(event), CUDA_OK);
        IS(EventQuery(event), CUDA_OK);
        IS(StreamSynchronize(second), CUDA_OK);
        assert_int_equal(host[4095], 5);
        IS(EventRecord(event, NULL), CUDA_INVALID_HANDLE);
        /* Destroyed while it is queued: the stream still comes by it. */
        IS(EventRecord(event, first), CUDA_OK);
        IS(EventDestroy(event), CUDA_OK);
        IS(EventDestroy(event), CUDA_INVALID_HANDLE);
        IS(EventQuery(event), CUDA_INVALID_HANDLE);
        IS(EventSynchronize(event), CUDA_INVALID_HANDLE);
        IS(EventRecord(event, first), CUDA_INVALID_HANDLE);
        IS(StreamWaitEvent(first, event, 0), CUDA_INVALID_HANDLE);
        IS(CtxSynchronize(), CUDA_OK);
        IS(StreamDestroy(first), CUDA_OK);
        IS(StreamDestroy(second), CUDA_OK);
        IS(StreamSynchronize(first), CUDA_INVALID_HANDLE);
        host_free(host, 4096);
        slab_free(&s);
}

static void streams_that_are_destroyed_end_their_work(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        struct cuda_stream *stream, *blocking;
        struct emu_counts c;
        IS(StreamCreateWithPriority(&blocking, 0, 0), CUDA_INVALID_VALUE);
        stream = stream_new();
        emu->hold(true);
        IS(MemsetD8Async(s.address, 6, 4096, stream), CUDA_OK);
        IS(MemcpyAsync(at(host), s.address, 4096, stream), CUDA_OK);
        IS(StreamDestroy(stream), CUDA_OK);
        emu->counts(&c);
        assert_int_equal(c.streams, 1);
        assert_int_equal(c.operations, 2);
        emu->hold(false);
        IS(CtxSynchronize(), CUDA_OK);
        assert_int_equal(host[4095], 6);
        host_free(host, 4096);
        slab_free(&s);
}

/* ---- errors that stay ---- */

/* Every later call in the context; it goes with the process, or with reset here. */
static void expect_stuck(enum cuda_result result) {
        struct cuda_stream *stream;
        struct cuda_context *context;
        cuda_address address;
        size_t bytes;
        IS(CtxSynchronize(), result);
        IS(StreamCreateWithPriority(&stream, CUDA_STREAM_NON_BLOCKING, 0), result);
        IS(MemAlloc(&address, 100), result);
        IS(MemGetInfo(&bytes, &bytes), result);
        IS(DevicePrimaryCtxRetain(&context, 0), result);
        /* Another GPU goes on. */
        IS(DevicePrimaryCtxRetain(&context, 1), CUDA_OK);
        IS(CtxPushCurrent(context), CUDA_OK);
        IS(MemGetInfo(&bytes, &bytes), CUDA_OK);
        IS(CtxPopCurrent(NULL), CUDA_OK);
}

static void memory_that_went_too_early_is_fatal(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        struct cuda_stream *stream = stream_new();
        struct cuda_event *event;
        IS(EventCreate(&event, CUDA_EVENT_DISABLE_TIMING), CUDA_OK);
        emu->hold(true);
        IS(MemcpyAsync(at(host), s.address, 4096, stream), CUDA_OK);
        IS(EventRecord(event, stream), CUDA_OK);
        IS(MemUnmap(s.address, SLAB_BYTES), CUDA_OK);
        emu->hold(false);
        IS(EventSynchronize(event), CUDA_ILLEGAL_ADDRESS);
        IS(EventQuery(event), CUDA_ILLEGAL_ADDRESS);
        expect_stuck(CUDA_ILLEGAL_ADDRESS);
        IS(DevicePrimaryCtxRelease(0), CUDA_ILLEGAL_ADDRESS);
        (void) munmap(host, 4096);
}

/* The addresses too: they are not taken for the host's. */
static void addresses_that_went_too_early_are_fatal(void **state) {
        struct slab s = slab_new();
        struct cuda_stream *stream = stream_new();
        emu->hold(true);
        IS(MemsetD8Async(s.address, 1, 4096, stream), CUDA_OK);
        slab_free(&s);
        emu->hold(false);
        IS(StreamSynchronize(stream), CUDA_ILLEGAL_ADDRESS);
        expect_stuck(CUDA_ILLEGAL_ADDRESS);
}

static void memory_unregistered_too_early_is_fatal(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        struct cuda_stream *stream = stream_new();
        emu->hold(true);
        IS(MemcpyAsync(at(host), s.address, 4096, stream), CUDA_OK);
        IS(MemHostUnregister(host), CUDA_OK);
        emu->hold(false);
        IS(StreamSynchronize(stream), CUDA_ILLEGAL_ADDRESS);
        expect_stuck(CUDA_ILLEGAL_ADDRESS);
        (void) munmap(host, 4096);
}

static void an_operation_that_breaks_is_fatal(void **state) {
        struct slab s = slab_new();
        struct cuda_stream *stream = stream_new();
        emu->break_operation(2, CUDA_ECC_UNCORRECTABLE);
        IS(MemsetD8Async(s.address, 1, 16, stream), CUDA_OK);
        IS(StreamSynchronize(stream), CUDA_OK);
        IS(MemsetD8Async(s.address, 1, 16, stream), CUDA_OK);
        IS(StreamSynchronize(stream), CUDA_ECC_UNCORRECTABLE);
        expect_stuck(CUDA_ECC_UNCORRECTABLE);
}

static void a_fault_that_stays(void **state) {
        size_t bytes;
        emu->fault("cuMemGetInfo_v2", 2, CUDA_LAUNCH_FAILED);
        IS(MemGetInfo(&bytes, &bytes), CUDA_OK);
        assert_null(emu->fired());
        IS(MemGetInfo(&bytes, &bytes), CUDA_LAUNCH_FAILED);
        assert_string_equal(emu->fired(), "cuMemGetInfo_v2");
        expect_stuck(CUDA_LAUNCH_FAILED);
}

/* ---- faults and delays ---- */

static uint64_t now_ns(void) {
        struct timespec t;
        (void) clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t) t.tv_sec * NSEC_PER_SEC + (uint64_t) t.tv_nsec;
}

static void faults_and_delays(void **state) {
        struct cuda_event *event;
        struct emu_counts c;
        size_t bytes;
        emu->fault(NULL, 3, CUDA_NOT_PERMITTED);
        IS(EventCreate(&event, CUDA_EVENT_DISABLE_TIMING), CUDA_OK);
        IS(MemGetInfo(&bytes, &bytes), CUDA_OK);
        /* What frees does so and tells then. */
        IS(EventDestroy(event), CUDA_NOT_PERMITTED);
        emu->counts(&c);
        assert_int_equal(c.events, 0);
        IS(EventDestroy(event), CUDA_INVALID_HANDLE);
        /* Any other does nothing. */
        emu->fault("cuEventCreate", 1, CUDA_OUT_OF_MEMORY);
        IS(EventCreate(&event, CUDA_EVENT_DISABLE_TIMING), CUDA_OUT_OF_MEMORY);
        emu->counts(&c);
        assert_int_equal(c.events, 0);
        emu->delay("cuMemGetInfo_v2", 2, 50 * NSEC_PER_MSEC);
        IS(MemGetInfo(&bytes, &bytes), CUDA_OK);
        uint64_t begin = now_ns();
        IS(MemGetInfo(&bytes, &bytes), CUDA_OK);
        assert_true(now_ns() - begin >= 50 * NSEC_PER_MSEC);
}

/* ---- kernels ---- */

static enum cuda_result add(const struct emu_launch *l, void **parameters) {
        unsigned char *data = *(unsigned char **) parameters[0];
        unsigned char value = *(unsigned char *) parameters[1];
        for (unsigned i = 0; i < l->grid[0] * l->block[0]; i++)
                data[i] = (unsigned char) (data[i] + value);
        return CUDA_OK;
}
static enum cuda_result crash(const struct emu_launch *l, void **parameters) {
        return CUDA_MISALIGNED_ADDRESS;
}
static const size_t add_bytes[] = {sizeof(void *), 1};
static const struct emu_kernel kernels[] = {{"add", add, 2, add_bytes}, {"crash", crash, 0, NULL}};
static const struct emu_image image = {EMU_IMAGE_MAGIC, 2, kernels};

/* It is there unasked, keeps its order, and ends with its context. */
static void the_default_stream(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096);
        IS(StreamQuery(CUDA_STREAM_LEGACY), CUDA_OK);
        IS(StreamDestroy(CUDA_STREAM_LEGACY), CUDA_INVALID_HANDLE);
        emu->hold(true);
        IS(MemsetD8Async(s.address, 7, 4096, CUDA_STREAM_LEGACY), CUDA_OK);
        IS(MemcpyAsync(at(host), s.address, 4096, CUDA_STREAM_LEGACY), CUDA_OK);
        IS(StreamQuery(CUDA_STREAM_LEGACY), CUDA_NOT_READY);
        emu->hold(false);
        IS(StreamSynchronize(CUDA_STREAM_LEGACY), CUDA_OK);
        assert_int_equal(host[0], 7);
        assert_int_equal(host[4095], 7);
        IS(StreamQuery(NULL), CUDA_INVALID_HANDLE);
        host_free(host, 4096);
        slab_free(&s);
}

static void kernels_see_device_memory(void **state) {
        struct slab s = slab_new();
        unsigned char *host = host_new(4096), value = 3;
        struct cuda_stream *stream = stream_new();
        struct cuda_module *module;
        struct cuda_function *f;
        void *parameters[] = {&s.address, &value};
        IS(ModuleLoadData(&module, "not an image"), CUDA_INVALID_IMAGE);
        IS(ModuleLoadData(&module, NULL), CUDA_INVALID_VALUE);
        IS(ModuleLoadData(&module, &image), CUDA_OK);
        IS(ModuleGetFunction(&f, module, "subtract"), CUDA_NOT_FOUND);
        IS(ModuleGetFunction(&f, module, "add"), CUDA_OK);
        IS(MemsetD8Async(s.address, 4, 4096, stream), CUDA_OK);
        IS(LaunchKernel(f, 4, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL), CUDA_OK);
        value = 100; /* the call took it */
        IS(MemcpyAsync(at(host), s.address, 4096, stream), CUDA_OK);
        IS(StreamSynchronize(stream), CUDA_OK);
        assert_int_equal(host[4095], 7);
        assert_false(is_readable(s.address));
        IS(LaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), CUDA_INVALID_VALUE);
        IS(LaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, stream, parameters, NULL), CUDA_INVALID_VALUE);
        IS(LaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, stream, parameters, NULL), CUDA_INVALID_VALUE);
        IS(LaunchKernel(f, 1, 1, 1, 32, 32, 2, 0, stream, parameters, NULL), CUDA_INVALID_VALUE);
        IS(LaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, stream, parameters, NULL), CUDA_INVALID_VALUE);
        IS(FuncSetAttribute(f, CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, 1 << 20),
           CUDA_INVALID_VALUE);
        IS(FuncSetAttribute(f, CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, 65536), CUDA_OK);
        IS(LaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, stream, parameters, NULL), CUDA_OK);
        IS(LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_INVALID_VALUE);
        IS(LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), CUDA_INVALID_HANDLE);
        IS(StreamSynchronize(stream), CUDA_OK);
        IS(ModuleUnload(module), CUDA_OK);
        IS(ModuleUnload(module), CUDA_INVALID_HANDLE);
        IS(ModuleGetFunction(&f, module, "add"), CUDA_INVALID_HANDLE);
        IS(LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL), CUDA_INVALID_HANDLE);
        IS(StreamDestroy(stream), CUDA_OK);
        host_free(host, 4096);
        slab_free(&s);
}

static void a_kernel_that_fails_is_fatal(void **state) {
        struct cuda_stream *stream = stream_new();
        struct cuda_module *module;
        struct cuda_function *f;
        IS(ModuleLoadData(&module, &image), CUDA_OK);
        IS(ModuleGetFunction(&f, module, "crash"), CUDA_OK);
        IS(LaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), CUDA_OK);
        IS(StreamSynchronize(stream), CUDA_MISALIGNED_ADDRESS);
        expect_stuck(CUDA_MISALIGNED_ADDRESS);
}

#define GOOD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define FATAL(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down_broken)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(memory_outlives_its_process),
                GOOD(a_forked_child_has_no_driver),
                GOOD(devices_are_told),
                GOOD(errors_have_names),
                GOOD(contexts_are_current_by_thread),
                FATAL(a_context_that_ends_takes_its_objects),
                GOOD(allocations_are_checked),
                GOOD(foreign_descriptors_are_not_imported),
                GOOD(mappings_keep_to_their_order),
                GOOD(host_code_faults_on_device_memory),
                GOOD(plain_allocations),
                GOOD(pointers_are_told_apart),
                GOOD(ranges_are_of_addresses),
                GOOD(host_memory_is_registered_once),
                GOOD(copies_reach_and_stay_within),
                GOOD(access_is_granted_first),
                GOOD(a_source_that_is_changed_too_early_shows),
                GOOD(events_order_streams),
                GOOD(streams_that_are_destroyed_end_their_work),
                FATAL(memory_that_went_too_early_is_fatal),
                FATAL(addresses_that_went_too_early_are_fatal),
                FATAL(memory_unregistered_too_early_is_fatal),
                FATAL(an_operation_that_breaks_is_fatal),
                FATAL(a_fault_that_stays),
                GOOD(faults_and_delays),
                GOOD(the_default_stream),
                GOOD(kernels_see_device_memory),
                FATAL(a_kernel_that_fails_is_fatal),
        };
        (void) setenv("CAIRN_EMU_DEVICES", "2", 1);
        (void) setenv("CAIRN_EMU_MEMORY", "64", 1);
        return cmocka_run_group_tests(tests, NULL, NULL);
}
