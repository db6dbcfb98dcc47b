/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_runtime_api.h - the calls of CUDA's runtime that Cairn uses, over the emulated driver
 * (tests/cuda/emu.h). An emulated build finds this header where a real one finds NVIDIA's, by
 * -Itests/cuda/sim; sources include <cuda_runtime_api.h> and know no difference. Linked into
 * cairn-cuda-emu.so and into tests of kernels.
 *
 * Each device has its primary context, as libcairn's driver calls have; cudaSetDevice retains it,
 * cudaDeviceReset or the end of the process gives it back. Handles of streams and events are the
 * driver's, so that they may be given to libcairn.
 *
 * Stricter than NVIDIA's: streams need cudaStreamNonBlocking and there is no default stream (NULL
 * is cudaErrorInvalidResourceHandle); the kind of a copy has to be what its addresses are, or
 * cudaMemcpyDefault; a thread has no device before its first cudaSetDevice; device memory that was
 * not yet written holds garbage. A mistake of a kernel (tests/cuda/sim/sim.h) is an error of
 * its context that stays. Threads: any.
 */
#ifndef CAIRN_TESTS_CUDA_RUNTIME_API_H
#define CAIRN_TESTS_CUDA_RUNTIME_API_H

#include <stddef.h>

#define CUDART_VERSION 12040

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are the driver's; others may be returned, too. */
enum cudaError {
        cudaSuccess = 0,
        cudaErrorInvalidValue = 1,
        cudaErrorMemoryAllocation = 2,
        cudaErrorInitializationError = 3,
        cudaErrorInvalidConfiguration = 9,
        cudaErrorInvalidMemcpyDirection = 21,
        cudaErrorInsufficientDriver = 35,
        cudaErrorNoDevice = 100,
        cudaErrorInvalidDevice = 101,
        cudaErrorDeviceUninitialized = 201,
        cudaErrorECCUncorrectable = 214,
        cudaErrorInvalidResourceHandle = 400,
        cudaErrorNotReady = 600,
        cudaErrorIllegalAddress = 700,
        cudaErrorContextIsDestroyed = 709,
        cudaErrorHostMemoryAlreadyRegistered = 712,
        cudaErrorHostMemoryNotRegistered = 713,
        cudaErrorLaunchFailure = 719,
        cudaErrorUnknown = 999,
};
typedef enum cudaError cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;

enum cudaMemcpyKind {
        cudaMemcpyHostToHost = 0,
        cudaMemcpyHostToDevice = 1,
        cudaMemcpyDeviceToHost = 2,
        cudaMemcpyDeviceToDevice = 3,
        cudaMemcpyDefault = 4,
};

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventDisableTiming 0x02

typedef struct CUuuid_st {
        char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
        char name[256];
        cudaUUID_t uuid;
        size_t totalGlobalMem, sharedMemPerBlock;
        int warpSize, maxThreadsPerBlock, major, minor, multiProcessorCount, integrated;
        int pciBusID, pciDeviceID, pciDomainID, asyncEngineCount, unifiedAddressing;
};

#pragma GCC visibility push(default)

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetPCIBusId(char *name, int bytes, int device);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaDeviceReset(void);

/* The last error of this thread. Get forgets it, unless it stays in the context. */
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

cudaError_t cudaMalloc(void **address, size_t bytes); /* 0 bytes: NULL and no error */
cudaError_t cudaFree(void *address);                  /* waits for the whole device */
cudaError_t cudaMallocHost(void **address, size_t bytes);
cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *address);
cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *address);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
/* Of events without cudaEventDisableTiming that are complete. */
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
