/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer/shard.h"

struct shard shard_of(size_t block_count, uint32_t rank, uint32_t world) {
        size_t chunks = (block_count + SHARD_CHUNK - 1) / SHARD_CHUNK;
        size_t count = (chunks + world - 1) / world * SHARD_CHUNK;

        return (struct shard){.first = rank * count, .count = count, .whole = world * count};
}

struct shard_part shard_part(const struct shard *s, size_t tensor_offset, size_t tensor_count) {
        size_t begin = tensor_offset, end = tensor_offset + tensor_count;

        if (begin < s->first)
                begin = s->first;
        if (end > s->first + s->count)
                end = s->first + s->count;
        if (begin >= end)
                return (struct shard_part){0};
        return (struct shard_part){.in_shard = begin - s->first,
                                   .in_tensor = begin - tensor_offset,
                                   .count = end - begin};
}
