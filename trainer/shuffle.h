/* SPDX-License-Identifier: Apache-2.0
 *
 * shuffle.h - the order of samples: which sample stands at a global position. A pure function of
 * (seed, epoch, position), independent of world size and micro-batch, without a table to save. Each
 * epoch visits each sample once. Any thread.
 *
 * A Feistel network over the next power of four permutes [0, 4^k); walking it from a position until
 * it lands below count (cycle walking; Black and Rogaway, CT-RSA 2002) permutes [0, count).
 */
#ifndef CAIRN_TRAINER_SHUFFLE_H
#define CAIRN_TRAINER_SHUFFLE_H

#include <stdint.h>

/* position < count; count >= 1 */
uint64_t shuffle_sample(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t count);

#endif
