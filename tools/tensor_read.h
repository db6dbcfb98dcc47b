/* SPDX-License-Identifier: Apache-2.0
 *
 * tensor_read.h - elements of a stored tensor in row-major order, whatever ranks and shards they
 * lie in. tensor_read reads what is asked for and no more, and checks no CRC: tensor_check does,
 * of one tensor (`cairn verify` of all).
 *
 *     struct tensor_reader r;
 *     TRY(tensor_reader_open(&r, &io_system, run_fd, checkpoint, world, reterr));
 *     TRY(tensor_read(&r, tensor, first, count, buffer, reterr));     stored dtype
 *     tensor_reader_done(&r);
 *
 * Data files are opened when first needed; tensor_reader_done accepts half-built ones.
 */
#ifndef CAIRN_TOOLS_TENSOR_READ_H
#define CAIRN_TOOLS_TENSOR_READ_H

#include "base/io.h"
#include "format/layout.h"

struct tensor_reader {
        const struct io_ops *io;
        const char *checkpoint; /* borrowed */
        int dir_fd;
        int *data_fds; /* by rank; -1: not open */
        uint32_t world;
        struct layout_ranks
                here; /* whose data files are there; of copies on nodes theirs is read */
};
#define TENSOR_READER_INIT \
        { .dir_fd = -1 }

int tensor_reader_open(struct tensor_reader *r, const struct io_ops *io, int run_fd,
                       const char *checkpoint, uint32_t world, struct cairn_error *reterr);
void tensor_reader_done(struct tensor_reader *r);
/* The range lies within the tensor, whose extents cover it (as INDEX was checked to). */
int tensor_read(struct tensor_reader *r, const Cairn__Format__Tensor *t, uint64_t first,
                uint64_t count, void *target, struct cairn_error *reterr);
/* All of its bytes have their checksums; else CORRUPT names checkpoint, file and tensor. Data files
 * of nodes whose store this is not are not looked at. */
int tensor_check(struct tensor_reader *r, const Cairn__Format__Tensor *t,
                 struct cairn_error *reterr);

#endif
