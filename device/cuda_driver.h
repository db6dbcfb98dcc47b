/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_driver.h - libcuda.so.1, or what $CAIRN_LIBCUDA names, as a table of functions, and its
 * errors as ours. Loaded when it is first asked for and never unloaded; a failure is not kept.
 *
 *     const struct cuda_driver *cuda;
 *     TRY(cuda_driver_load(&cuda, reterr));               // cuInit is done as well
 *     TRY(cuda_error(cuda, cuda->DeviceGet(&device, 0), "open device", "GPU 0", reterr));
 *
 * Threads: any. Only device/ calls these functions.
 */
#ifndef CAIRN_DEVICE_CUDA_DRIVER_H
#define CAIRN_DEVICE_CUDA_DRIVER_H

#include "base/status.h"
#include "device/cuda_abi.h"
#include <stdbool.h>

struct cuda_driver {
        int version; /* 12040: made for CUDA 12.4 */
#define CUDA_MEMBER(name, symbol, since, parameters) enum cuda_result(*name) parameters;
        CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* UNSUPPORTED: there is no such library, it is too old or lacks a function. DEVICE: it does not
 * start; the remedy is in the message. The table is the process' own, never freed. */
int cuda_driver_load(const struct cuda_driver **ret, struct cairn_error *reterr);

/* Where that library is, once loaded and let go again. False: it cannot be loaded, and `ret` is
 * what was looked for. */
bool cuda_driver_find(char *ret, size_t bytes);

/* 0 for CUDA_OK. NOMEM: no device memory is left. BUSY: CUDA_NOT_READY. Everything else is DEVICE,
 * with the driver's name of the error, what it means, what to do, and the code in system_code. */
int cuda_error(const struct cuda_driver *cuda, enum cuda_result result, const char *operation,
               const char *object, struct cairn_error *reterr);

/* After such a result every call of the process on this GPU gives it again: the process has to end.
 * Others on the same GPU go on. */
bool cuda_result_is_sticky(enum cuda_result result);

#endif
