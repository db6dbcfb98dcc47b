/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_abi.h - what is used of NCCL's binary interface, declared by us, so that neither its header
 * nor CUDA's is needed to build. Where nccl.h exists, tests/unit/test_nccl_abi.c asserts each
 * number, size and offset. NCCL 2.14 or newer: communicators that do not block.
 */
#ifndef CAIRN_COMM_NCCL_ABI_H
#define CAIRN_COMM_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>

#define NCCL_ABI_VERSION_MIN 21400
#define NCCL_ABI_MAGIC 0xcafebeefu
#define NCCL_ABI_UNDEFINED INT_MIN
#define NCCL_ABI_ID_BYTES 128

enum nccl_result {
        NCCL_OK = 0,
        NCCL_CUDA_ERROR = 1,
        NCCL_SYSTEM_ERROR = 2,
        NCCL_INTERNAL_ERROR = 3,
        NCCL_INVALID_ARGUMENT = 4,
        NCCL_INVALID_USAGE = 5,
        NCCL_REMOTE_ERROR = 6,
        NCCL_IN_PROGRESS = 7,
};

enum nccl_type {
        NCCL_UINT8 = 1,
        NCCL_INT64 = 4,
        NCCL_FLOAT16 = 6,
        NCCL_FLOAT32 = 7,
        NCCL_FLOAT64 = 8,
        NCCL_BFLOAT16 = 9,
};

enum nccl_operation { NCCL_SUM = 0 };

struct nccl_communicator; /* ncclComm */

struct nccl_id {
        char internal[NCCL_ABI_ID_BYTES];
};

/* The beginning of ncclConfig_t: the library takes `size` bytes and knows by `version` what they do
 * not hold. cga_cluster_size came later; it lies where this struct would have padding. */
struct nccl_config {
        size_t size;
        unsigned magic, version;
        int blocking;
        int cga_cluster_size;
};
#define NCCL_CONFIG_NONBLOCKING                                              \
        {                                                                    \
                .size = sizeof(struct nccl_config), .magic = NCCL_ABI_MAGIC, \
                .version = NCCL_ABI_VERSION_MIN, .blocking = 0,              \
                .cga_cluster_size = NCCL_ABI_UNDEFINED,                      \
        }

/* Result, name without "nccl", parameters. A queue is a cudaStream_t. */
/* clang-format off */
#define NCCL_FUNCTIONS(X)                                                                         \
        X(int, GetVersion, (int *version))                                                        \
        X(int, GetUniqueId, (struct nccl_id *id))                                                 \
        X(int, CommInitRankConfig, (struct nccl_communicator **comm, int world,                   \
                                    struct nccl_id id, int rank, struct nccl_config *config))     \
        X(int, CommAbort, (struct nccl_communicator *comm))                                       \
        X(int, CommGetAsyncError, (struct nccl_communicator *comm, int *error))                   \
        X(const char *, GetErrorString, (int result))                                             \
        X(const char *, GetLastError, (struct nccl_communicator *comm))                           \
        X(int, AllReduce, (const void *source, void *target, size_t count, int type,              \
                           int operation, struct nccl_communicator *comm, void *queue))           \
        X(int, ReduceScatter, (const void *source, void *target, size_t count, int type,          \
                               int operation, struct nccl_communicator *comm, void *queue))       \
        X(int, AllGather, (const void *source, void *target, size_t count, int type,              \
                           struct nccl_communicator *comm, void *queue))                          \
        X(int, Broadcast, (const void *source, void *target, size_t count, int type, int root,    \
                           struct nccl_communicator *comm, void *queue))                          \
        X(int, GroupStart, (void))                                                                \
        X(int, GroupEnd, (void))
/* clang-format on */

#endif
