/* SPDX-License-Identifier: Apache-2.0
 *
 * types.h - the words that every part of Cairn and every trainer share: status codes, data types,
 * roles. Installed beside cairn.h; plain C, no other header needed. The numbers are written to disk
 * and sent over sockets: they are never reused or renumbered (docs/FORMAT.md lists them).
 */
#ifndef CAIRN_TYPES_H
#define CAIRN_TYPES_H

#include <stdint.h>

/* What a caller can do about an outcome. Functions return 0 or one of these (negative). */
enum cairn_status {
        CAIRN_OK = 0,
        CAIRN_ERR_API = -1,          /* wrong call, argument or order: fix the caller */
        CAIRN_ERR_BUSY = -2,         /* no room at the moment: ask again later */
        CAIRN_ERR_TIMEOUT = -3,      /* the stated deadline passed; the outcome may be unknown */
        CAIRN_ERR_CORRUPT = -4,      /* bytes from disk, socket or peer break the format */
        CAIRN_ERR_NOSPACE = -5,      /* ENOSPC, EDQUOT: free space or raise the quota */
        CAIRN_ERR_STALE = -6,        /* fenced: a newer generation, attempt or session exists */
        CAIRN_ERR_DEVICE = -7,       /* the device layer failed */
        CAIRN_ERR_PEER = -8,         /* a peer process (agent, saver, rank) is gone or failed */
        CAIRN_ERR_FATAL = -9,        /* a broken invariant of ours; the handle is poisoned */
        CAIRN_ERR_UNREACHABLE = -10, /* store or agent cannot be reached */
        CAIRN_ERR_NOTFOUND = -11,    /* there is no such run, checkpoint, step */
        CAIRN_ERR_PERMISSION = -12,  /* EACCES, EPERM, wrong user */
        CAIRN_ERR_MISMATCH = -13, /* the checkpoint and the trainer disagree; nothing was touched */
        CAIRN_ERR_IO = -14,       /* EIO, ESTALE and other failures of storage */
        CAIRN_ERR_NOMEM = -15,    /* memory, descriptors or another limit is too small */
        CAIRN_ERR_VOID = -16,     /* the snapshot was given up: the trainer was not made to wait */
        CAIRN_ERR_UNSUPPORTED = -17,  /* an unknown version, feature, type or operation */
        CAIRN_ERR_EXISTS = -18,       /* refused, because it would replace what is there */
        CAIRN_ERR_FINISHED = -19,     /* the run is finished */
        CAIRN_ERR_CANNOT_WRITE = -20, /* read-only store, not a directory, ... */
        CAIRN_ERR_PREEMPTED = -21,    /* this machine is about to go away: start elsewhere */
};

/* Element types. On disk: uint32. 0 is never valid. Sizes in bytes: cairn_dtype_bytes(). */
enum cairn_dtype {
        CAIRN_F64 = 1,
        CAIRN_F32 = 2,
        CAIRN_F16 = 3,
        CAIRN_BF16 = 4,
        CAIRN_F8E4M3 = 5, /* OCP FP8: no infinities, one NaN pattern per sign */
        CAIRN_F8E5M2 = 6,
        CAIRN_E8M0 = 7, /* OCP MX scale: 2^(code-127), 0xff is NaN */
        CAIRN_I64 = 8,
        CAIRN_I32 = 9,
        CAIRN_I16 = 10,
        CAIRN_I8 = 11,
        CAIRN_U64 = 12,
        CAIRN_U32 = 13,
        CAIRN_U16 = 14,
        CAIRN_U8 = 15,
        CAIRN_BOOL = 16, /* one byte, 0 or 1 */
        CAIRN_C64 = 17,  /* two F32 */
        CAIRN_C128 = 18, /* two F64 */
};

/* What a tensor is. Rules hang on it: STEP is F32 only, MOMENT2 is never stored narrower. */
enum cairn_role {
        CAIRN_PARAMETER = 1,
        CAIRN_BUFFER = 2,
        CAIRN_MASTER = 3,
        CAIRN_GRADIENT = 4,
        CAIRN_MOMENT1 = 5,
        CAIRN_MOMENT2 = 6,
        CAIRN_MOMENT_OTHER = 7,
        CAIRN_STEP = 8,
        CAIRN_EMA = 9,
        CAIRN_RNG = 10,
        CAIRN_SCALER = 11,
        CAIRN_OTHER = 12,
};

/* When a registered tensor may be written. */
enum cairn_mutates {
        CAIRN_IN_UPDATE = 0, /* only between cairn_update_begin and cairn_update_end */
        CAIRN_ANYTIME = 1, /* also elsewhere (batch-norm statistics, amax, device RNG): shadowed */
};

/* Types of host-state values. On disk: uint32. */
enum cairn_value_type {
        CAIRN_VALUE_I64 = 1,
        CAIRN_VALUE_U64 = 2,
        CAIRN_VALUE_F64 = 3,
        CAIRN_VALUE_BYTES = 4, /* fixed capacity, actual length beside it */
};

enum { CAIRN_RANK_MAX = 8 }; /* dimensions of a tensor */

#endif
