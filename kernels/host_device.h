/* SPDX-License-Identifier: Apache-2.0
 *
 * host_device.h - functions that C and kernels share: nvcc compiles what is marked for both sides.
 * Headers with such functions are included by C and by .cu files; what they declare has C linkage.
 *
 *     HOST_DEVICE static inline float half_of(float x) { ... }
 */
#ifndef CAIRN_KERNELS_HOST_DEVICE_H
#define CAIRN_KERNELS_HOST_DEVICE_H

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

#endif
