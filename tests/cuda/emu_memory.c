/* SPDX-License-Identifier: Apache-2.0
 *
 * Allocations, reservations, mappings, registered host memory.
 */
#include "tests/cuda/emu_parts.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOST_PAGE 4096
#define HOST_FLAGS 15u
/* The name says whose memory it is: a descriptor of anything else is refused. */
#define MEMFD_NAME "cairn-emulated-gpu-"

static void *pointer(cuda_address address) {
        return (void *) (uintptr_t) address;
}

static bool overlaps(cuda_address a, size_t a_bytes, cuda_address b, size_t b_bytes) {
        return a < b + b_bytes && b < a + a_bytes;
}

static bool lies_in(cuda_address a, size_t a_bytes, cuda_address b, size_t b_bytes) {
        return a >= b && a - b <= b_bytes && a_bytes <= b_bytes - (a - b);
}

struct emu_mapping *emu_mapping_of(cuda_address address) {
        for (struct emu_mapping *m = emu.mappings; m; m = m->next)
                if (lies_in(address, 1, m->address, m->bytes))
                        return m;
        return NULL;
}

bool emu_is_reserved(cuda_address address, size_t bytes) {
        for (struct emu_reservation *r = emu.reservations; r; r = r->next)
                if (overlaps(address, bytes, r->address, r->bytes))
                        return true;
        return false;
}

bool emu_is_registered(cuda_address address, size_t bytes) {
        for (struct emu_registration *r = emu.registrations; r; r = r->next)
                if (lies_in(address, bytes, r->address, r->bytes))
                        return true;
        return false;
}

bool emu_may_access(int device, cuda_address address, size_t bytes, bool write) {
        struct emu_mapping *m = emu_mapping_of(address);
        if (!m)
                return address != 0 && !emu_is_reserved(address, bytes);
        if (!lies_in(address, bytes, m->address, m->bytes))
                return false;
        return m->access[device] == CUDA_ACCESS_READ_WRITE ||
               (m->access[device] == CUDA_ACCESS_READ && !write);
}

/* ---- allocations ---- */

static struct emu_allocation *allocation_of(cuda_handle handle) {
        for (struct emu_allocation *a = emu.allocations; a && handle != 0; a = a->next)
                if (a->handle == handle)
                        return a;
        return NULL;
}

static bool is_allocation(const struct cuda_allocation *p) {
        static const unsigned char zero[4];
        return p && p->type == CUDA_ALLOCATION_PINNED && p->location.type == CUDA_LOCATION_DEVICE &&
               p->location.id >= 0 && p->location.id < emu.device_count &&
               (p->handle_types == CUDA_HANDLE_NONE || p->handle_types == CUDA_HANDLE_POSIX_FD) &&
               !p->windows_only && p->usage == 0 && memcmp(p->reserved, zero, sizeof zero) == 0;
}

static struct emu_allocation *allocation_new(const struct cuda_allocation *properties, int fd,
                                             size_t bytes, bool imported) {
        struct emu_allocation *a = emu_new(sizeof *a);
        a->handle = emu_new_handle();
        a->properties = *properties;
        a->fd = fd;
        a->bytes = bytes;
        a->imported = imported;
        a->next = emu.allocations;
        emu.allocations = a;
        if (!imported)
                emu.memory_used[properties->location.id] += bytes;
        return a;
}

static void allocation_settle(struct emu_allocation *a) {
        if (a->handle != 0 || a->mapping_count > 0)
                return;
        struct emu_allocation **link = &emu.allocations;
        while (*link != a)
                link = &(*link)->next;
        *link = a->next;
        if (!a->imported)
                emu.memory_used[a->properties.location.id] -= a->bytes;
        (void) close(a->fd);
        free(a);
}

static enum cuda_result create(const struct cuda_allocation *properties, size_t bytes,
                               struct emu_allocation **ret) {
        char name[64];
        int device = properties->location.id;
        if (bytes > emu.memory_bytes - emu.memory_used[device])
                return CUDA_OUT_OF_MEMORY;
        (void) snprintf(name, sizeof name, MEMFD_NAME "%d", device);
        int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return CUDA_OPERATING_SYSTEM;
        if (ftruncate(fd, (off_t) bytes) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
                (void) close(fd);
                return CUDA_OUT_OF_MEMORY;
        }
        *ret = allocation_new(properties, fd, bytes, false);
        return CUDA_OK;
}

enum cuda_result cuMemGetAllocationGranularity(size_t *bytes,
                                               const struct cuda_allocation *allocation,
                                               enum cuda_granularity granularity) {
        EMU_ENTER(MemGetAllocationGranularity, EMU_STARTED);
        if (!bytes || !is_allocation(allocation) || granularity > CUDA_GRANULARITY_RECOMMENDED)
                return emu_leave(CUDA_INVALID_VALUE);
        *bytes = emu.granularity;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuMemCreate(cuda_handle *handle, size_t bytes,
                             const struct cuda_allocation *allocation, unsigned long long flags) {
        EMU_ENTER(MemCreate, EMU_CONTEXT);
        struct emu_allocation *a = NULL;
        if (!handle || bytes == 0 || bytes % emu.granularity != 0 || !is_allocation(allocation) ||
            flags != 0)
                return emu_leave(CUDA_INVALID_VALUE);
        enum cuda_result result = create(allocation, bytes, &a);
        if (result == CUDA_OK)
                *handle = a->handle;
        return emu_leave(result);
}

enum cuda_result cuMemRelease(cuda_handle handle) {
        EMU_ENTER(MemRelease, EMU_CONTEXT);
        struct emu_allocation *a = allocation_of(handle);
        if (!a)
                return emu_leave(CUDA_INVALID_VALUE);
        a->handle = 0;
        allocation_settle(a);
        return emu_leave(CUDA_OK);
}

enum cuda_result cuMemGetAllocationPropertiesFromHandle(struct cuda_allocation *allocation,
                                                        cuda_handle handle) {
        EMU_ENTER(MemGetAllocationPropertiesFromHandle, EMU_STARTED);
        struct emu_allocation *a = allocation_of(handle);
        if (!a || !allocation)
                return emu_leave(CUDA_INVALID_VALUE);
        *allocation = a->properties;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuMemExportToShareableHandle(void *shareable, cuda_handle handle,
                                              enum cuda_handle_type type,
                                              unsigned long long flags) {
        EMU_ENTER(MemExportToShareableHandle, EMU_CONTEXT);
        struct emu_allocation *a = allocation_of(handle);
        if (!a || !shareable || type != CUDA_HANDLE_POSIX_FD || flags != 0 ||
            a->properties.handle_types != CUDA_HANDLE_POSIX_FD)
                return emu_leave(CUDA_INVALID_VALUE);
        int fd = dup(a->fd); /* whether it is close-on-exec is nowhere promised */
        if (fd < 0)
                return emu_leave(CUDA_OPERATING_SYSTEM);
        *(int *) shareable = fd;
        return emu_leave(CUDA_OK);
}

/* The device whose memory a descriptor is; -1: of none. */
static int device_of_fd(int fd) {
        char path[64], target[128];
        int device;
        (void) snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof target - 1);
        if (n < 0)
                return -1;
        target[n] = '\0';
        return sscanf(target, "/memfd:" MEMFD_NAME "%d ", &device) == 1 ? device : -1;
}

enum cuda_result cuMemImportFromShareableHandle(cuda_handle *handle, void *shareable,
                                                enum cuda_handle_type type) {
        EMU_ENTER(MemImportFromShareableHandle, EMU_CONTEXT);
        int given = (int) (intptr_t) shareable, device = device_of_fd(given);
        struct cuda_allocation properties = {.type = CUDA_ALLOCATION_PINNED,
                                             .handle_types = CUDA_HANDLE_POSIX_FD,
                                             .location = {CUDA_LOCATION_DEVICE, device}};
        struct stat st;
        if (!handle || type != CUDA_HANDLE_POSIX_FD || !is_allocation(&properties) ||
            fstat(given, &st) < 0)
                return emu_leave(CUDA_INVALID_VALUE);
        int fd = fcntl(given, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return emu_leave(CUDA_OPERATING_SYSTEM);
        *handle = allocation_new(&properties, fd, (size_t) st.st_size, true)->handle;
        return emu_leave(CUDA_OK);
}

/* ---- addresses ---- */

static enum cuda_result reserve(size_t bytes, size_t alignment, bool plain, cuda_address *ret) {
        /* More than is asked for, to find the alignment in it; the rest is given back. */
        size_t all = bytes + alignment;
        unsigned char *p =
                mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED)
                return CUDA_OUT_OF_MEMORY;
        size_t head = (size_t) (-(uintptr_t) p % alignment);
        if (head > 0)
                (void) munmap(p, head);
        if (alignment > head)
                (void) munmap(p + head + bytes, alignment - head);
        (void) madvise(p + head, bytes, MADV_DONTFORK);
        struct emu_reservation *r = emu_new(sizeof *r);
        r->address = (uintptr_t) (p + head);
        r->bytes = bytes;
        r->plain = plain;
        r->next = emu.reservations;
        emu.reservations = r;
        *ret = r->address;
        return CUDA_OK;
}

static void unreserve(struct emu_reservation *r) {
        struct emu_reservation **link = &emu.reservations;
        while (*link != r)
                link = &(*link)->next;
        *link = r->next;
        (void) munmap(pointer(r->address), r->bytes);
        free(r);
}

static struct emu_reservation *reservation_at(cuda_address address) {
        struct emu_reservation *r = emu.reservations;
        while (r && r->address != address)
                r = r->next;
        return r;
}

/* The one that holds all of it. */
static struct emu_reservation *reservation_of(cuda_address address, size_t bytes) {
        struct emu_reservation *r = emu.reservations;
        while (r && !lies_in(address, bytes, r->address, r->bytes))
                r = r->next;
        return r;
}

static bool holds_mapping(cuda_address address, size_t bytes) {
        for (struct emu_mapping *m = emu.mappings; m; m = m->next)
                if (overlaps(address, bytes, m->address, m->bytes))
                        return true;
        return false;
}

enum cuda_result cuMemAddressReserve(cuda_address *address, size_t bytes, size_t alignment,
                                     cuda_address hint, unsigned long long flags) {
        EMU_ENTER(MemAddressReserve, EMU_CONTEXT);
        if (!address || bytes == 0 || bytes % emu.granularity != 0 || flags != 0 ||
            (alignment & (alignment - 1)) != 0)
                return emu_leave(CUDA_INVALID_VALUE);
        return emu_leave(reserve(bytes, alignment > emu.granularity ? alignment : emu.granularity,
                                 false, address));
}

enum cuda_result cuMemAddressFree(cuda_address address, size_t bytes) {
        EMU_ENTER(MemAddressFree, EMU_CONTEXT);
        struct emu_reservation *r = reservation_at(address);
        if (!r || r->plain || r->bytes != bytes || holds_mapping(address, bytes))
                return emu_leave(CUDA_INVALID_VALUE);
        unreserve(r);
        return emu_leave(CUDA_OK);
}

/* ---- mappings ---- */

static enum cuda_result map(cuda_address address, size_t bytes, struct emu_allocation *a,
                            bool plain) {
        unsigned char *shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
        if (shadow == MAP_FAILED)
                return CUDA_OUT_OF_MEMORY;
        if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, a->fd, 0) ==
            MAP_FAILED) {
                (void) munmap(shadow, bytes);
                return CUDA_OUT_OF_MEMORY;
        }
        (void) madvise(shadow, bytes, MADV_DONTFORK);
        (void) madvise(pointer(address), bytes, MADV_DONTFORK);
        struct emu_mapping *m = emu_new(sizeof *m);
        m->address = address;
        m->bytes = bytes;
        m->allocation = a;
        m->shadow = shadow;
        m->plain = plain;
        m->next = emu.mappings;
        emu.mappings = m;
        a->mapping_count++;
        return CUDA_OK;
}

static void unmap(struct emu_mapping *m) {
        struct emu_mapping **link = &emu.mappings;
        while (*link != m)
                link = &(*link)->next;
        *link = m->next;
        (void) munmap(m->shadow, m->bytes);
        (void) mmap(pointer(m->address), m->bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        m->allocation->mapping_count--;
        allocation_settle(m->allocation);
        free(m);
}

/* The mapping of exactly this range, once nothing that runs uses it. */
static struct emu_mapping *unused_mapping(cuda_address address, size_t bytes, bool plain) {
        for (;;) {
                struct emu_mapping *m = emu_mapping_of(address);
                if (!m || m->address != address || m->plain != plain ||
                    (bytes != 0 && m->bytes != bytes))
                        return NULL;
                if (m->users == 0)
                        return m;
                emu_wait();
        }
}

enum cuda_result cuMemMap(cuda_address address, size_t bytes, size_t offset, cuda_handle handle,
                          unsigned long long flags) {
        EMU_ENTER(MemMap, EMU_CONTEXT);
        struct emu_allocation *a = allocation_of(handle);
        struct emu_reservation *r = reservation_of(address, bytes);
        if (!a || !r || r->plain || bytes == 0 || bytes % emu.granularity != 0 ||
            address % emu.granularity != 0 || offset != 0 || bytes > a->bytes || flags != 0 ||
            holds_mapping(address, bytes))
                return emu_leave(CUDA_INVALID_VALUE);
        return emu_leave(map(address, bytes, a, false));
}

enum cuda_result cuMemUnmap(cuda_address address, size_t bytes) {
        EMU_ENTER(MemUnmap, EMU_CONTEXT);
        struct emu_mapping *m = bytes ? unused_mapping(address, bytes, false) : NULL;
        if (!m)
                return emu_leave(CUDA_INVALID_VALUE);
        unmap(m);
        return emu_leave(CUDA_OK);
}

enum cuda_result cuMemSetAccess(cuda_address address, size_t bytes,
                                const struct cuda_access *access, size_t count) {
        EMU_ENTER(MemSetAccess, EMU_CONTEXT);
        struct emu_mapping *m = emu_mapping_of(address);
        if (!m || m->plain || m->address != address || m->bytes != bytes || !access || count == 0)
                return emu_leave(CUDA_INVALID_VALUE);
        for (size_t i = 0; i < count; i++) {
                if (access[i].location.type != CUDA_LOCATION_DEVICE ||
                    access[i].location.id != m->allocation->properties.location.id)
                        return emu_leave(CUDA_INVALID_DEVICE);
                if (access[i].flags != CUDA_ACCESS_NONE && access[i].flags != CUDA_ACCESS_READ &&
                    access[i].flags != CUDA_ACCESS_READ_WRITE)
                        return emu_leave(CUDA_INVALID_VALUE);
                m->access[access[i].location.id] = access[i].flags;
        }
        return emu_leave(CUDA_OK);
}

static int protection(enum cuda_access_flags access) {
        return access == CUDA_ACCESS_NONE   ? PROT_NONE
               : access == CUDA_ACCESS_READ ? PROT_READ
                                            : PROT_READ | PROT_WRITE;
}

void emu_open_for_kernel(int device) {
        while (emu.kernel_runs)
                emu_wait();
        emu.kernel_runs = true;
        for (struct emu_mapping *m = emu.mappings; m; m = m->next) {
                m->open = true;
                m->users++;
                (void) mprotect(pointer(m->address), m->bytes, protection(m->access[device]));
        }
}

void emu_close_after_kernel(void) {
        emu.kernel_runs = false;
        for (struct emu_mapping *m = emu.mappings; m; m = m->next) {
                if (!m->open)
                        continue; /* it was made while the kernel ran */
                m->open = false;
                m->users--;
                (void) mprotect(pointer(m->address), m->bytes, PROT_NONE);
        }
}

/* ---- cuMemAlloc ---- */

static enum cuda_result plain_new(size_t bytes, cuda_address *ret) {
        int device = emu_current()->device;
        struct cuda_allocation properties = {.type = CUDA_ALLOCATION_PINNED,
                                             .location = {CUDA_LOCATION_DEVICE, device}};
        struct emu_allocation *a = NULL;
        size_t rounded = (bytes + HOST_PAGE - 1) / HOST_PAGE * HOST_PAGE;
        cuda_address address;
        enum cuda_result result = create(&properties, rounded, &a);
        if (result != CUDA_OK)
                return result;
        a->handle = 0; /* it lives as long as its mapping */
        result = reserve(rounded, HOST_PAGE, true, &address);
        if (result == CUDA_OK) {
                result = map(address, rounded, a, true);
                if (result != CUDA_OK)
                        unreserve(reservation_at(address));
        }
        if (result != CUDA_OK) {
                allocation_settle(a);
                return result;
        }
        emu_mapping_of(address)->access[device] = CUDA_ACCESS_READ_WRITE;
        /* Nobody promises zeros; these are NaN as floats of any size. */
        memset(emu_mapping_of(address)->shadow, 0xff, rounded);
        *ret = address;
        return CUDA_OK;
}

enum cuda_result cuMemAlloc_v2(cuda_address *address, size_t bytes) {
        EMU_ENTER(MemAlloc, EMU_CONTEXT);
        if (!address || bytes == 0 || bytes > SIZE_MAX - HOST_PAGE)
                return emu_leave(CUDA_INVALID_VALUE);
        return emu_leave(plain_new(bytes, address));
}

enum cuda_result cuMemFree_v2(cuda_address address) {
        EMU_ENTER(MemFree, EMU_CONTEXT);
        emu_drain_context(emu_current());
        struct emu_mapping *m = unused_mapping(address, 0, true);
        if (!m)
                return emu_leave(CUDA_INVALID_VALUE);
        unmap(m);
        unreserve(reservation_at(address));
        return emu_leave(CUDA_OK);
}

enum cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
        EMU_ENTER(MemGetInfo, EMU_CONTEXT);
        if (!free_bytes || !total)
                return emu_leave(CUDA_INVALID_VALUE);
        *free_bytes = emu.memory_bytes - emu.memory_used[emu_current()->device];
        *total = emu.memory_bytes;
        return emu_leave(CUDA_OK);
}

/* ---- host memory ---- */

static bool is_mapped(const void *address, size_t bytes) {
        uintptr_t start = (uintptr_t) address / HOST_PAGE * HOST_PAGE;
        size_t all = bytes + ((uintptr_t) address - start);
        unsigned char *resident = malloc(all / HOST_PAGE + 1);
        bool mapped = resident && mincore(pointer(start), all, resident) == 0;
        free(resident);
        return mapped;
}

enum cuda_result cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
        EMU_ENTER(MemHostRegister, EMU_CONTEXT);
        cuda_address a = (uintptr_t) address;
        if (bytes == 0 || (flags & ~HOST_FLAGS) != 0 || emu_is_reserved(a, bytes) ||
            !is_mapped(address, bytes))
                return emu_leave(CUDA_INVALID_VALUE);
        for (struct emu_registration *r = emu.registrations; r; r = r->next)
                if (overlaps(a, bytes, r->address, r->bytes))
                        return emu_leave(CUDA_HOST_MEMORY_ALREADY_REGISTERED);
        struct emu_registration *r = emu_new(sizeof *r);
        r->address = (uintptr_t) address;
        r->bytes = bytes;
        r->next = emu.registrations;
        emu.registrations = r;
        return emu_leave(CUDA_OK);
}

enum cuda_result cuMemHostUnregister(void *address) {
        EMU_ENTER(MemHostUnregister, EMU_CONTEXT);
        struct emu_registration **link = &emu.registrations, *r;
        while (*link && (*link)->address != (uintptr_t) address)
                link = &(*link)->next;
        r = *link;
        if (!r)
                return emu_leave(CUDA_HOST_MEMORY_NOT_REGISTERED);
        *link = r->next;
        free(r);
        return emu_leave(CUDA_OK);
}

/* Ranges are those of the addresses, which several allocations may share; mapped or not can be
 * asked of all of them, the rest only of what is mapped or registered. */
static enum cuda_result attribute_of(void *value, enum cuda_pointer_attribute attribute,
                                     cuda_address address) {
        struct emu_mapping *m = emu_mapping_of(address);
        struct emu_reservation *r = reservation_of(address, 1);
        if (!value)
                return CUDA_INVALID_VALUE;
        if (attribute == CUDA_POINTER_MAPPED && r) {
                *(unsigned *) value = m != NULL;
                return CUDA_OK;
        }
        if (!m && !emu_is_registered(address, 1))
                return CUDA_INVALID_VALUE;
        switch (attribute) {
        case CUDA_POINTER_MEMORY_TYPE:
                *(unsigned *) value = m ? CUDA_MEMORY_DEVICE : CUDA_MEMORY_HOST;
                return CUDA_OK;
        case CUDA_POINTER_IS_MANAGED:
                *(unsigned *) value = m && m->managed;
                return CUDA_OK;
        case CUDA_POINTER_DEVICE_ORDINAL:
                *(int *) value = m ? m->allocation->properties.location.id : emu_current()->device;
                return CUDA_OK;
        case CUDA_POINTER_RANGE_START:
                if (r)
                        *(cuda_address *) value = r->address;
                return r ? CUDA_OK : CUDA_INVALID_VALUE;
        case CUDA_POINTER_RANGE_BYTES:
                if (r)
                        *(size_t *) value = r->bytes;
                return r ? CUDA_OK : CUDA_INVALID_VALUE;
        case CUDA_POINTER_MAPPED:
                break;
        }
        return CUDA_INVALID_VALUE;
}

enum cuda_result cuPointerGetAttribute(void *value, enum cuda_pointer_attribute attribute,
                                       cuda_address address) {
        EMU_ENTER(PointerGetAttribute, EMU_CONTEXT);
        return emu_leave(attribute_of(value, attribute, address));
}

void emu_memory_reset(void) {
        while (emu.mappings)
                unmap(emu.mappings);
        while (emu.reservations)
                unreserve(emu.reservations);
        while (emu.allocations) {
                emu.allocations->handle = 0;
                allocation_settle(emu.allocations);
        }
        while (emu.registrations) {
                struct emu_registration *r = emu.registrations;
                emu.registrations = r->next;
                free(r);
        }
}
