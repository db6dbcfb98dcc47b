/* SPDX-License-Identifier: Apache-2.0
 *
 * shard.h - which part of a block of floats (model.h) a rank keeps the optimizer's state for. The
 * block is cut into `world` equal parts at whole chunks; zeros are thought behind its end, so that
 * every part is full. The same for every rank that computes it; a group of another size cuts
 * elsewhere. Pure, any thread.
 *
 *     s = shard_of(model.block_count, rank, world);      // ZeRO-1: this rank's part
 *     s = shard_of(model.block_count, 0, 1);             // else: all of it
 *     p = shard_part(&s, tensor.offset, tensor.count);   // what of a tensor lies in it
 */
#ifndef CAIRN_TRAINER_SHARD_H
#define CAIRN_TRAINER_SHARD_H

#include <stddef.h>
#include <stdint.h>

/* Elements. Also the piece that sums over a gradient are made of: they are then the same bits
 * wherever the block is cut. */
enum { SHARD_CHUNK = 256 };

struct shard {
        size_t first, count; /* elements of the block */
        size_t whole;        /* of the block with what is thought behind it: world * count */
};
struct shard_part {
        size_t in_shard, in_tensor, count; /* begins there; count 0: nothing lies in it */
};

struct shard shard_of(size_t block_count, uint32_t rank, uint32_t world);
struct shard_part shard_part(const struct shard *s, size_t tensor_offset, size_t tensor_count);

#endif
