/* SPDX-License-Identifier: Apache-2.0
 *
 * nccl_library.h - libnccl.so.2, or what $CAIRN_LIBNCCL names, as a table of functions. Never
 * unloaded. Loading removes NCCL_COMM_BLOCKING from the environment, which would override what a
 * communicator asks for: before there are other threads that read it.
 */
#ifndef CAIRN_COMM_NCCL_LIBRARY_H
#define CAIRN_COMM_NCCL_LIBRARY_H

#include "base/status.h"
#include "comm/nccl_abi.h"

struct nccl_library {
        int version; /* 22809: 2.28.9 */
#define NCCL_MEMBER(type, name, parameters) type(*name) parameters;
        NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
};

/* UNSUPPORTED: it is not there, is too old or lacks a function. */
int nccl_library_load(struct nccl_library *ret, struct cairn_error *reterr);

#endif
