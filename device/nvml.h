/* SPDX-License-Identifier: Apache-2.0
 *
 * nvml.h - what only NVIDIA's management library tells: libnvidia-ml.so.1, or what $CAIRN_LIBNVML
 * names, loaded for one question and let go. Threads: any.
 */
#ifndef CAIRN_DEVICE_NVML_H
#define CAIRN_DEVICE_NVML_H

enum nvml_answer { NVML_UNKNOWN = -1, NVML_OFF = 0, NVML_ON = 1 };

/* Whether the GPU at this PCI address stays initialized while nobody uses it. UNKNOWN: there is no
 * such library, or it does not say. */
enum nvml_answer nvml_persistence(const char *bus_id);

#endif
