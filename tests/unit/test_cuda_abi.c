/* SPDX-License-Identifier: Apache-2.0
 *
 * device/cuda_abi.h against NVIDIA's header, where that is installed. Everything is asserted when
 * this file is compiled; that it runs says that it was.
 */
#include "device/cuda_abi.h"
#include "tests/test.h"

#if defined(__has_include)
#if __has_include(<cuda.h>) && __has_include(<cudaTypedefs.h>)
#define HAS_HEADER
#endif
#endif

#ifdef HAS_HEADER
#include <cuda.h>
#include <cudaTypedefs.h>

#define SAME(ours, theirs) _Static_assert((int) (ours) == (int) (theirs), #ours " is " #theirs)

#define RESULT(name, number) SAME(CUDA_##name, CUDA_ERROR_##name);
CUDA_RESULTS(RESULT)
#if CUDA_VERSION >= 13000
CUDA_RESULTS_NEWER(RESULT)
#endif
SAME(CUDA_OK, CUDA_SUCCESS);

#define SAME_ATTRIBUTE(ours, theirs) SAME(CUDA_ATTRIBUTE_##ours, CU_DEVICE_ATTRIBUTE_##theirs)
SAME_ATTRIBUTE(MULTIPROCESSOR_COUNT, MULTIPROCESSOR_COUNT);
SAME_ATTRIBUTE(INTEGRATED, INTEGRATED);
SAME_ATTRIBUTE(COMPUTE_MODE, COMPUTE_MODE);
SAME_ATTRIBUTE(ASYNC_ENGINE_COUNT, ASYNC_ENGINE_COUNT);
SAME_ATTRIBUTE(UNIFIED_ADDRESSING, UNIFIED_ADDRESSING);
SAME_ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MAJOR);
SAME_ATTRIBUTE(COMPUTE_CAPABILITY_MINOR, COMPUTE_CAPABILITY_MINOR);
SAME_ATTRIBUTE(HOST_REGISTER_SUPPORTED, HOST_REGISTER_SUPPORTED);
SAME_ATTRIBUTE(VMM_SUPPORTED, VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_ATTRIBUTE(POSIX_FD_SUPPORTED, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);

SAME(CUDA_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CUDA_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(CUDA_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CUDA_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(CUDA_POINTER_RANGE_BYTES, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(CUDA_POINTER_MAPPED, CU_POINTER_ATTRIBUTE_MAPPED);
SAME(CUDA_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(CUDA_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(CUDA_HANDLE_NONE, CU_MEM_HANDLE_TYPE_NONE);
SAME(CUDA_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CUDA_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CUDA_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CUDA_ACCESS_NONE, CU_MEM_ACCESS_FLAGS_PROT_NONE);
SAME(CUDA_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(CUDA_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(CUDA_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CUDA_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(CUDA_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CUDA_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);

#define SAME_SIZE(ours, theirs)             \
        SAME(sizeof(ours), sizeof(theirs)); \
        SAME(_Alignof(ours), _Alignof(theirs))
SAME_SIZE(enum cuda_result, CUresult);
SAME_SIZE(enum cuda_attribute, CUdevice_attribute);
SAME_SIZE(enum cuda_pointer_attribute, CUpointer_attribute);
SAME_SIZE(enum cuda_function_attribute, CUfunction_attribute);
SAME_SIZE(enum cuda_handle_type, CUmemAllocationHandleType);
SAME_SIZE(enum cuda_location_type, CUmemLocationType);
SAME_SIZE(enum cuda_allocation_type, CUmemAllocationType);
SAME_SIZE(enum cuda_access_flags, CUmemAccess_flags);
SAME_SIZE(enum cuda_granularity, CUmemAllocationGranularity_flags);
SAME_SIZE(enum cuda_memory_type, CUmemorytype);
SAME_SIZE(struct cuda_uuid, CUuuid);
SAME_SIZE(struct cuda_location, CUmemLocation);
SAME_SIZE(struct cuda_access, CUmemAccessDesc);
SAME_SIZE(struct cuda_allocation, CUmemAllocationProp);
_Static_assert(__builtin_types_compatible_p(cuda_address, CUdeviceptr), "an address");
_Static_assert(__builtin_types_compatible_p(cuda_handle, CUmemGenericAllocationHandle), "a handle");
_Static_assert(__builtin_types_compatible_p(int, CUdevice), "a device");

#define SAME_MEMBER(type, ours, their_type, theirs)               \
        SAME(offsetof(type, ours), offsetof(their_type, theirs)); \
        SAME(sizeof(((type *) 0)->ours), sizeof(((their_type *) 0)->theirs))
SAME_MEMBER(struct cuda_location, type, CUmemLocation, type);
SAME_MEMBER(struct cuda_location, id, CUmemLocation, id);
SAME_MEMBER(struct cuda_access, location, CUmemAccessDesc, location);
SAME_MEMBER(struct cuda_access, flags, CUmemAccessDesc, flags);
SAME_MEMBER(struct cuda_allocation, type, CUmemAllocationProp, type);
SAME_MEMBER(struct cuda_allocation, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_MEMBER(struct cuda_allocation, location, CUmemAllocationProp, location);
SAME_MEMBER(struct cuda_allocation, windows_only, CUmemAllocationProp, win32HandleMetaData);
SAME_MEMBER(struct cuda_allocation, compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_MEMBER(struct cuda_allocation, rdma_capable, CUmemAllocationProp,
            allocFlags.gpuDirectRDMACapable);
SAME_MEMBER(struct cuda_allocation, usage, CUmemAllocationProp, allocFlags.usage);
SAME_MEMBER(struct cuda_allocation, reserved, CUmemAllocationProp, allocFlags.reserved);
SAME_MEMBER(struct cuda_uuid, bytes, CUuuid, bytes);

/* From here on our prototypes speak of their types: each must be theirs, both the function that the
 * symbol names and the pointer type of the release that brought it. */
#define cuda_result cudaError_enum
#define cuda_attribute CUdevice_attribute_enum
#define cuda_pointer_attribute CUpointer_attribute_enum
#define cuda_function_attribute CUfunction_attribute_enum
#define cuda_handle_type CUmemAllocationHandleType_enum
#define cuda_granularity CUmemAllocationGranularity_flags_enum
#define cuda_context CUctx_st
#define cuda_module CUmod_st
#define cuda_function CUfunc_st
#define cuda_stream CUstream_st
#define cuda_event CUevent_st
#define cuda_uuid CUuuid_st
#define cuda_access CUmemAccessDesc_st
#define cuda_allocation CUmemAllocationProp_st

#define PROTOTYPE(name, symbol, since, parameters)                                             \
        _Static_assert(                                                                        \
                __builtin_types_compatible_p(__typeof__(symbol), enum cuda_result parameters), \
                #symbol " is declared otherwise");                                             \
        _Static_assert(__builtin_types_compatible_p(PFN_cu##name##_v##since,                   \
                                                    enum cuda_result(*) parameters),           \
                       #symbol " came otherwise with " #since);                                \
        _Static_assert((since) <= CUDA_ABI_VERSION_MIN, #symbol " is newer than the oldest "   \
                                                                "driver");
CUDA_FUNCTIONS(PROTOTYPE)

int main(void) {
        unsigned count = 0;
#define COUNT(name, symbol, since, parameters) count++;
        CUDA_FUNCTIONS(COUNT)
        /* A pointer, which no static assertion takes. */
        if ((uintptr_t) CUDA_STREAM_LEGACY != (uintptr_t) CU_STREAM_LEGACY)
                return 1;
        printf("ABI asserted: %u functions, cuda.h %d\n", count, CUDA_VERSION);
        return 0;
}
#else
int main(void) {
        printf("cuda.h is not installed: ABI not asserted\n");
        return 77;
}
#endif
