/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_abi.h - what is used of the CUDA driver's binary interface, declared by us, so that no
 * toolkit is needed to build. Where cuda.h exists, tests/unit/test_cuda_abi.c asserts each number,
 * size, offset and prototype. Names are exact: the ones that the library exports, with version.
 */
#ifndef CAIRN_DEVICE_CUDA_ABI_H
#define CAIRN_DEVICE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* The newest of the functions below came with this release; 12040 is 12.4. */
#define CUDA_ABI_VERSION_MIN 11040

/* clang-format off */
/* Ours without CUDA_ERROR_, theirs' number. Those that tests or remedies name. */
#define CUDA_RESULTS(X)                                                                           \
        X(INVALID_VALUE, 1)                                                                       \
        X(OUT_OF_MEMORY, 2)                                                                       \
        X(NOT_INITIALIZED, 3)                                                                     \
        X(DEINITIALIZED, 4)                                                                       \
        X(STUB_LIBRARY, 34)                                                                       \
        X(DEVICE_UNAVAILABLE, 46)                                                                 \
        X(NO_DEVICE, 100)                                                                         \
        X(INVALID_DEVICE, 101)                                                                    \
        X(INVALID_IMAGE, 200)                                                                     \
        X(INVALID_CONTEXT, 201)                                                                   \
        X(NO_BINARY_FOR_GPU, 209)                                                                 \
        X(ECC_UNCORRECTABLE, 214)                                                                 \
        X(NVLINK_UNCORRECTABLE, 220)                                                              \
        X(OPERATING_SYSTEM, 304)                                                                  \
        X(INVALID_HANDLE, 400)                                                                    \
        X(NOT_FOUND, 500)                                                                         \
        X(NOT_READY, 600)                                                                         \
        X(ILLEGAL_ADDRESS, 700)                                                                   \
        X(LAUNCH_OUT_OF_RESOURCES, 701)                                                           \
        X(LAUNCH_TIMEOUT, 702)                                                                    \
        X(CONTEXT_IS_DESTROYED, 709)                                                              \
        X(ASSERT, 710)                                                                            \
        X(HOST_MEMORY_ALREADY_REGISTERED, 712)                                                    \
        X(HOST_MEMORY_NOT_REGISTERED, 713)                                                        \
        X(HARDWARE_STACK_ERROR, 714)                                                              \
        X(ILLEGAL_INSTRUCTION, 715)                                                               \
        X(MISALIGNED_ADDRESS, 716)                                                                \
        X(INVALID_ADDRESS_SPACE, 717)                                                             \
        X(INVALID_PC, 718)                                                                        \
        X(LAUNCH_FAILED, 719)                                                                     \
        X(NOT_PERMITTED, 800)                                                                     \
        X(NOT_SUPPORTED, 801)                                                                     \
        X(SYSTEM_NOT_READY, 802)                                                                  \
        X(SYSTEM_DRIVER_MISMATCH, 803)                                                            \
        X(MPS_CONNECTION_FAILED, 805)                                                             \
        X(MPS_RPC_FAILURE, 806)                                                                   \
        X(MPS_SERVER_NOT_READY, 807)                                                              \
        X(MPS_MAX_CLIENTS_REACHED, 808)                                                           \
        X(MPS_MAX_CONNECTIONS_REACHED, 809)                                                       \
        X(MPS_CLIENT_TERMINATED, 810)                                                             \
        X(EXTERNAL_DEVICE, 911)                                                                   \
        X(UNKNOWN, 999)
/* Newer than CUDA_ABI_VERSION_MIN. */
#define CUDA_RESULTS_NEWER(X)                                                                     \
        X(CONTAINED, 226)                                                                         \
        X(TENSOR_MEMORY_LEAK, 721)
/* clang-format on */

enum cuda_result {
        CUDA_OK = 0,
#define CUDA_RESULT(name, number) CUDA_##name = (number),
        CUDA_RESULTS(CUDA_RESULT) CUDA_RESULTS_NEWER(CUDA_RESULT)
#undef CUDA_RESULT
};

enum cuda_attribute {
        CUDA_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
        CUDA_ATTRIBUTE_INTEGRATED = 18,
        CUDA_ATTRIBUTE_COMPUTE_MODE = 20,
        CUDA_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
        CUDA_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
        CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
        CUDA_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
        CUDA_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
        CUDA_ATTRIBUTE_VMM_SUPPORTED = 102,
        CUDA_ATTRIBUTE_POSIX_FD_SUPPORTED = 103,
};

enum cuda_pointer_attribute {
        CUDA_POINTER_MEMORY_TYPE = 2,
        CUDA_POINTER_IS_MANAGED = 8,
        CUDA_POINTER_DEVICE_ORDINAL = 9,
        CUDA_POINTER_RANGE_START = 11,
        CUDA_POINTER_RANGE_BYTES = 12,
        CUDA_POINTER_MAPPED = 13,
};
enum cuda_memory_type { CUDA_MEMORY_HOST = 1, CUDA_MEMORY_DEVICE = 2 };

enum cuda_function_attribute { CUDA_FUNCTION_MAX_DYNAMIC_SHARED_BYTES = 8 };

enum cuda_handle_type { CUDA_HANDLE_NONE = 0, CUDA_HANDLE_POSIX_FD = 1 };
enum cuda_location_type { CUDA_LOCATION_DEVICE = 1 };
enum cuda_allocation_type { CUDA_ALLOCATION_PINNED = 1 };
enum cuda_access_flags { CUDA_ACCESS_NONE = 0, CUDA_ACCESS_READ = 1, CUDA_ACCESS_READ_WRITE = 3 };
enum cuda_granularity { CUDA_GRANULARITY_MINIMUM = 0, CUDA_GRANULARITY_RECOMMENDED = 1 };

enum cuda_stream_flags { CUDA_STREAM_NON_BLOCKING = 1 };
enum cuda_event_flags { CUDA_EVENT_DISABLE_TIMING = 2 };

struct cuda_context;  /* CUctx_st */
struct cuda_module;   /* CUmod_st */
struct cuda_function; /* CUfunc_st */
struct cuda_stream;   /* CUstream_st */
struct cuda_event;    /* CUevent_st */

#define CUDA_STREAM_LEGACY ((struct cuda_stream *) (uintptr_t) 1) /* the runtime's default stream */

/* CUdeviceptr and CUmemGenericAllocationHandle; CUdevice is an int. */
typedef unsigned long long cuda_address;
typedef unsigned long long cuda_handle;

struct cuda_uuid {
        char bytes[16];
};

struct cuda_location {
        enum cuda_location_type type;
        int id;
};

struct cuda_access {
        struct cuda_location location;
        enum cuda_access_flags flags;
};

struct cuda_allocation {
        enum cuda_allocation_type type;
        enum cuda_handle_type handle_types;
        struct cuda_location location;
        void *windows_only;
        unsigned char compression;
        unsigned char rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
};

/* Name here and without its version, symbol, the CUDA release that brought it, parameters. All
 * return enum cuda_result. */
/* clang-format off */
#define CUDA_FUNCTIONS(X)                                                                         \
        X(GetErrorName, cuGetErrorName, 6000, (enum cuda_result result, const char **name))       \
        X(GetErrorString, cuGetErrorString, 6000, (enum cuda_result result, const char **text))   \
        X(Init, cuInit, 2000, (unsigned flags))                                                   \
        X(DriverGetVersion, cuDriverGetVersion, 2020, (int *version))                             \
        /* devices */                                                                             \
        X(DeviceGetCount, cuDeviceGetCount, 2000, (int *count))                                   \
        X(DeviceGet, cuDeviceGet, 2000, (int *device, int ordinal))                               \
        X(DeviceGetName, cuDeviceGetName, 2000, (char *name, int bytes, int device))              \
        X(DeviceGetUuid, cuDeviceGetUuid_v2, 11040, (struct cuda_uuid *uuid, int device))         \
        X(DeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, (char *name, int bytes, int device))      \
        X(DeviceTotalMem, cuDeviceTotalMem_v2, 3020, (size_t *bytes, int device))                 \
        X(DeviceGetAttribute, cuDeviceGetAttribute, 2000,                                         \
          (int *value, enum cuda_attribute attribute, int device))                                \
        /* contexts */                                                                            \
        X(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000,                                 \
          (struct cuda_context **context, int device))                                            \
        X(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, (int device))             \
        X(DevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000,                             \
          (int device, unsigned *flags, int *active))                                             \
        X(CtxPushCurrent, cuCtxPushCurrent_v2, 4000, (struct cuda_context *context))              \
        X(CtxPopCurrent, cuCtxPopCurrent_v2, 4000, (struct cuda_context **context))               \
        X(CtxSetCurrent, cuCtxSetCurrent, 4000, (struct cuda_context *context))                   \
        X(CtxGetCurrent, cuCtxGetCurrent, 4000, (struct cuda_context **context))                  \
        X(CtxGetDevice, cuCtxGetDevice, 2000, (int *device))                                      \
        X(CtxSynchronize, cuCtxSynchronize, 2000, (void))                                         \
        /* memory */                                                                              \
        X(MemGetInfo, cuMemGetInfo_v2, 3020, (size_t *free, size_t *total))                       \
        X(MemAlloc, cuMemAlloc_v2, 3020, (cuda_address *address, size_t bytes))                   \
        X(MemFree, cuMemFree_v2, 3020, (cuda_address address))                                    \
        X(PointerGetAttribute, cuPointerGetAttribute, 4000,                                       \
          (void *value, enum cuda_pointer_attribute attribute, cuda_address address))             \
        X(MemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020,                      \
          (size_t *bytes, const struct cuda_allocation *allocation,                               \
           enum cuda_granularity granularity))                                                    \
        X(MemCreate, cuMemCreate, 10020,                                                          \
          (cuda_handle *handle, size_t bytes, const struct cuda_allocation *allocation,           \
           unsigned long long flags))                                                             \
        X(MemRelease, cuMemRelease, 10020, (cuda_handle handle))                                  \
        X(MemAddressReserve, cuMemAddressReserve, 10020,                                          \
          (cuda_address *address, size_t bytes, size_t alignment, cuda_address hint,              \
           unsigned long long flags))                                                             \
        X(MemAddressFree, cuMemAddressFree, 10020, (cuda_address address, size_t bytes))          \
        X(MemMap, cuMemMap, 10020,                                                                \
          (cuda_address address, size_t bytes, size_t offset, cuda_handle handle,                 \
           unsigned long long flags))                                                             \
        X(MemUnmap, cuMemUnmap, 10020, (cuda_address address, size_t bytes))                      \
        X(MemSetAccess, cuMemSetAccess, 10020,                                                    \
          (cuda_address address, size_t bytes, const struct cuda_access *access, size_t count))   \
        X(MemExportToShareableHandle, cuMemExportToShareableHandle, 10020,                        \
          (void *shareable, cuda_handle handle, enum cuda_handle_type type,                       \
           unsigned long long flags))                                                             \
        X(MemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020,                    \
          (cuda_handle *handle, void *shareable, enum cuda_handle_type type))                     \
        X(MemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020,    \
          (struct cuda_allocation *allocation, cuda_handle handle))                               \
        X(MemHostRegister, cuMemHostRegister_v2, 6050,                                            \
          (void *address, size_t bytes, unsigned flags))                                          \
        X(MemHostUnregister, cuMemHostUnregister, 4000, (void *address))                          \
        /* streams, events, copies */                                                             \
        X(StreamCreateWithPriority, cuStreamCreateWithPriority, 5050,                             \
          (struct cuda_stream **stream, unsigned flags, int priority))                            \
        X(StreamDestroy, cuStreamDestroy_v2, 4000, (struct cuda_stream *stream))                  \
        X(StreamQuery, cuStreamQuery, 2000, (struct cuda_stream *stream))                         \
        X(StreamSynchronize, cuStreamSynchronize, 2000, (struct cuda_stream *stream))             \
        X(StreamWaitEvent, cuStreamWaitEvent, 3020,                                               \
          (struct cuda_stream *stream, struct cuda_event *event, unsigned flags))                 \
        X(EventCreate, cuEventCreate, 2000, (struct cuda_event **event, unsigned flags))          \
        X(EventDestroy, cuEventDestroy_v2, 4000, (struct cuda_event *event))                      \
        X(EventRecord, cuEventRecord, 2000,                                                       \
          (struct cuda_event *event, struct cuda_stream *stream))                                 \
        X(EventQuery, cuEventQuery, 2000, (struct cuda_event *event))                             \
        X(EventSynchronize, cuEventSynchronize, 2000, (struct cuda_event *event))                 \
        X(MemcpyAsync, cuMemcpyAsync, 4000,                                                       \
          (cuda_address target, cuda_address source, size_t bytes, struct cuda_stream *stream))   \
        X(MemsetD8Async, cuMemsetD8Async, 3020,                                                   \
          (cuda_address target, unsigned char value, size_t bytes, struct cuda_stream *stream))   \
        X(MemsetD32Async, cuMemsetD32Async, 3020,                                                 \
          (cuda_address target, unsigned value, size_t count, struct cuda_stream *stream))        \
        /* kernels */                                                                             \
        X(ModuleLoadData, cuModuleLoadData, 2000,                                                 \
          (struct cuda_module **module, const void *image))                                       \
        X(ModuleUnload, cuModuleUnload, 2000, (struct cuda_module *module))                       \
        X(ModuleGetFunction, cuModuleGetFunction, 2000,                                           \
          (struct cuda_function **function, struct cuda_module *module, const char *name))        \
        X(FuncSetAttribute, cuFuncSetAttribute, 9000,                                             \
          (struct cuda_function *function, enum cuda_function_attribute attribute, int value))    \
        X(LaunchKernel, cuLaunchKernel, 4000,                                                     \
          (struct cuda_function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,           \
           struct cuda_stream *stream, void **parameters, void **extra))
/* clang-format on */

#endif
