/* SPDX-License-Identifier: Apache-2.0
 *
 * layout.h - where tensors lie in a rank's data image, who owns what, and whether a checkpoint
 * covers every tensor exactly once. Pure functions.
 */
#ifndef CAIRN_LAYOUT_H
#define CAIRN_LAYOUT_H

#include "format/file.h"

/* A block of ranks. */
struct layout_ranks {
        uint32_t first, count;
};

/* Give each owned, non-alias, non-empty tensor of an inventory its extent {rank, offset, bytes}:
 * registration order, 256-byte alignment, after the 4096-byte header. Extents are allocated in the
 * arena; without one the size alone is found. *ret_image_bytes is the data file's size, a multiple
 * of 4096. Empty tensors have no extent and shift nothing. */
int layout_assign(struct file_content *inventory, uint32_t rank, struct arena *arena,
                  uint64_t *ret_image_bytes, struct cairn_error *reterr);

/* Owner election for replicated tensors: a pure function of the (sorted by name) byte counts and
 * the world size, the same on every rank; greedy by size over ranks' loads, ties by lowest rank.
 * owners[i] = rank that writes tensor i. */
int layout_elect_owners(const uint64_t *bytes, const char *const *names, size_t count,
                        uint32_t world, uint32_t *owners, struct cairn_error *reterr);

/* Does the manifest of this rank have a record of the tensor? That of rank 0 has one of everything
 * that it registered. The others leave out replicated tensors that another rank writes and sharded
 * ones of which they hold nothing, for all ranks register those: in a world of thousands their
 * records would be all but everything. */
bool layout_in_manifest(const Cairn__Format__Tensor *t, uint32_t rank);
/* What all ranks have to agree on of the replicated ones (name, role, type, shape, time of change,
 * true step, tie): Head.replicated_digest, whatever their order. docs/FORMAT.md has the formula. */
uint64_t layout_digest_replicated(Cairn__Format__Tensor *const *tensors, size_t count,
                                  uint64_t *ret_count);

/* Merge the manifests of ranks 0..world-1 into INDEX (tensors sorted, extents of all ranks, states,
 * chunk CRCs), and check what no manifest alone shows: same run, generation, step, attempt, world;
 * same record of a tensor everywhere (of a replicated one, whoever wrote it says how it is stored);
 * the same replicated tensors registered by all; each tensor covered exactly once. The manifests
 * are as file_read returned them, i.e. each is checked in itself; file_write checks INDEX. Result
 * in the arena; it points into the manifests. */
int layout_merge(struct file_content *const *manifests, uint32_t world, struct arena *arena,
                 struct file_content *ret_index, struct cairn_error *reterr);
/* The coverage check alone (verify, reader): once, but for whole copies of a replicated tensor. */
int layout_check_coverage(const struct file_content *index, struct cairn_error *reterr);
/* The extents to read a tensor of INDEX from: all, or of several whole copies the one of these
 * ranks (the first one if none is theirs). */
Cairn__Format__Extent *const *layout_extents(const Cairn__Format__Tensor *t,
                                             struct layout_ranks ranks, size_t *ret_count);
/* Binary search by name in a sorted INDEX; -1 if absent. */
ptrdiff_t layout_find(const struct file_content *index, const void *name, size_t name_bytes);

#endif
