/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/ranks.h"
#include "base/cleanup.h"
#include "format/crc32c.h"
#include "tests/sim/simfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 300, WEIGHT_BYTES = COLUMNS * 4, STEP_OFFSET = DATA_BLOCK_BYTES + 1280 };

static ProtobufCBinaryData text(const char *s) {
        return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *) (uintptr_t) s};
}

static uint64_t image_bytes(const struct ranks_cut *cut) {
        uint64_t bytes = cut->data_bytes_min;
        if (bytes < 2 * DATA_BLOCK_BYTES)
                bytes = 2 * DATA_BLOCK_BYTES;
        return (bytes + DATA_BLOCK_BYTES - 1) / DATA_BLOCK_BYTES * DATA_BLOCK_BYTES;
}

static void fill_image(const struct ranks_cut *cut, uint32_t rank, uint8_t *uuid,
                       unsigned char *image) {
        uint64_t seed = (uint64_t) cut->step * 1000003 + cut->generation * 101 + rank;
        struct data_header header = {.rank = rank, .generation = cut->generation};
        float step = (float) cut->step;

        for (size_t i = 0; i < 16; i++)
                uuid[i] = (uint8_t) simfs_random(&seed);
        memcpy(header.uuid, uuid, 16);
        memcpy(header.run, cut->run, strlen(cut->run));
        data_header_write(image, &header);
        for (size_t i = 0; i < WEIGHT_BYTES; i++)
                image[DATA_BLOCK_BYTES + i] = (unsigned char) simfs_random(&seed);
        if (rank == 0)
                memcpy(image + STEP_OFFSET, &step, sizeof step);
}

/* The records of one rank, all in one place so that pointers stay valid. */
struct records {
        Cairn__Format__Head head;
        Cairn__Format__Ending ending;
        Cairn__Format__Tensor weights, step, *tensors[2];
        Cairn__Format__Extent weights_extent, step_extent, *extents[2];
        Cairn__Format__Shard shard;
        Cairn__Format__State state, *states[1];
        Cairn__Format__StateValue value, *values[1];
        Cairn__Format__ChunkCrcs crcs, *chunk_crcs[1];
        uint64_t weights_shape[2], offsets[2], sizes[2];
};

static void fill_tensors(struct records *r, const struct ranks_cut *cut, uint32_t rank,
                         const unsigned char *image) {
        cairn__format__tensor__init(&r->step);
        cairn__format__tensor__init(&r->weights);
        cairn__format__extent__init(&r->step_extent);
        cairn__format__extent__init(&r->weights_extent);
        cairn__format__shard__init(&r->shard);
        r->step.name = text("adam.step");
        r->step.role = CAIRN_STEP;
        r->step.runtime_dtype = r->step.stored_dtype = CAIRN_F32;
        r->step.replicated = true;
        r->step.true_step = cut->step;
        r->step.has_true_step = true;
        r->step_extent.offset = STEP_OFFSET;
        r->step_extent.bytes = 4;
        r->step_extent.crc32c = crc32c(0, image + STEP_OFFSET, 4);
        r->extents[0] = &r->step_extent;
        r->step.extents = &r->extents[0];
        r->step.n_extents = rank == 0; /* its owner */

        r->weights_shape[0] = cut->world;
        r->weights_shape[1] = COLUMNS;
        r->offsets[0] = rank;
        r->sizes[0] = 1;
        r->sizes[1] = COLUMNS;
        r->weights.name = text("weights");
        r->weights.role = CAIRN_PARAMETER;
        r->weights.runtime_dtype = r->weights.stored_dtype = CAIRN_F32;
        r->weights.shape = r->weights_shape;
        r->weights.n_shape = 2;
        r->shard.offsets = r->offsets;
        r->shard.extents = r->sizes;
        r->shard.n_offsets = r->shard.n_extents = 2;
        r->weights_extent.rank = rank;
        r->weights_extent.offset = DATA_BLOCK_BYTES;
        r->weights_extent.bytes = WEIGHT_BYTES;
        r->weights_extent.crc32c = crc32c(0, image + DATA_BLOCK_BYTES, WEIGHT_BYTES);
        r->weights_extent.shard = &r->shard;
        r->extents[1] = &r->weights_extent;
        r->weights.extents = &r->extents[1];
        r->weights.n_extents = 1;
        r->tensors[0] = &r->step;
        r->tensors[1] = &r->weights;
}

static void fill_head(struct records *r, const struct ranks_cut *cut, uint32_t rank,
                      uint8_t *uuid) {
        cairn__format__head__init(&r->head);
        cairn__format__ending__init(&r->ending);
        r->head.run = text(cut->run);
        r->head.generation = cut->generation;
        r->head.rank = rank;
        r->head.world = cut->world;
        r->head.step = cut->step;
        r->head.seq = (uint64_t) cut->step;
        r->head.attempt = cut->attempt;
        r->head.data_uuid = (ProtobufCBinaryData){.len = 16, .data = uuid};
        r->head.data_bytes = image_bytes(cut);
        r->head.tensor_count = 2;
        r->head.tensor_bytes = WEIGHT_BYTES + (rank == 0 ? 4 : 0);
        r->head.writer = text("test");
        r->head.non_finite_count = cut->non_finite;
        if (cut->suspect) {
                r->ending.kind = 2;
                r->ending.code = 11;
                r->ending.suspect = true;
        }
        r->head.ending = &r->ending;
}

static int write_manifest(const struct ranks_cut *cut, uint32_t rank, uint8_t *uuid,
                          const unsigned char *image, void **ret, size_t *ret_bytes,
                          struct cairn_error *reterr) {
        struct records r = {0};
        uint64_t bytes = image_bytes(cut),
                 chunks = (bytes + DATA_CHUNK_BYTES - 1) / DATA_CHUNK_BYTES;
        _cleanup_free_ uint32_t *crcs = calloc(chunks, sizeof *crcs);

        fill_head(&r, cut, rank, uuid);
        fill_tensors(&r, cut, rank, image);
        cairn__format__state__init(&r.state);
        cairn__format__state_value__init(&r.value);
        cairn__format__chunk_crcs__init(&r.crcs);
        r.value.name = text("step");
        r.value.type = CAIRN_VALUE_I64;
        r.value.i64 = cut->step;
        r.values[0] = &r.value;
        r.state.rank = rank;
        r.state.step = cut->step;
        r.state.seq = (uint64_t) cut->step;
        r.state.values = r.values;
        r.state.n_values = 1;
        r.states[0] = &r.state;
        for (uint64_t i = 0; i < chunks; i++) {
                uint64_t left = bytes - i * DATA_CHUNK_BYTES;
                crcs[i] = crc32c(0, image + i * DATA_CHUNK_BYTES,
                                 left < DATA_CHUNK_BYTES ? left : DATA_CHUNK_BYTES);
        }
        r.crcs.rank = rank;
        r.crcs.crc32c = crcs;
        r.crcs.n_crc32c = chunks;
        r.chunk_crcs[0] = &r.crcs;
        struct file_content content = {.kind = FILE_MANIFEST,
                                       .head = &r.head,
                                       .tensors = r.tensors,
                                       .tensor_count = 2,
                                       .states = r.states,
                                       .state_count = 1,
                                       .chunk_crcs = r.chunk_crcs,
                                       .chunk_crcs_count = 1};
        return file_write(&content, ret, ret_bytes, reterr);
}

int ranks_write(const struct io_ops *io, const struct ranks_cut *cut, uint32_t rank, int data_fd,
                int manifest_fd, struct cairn_error *reterr) {
        _cleanup_free_ unsigned char *image = calloc(1, image_bytes(cut));
        _cleanup_free_ void *manifest = NULL;
        size_t manifest_bytes;
        uint8_t uuid[16];

        fill_image(cut, rank, uuid, image);
        TRY(write_manifest(cut, rank, uuid, image, &manifest, &manifest_bytes, reterr));
        TRY(io_write_all(io, data_fd, image, image_bytes(cut), 0, "data", reterr));
        if (io->fdatasync(io->context, data_fd) < 0)
                return error_set_errno(reterr, errno, "sync", "data");
        TRY(io_write_all(io, manifest_fd, manifest, manifest_bytes, 0, "manifest", reterr));
        return io_sync(io, manifest_fd, "manifest", reterr);
}

int ranks_attempt(struct store_run *run, const struct ranks_cut *cut, struct attempt *ret,
                  struct cairn_error *reterr) {
        const struct io_ops *io = run->store->io;
        struct attempt a;
        int r;

        TRY(attempt_open(run, cut->generation, cut->attempt, cut->world, &a, reterr));
        for (uint32_t rank = 0; rank < cut->world; rank++) {
                int data_fd, manifest_fd;
                TRY_GOTO(attempt_open_rank(&a, io, rank, &data_fd, &manifest_fd, reterr), fail);
                r = ranks_write(io, cut, rank, data_fd, manifest_fd, reterr);
                (void) io->close(io->context, data_fd);
                (void) io->close(io->context, manifest_fd);
                if (r < 0)
                        goto fail;
                TRY_GOTO(attempt_publish_manifest(&a, io, rank, reterr), fail);
        }
        *ret = a;
        return 0;
fail:
        (void) attempt_discard(run, &a, NULL);
        return r;
}

int ranks_commit(struct store_run *run, const struct ranks_cut *cut, struct commit_result *ret,
                 struct cairn_error *reterr) {
        struct attempt a;

        TRY(ranks_attempt(run, cut, &a, reterr));
        int r = attempt_commit(run, &a, 0, "", ret, reterr);
        if (r < 0)
                (void) attempt_discard(run, &a, NULL);
        return r;
}
