/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.h - every limit of Cairn in one place, related to each other by static_assert. A limit
 * that a user can meet is checked at registration or at parse time and named in the error (B64).
 */
#ifndef CAIRN_LIMITS_H
#define CAIRN_LIMITS_H

#include <assert.h>
#include <stdint.h>

#define KiB UINT64_C(1024)
#define MiB (1024 * KiB)
#define GiB (1024 * MiB)
#define NSEC_PER_SEC UINT64_C(1000000000)
#define NSEC_PER_MSEC UINT64_C(1000000)

/* tensors and registration */
#define TENSOR_COUNT_MAX UINT64_C(4194304) /* per rank */
#define TENSOR_NAME_BYTES_MAX UINT64_C(65536)
#define SLAB_COUNT_MAX 64
#define SLAB_BYTES_MAX (UINT64_C(1) << 44)
#define TENSOR_ALIGNMENT 256
#define HOST_STATE_VALUES_MAX 65536
#define HOST_STATE_BYTES_MAX (32 * MiB) /* with its names it fits one section */
#define INVENTORY_BYTES_MAX (UINT64_C(1) << 32)

/* the format */
#define FILE_SECTION_BYTES_MAX (64 * MiB)
#define DATA_BLOCK_BYTES 4096
#define DATA_CHUNK_BYTES (1 * MiB) /* one CRC32C each */
#define DATA_BYTES_MAX (UINT64_C(1) << 46)
#define RUN_NAME_BYTES_MAX 64
#define RANK_COUNT_MAX 65536
#define NODE_COUNT_MAX 4096 /* of a group */
#define STEP_MAX (INT64_MAX / 2)
#define DEVICE_UUID_BYTES 16 /* a GPU's own name: ordinals are each process' own */

/* the control socket */
#define WIRE_MESSAGE_BYTES_MAX (128 * KiB)
#define WIRE_FDS_MAX 16
#define SESSION_COUNT_MAX 64 /* per agent; a run's world is RANK_COUNT_MAX at most */
#define CONNECTION_COUNT_MAX 256

/* the exchange between ranks (cairn.h repeats the first two) */
#define EXCHANGE_KEY_BYTES_MAX 255
#define EXCHANGE_VALUE_BYTES_MAX (64 * KiB)
#define EXCHANGE_KEYS_PER_RANK_MAX 256
#define EXCHANGE_BYTES_PER_RANK_MAX (4 * MiB)

/* time */
#define GATE_DEADLINE_NS_MIN (2 * NSEC_PER_SEC)
#define RECONNECT_NS (1 * NSEC_PER_SEC)

static_assert(DATA_CHUNK_BYTES % DATA_BLOCK_BYTES == 0, "a chunk is whole blocks");
static_assert(DATA_BLOCK_BYTES % TENSOR_ALIGNMENT == 0, "tensors start aligned after the header");
static_assert(2 * EXCHANGE_VALUE_BYTES_MAX <= WIRE_MESSAGE_BYTES_MAX, "a value fits one packet");
static_assert(TENSOR_NAME_BYTES_MAX < FILE_SECTION_BYTES_MAX, "one tensor record fits one section");

#endif
