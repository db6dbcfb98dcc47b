/* SPDX-License-Identifier: Apache-2.0
 *
 * format_sample.h - small manifests, checkpoints and runs for the tests of the format:
 * deterministic down to the last byte. Failures fail the test.
 *
 *     sample_init(&f, "run", rank, world, generation, step, attempt);
 *     sample_tensor(&f, "wte", CAIRN_PARAMETER, CAIRN_F32, 2, (uint64_t[]){4, 3});
 *     sample_finish(&f);             // lays out, fills, checksums: f.content is a whole manifest
 *     sample_publish(&f, dirfd);     // rank-N.manifest and rank-N.data
 *     sample_done(&f);
 */
#ifndef CAIRN_TESTS_FORMAT_SAMPLE_H
#define CAIRN_TESTS_FORMAT_SAMPLE_H

#include "format/file.h"
#include "format/names.h"

typedef Cairn__Format__Tensor Tensor;
typedef Cairn__Format__Extent Extent;
typedef Cairn__Format__Shard Shard;

struct sample {
        struct arena arena;
        struct file_content content; /* of the manifest */
        size_t capacity;
        uint8_t *image;
        uint64_t image_bytes;
};

void *sample_memory(struct sample *f, size_t bytes);
ProtobufCBinaryData sample_text(struct sample *f, const char *text);
void sample_init(struct sample *f, const char *run, uint32_t rank, uint32_t world,
                 uint64_t generation, int64_t step, uint32_t attempt);
void sample_done(struct sample *f);
/* Owned by this rank; the caller may change the record before sample_finish. */
Tensor *sample_tensor(struct sample *f, const char *name, uint32_t role, uint32_t dtype,
                      size_t rank, const uint64_t *shape);
/* This rank does not write it. */
void sample_disown(struct sample *f, const Tensor *t);
void sample_flat(struct sample *f, Tensor *t, uint64_t start, uint64_t count);
void sample_block(struct sample *f, Tensor *t, const uint64_t *offsets, const uint64_t *extents);
void sample_value(struct sample *f, const char *name, uint32_t type, int64_t v, const char *bytes);
void sample_finish(struct sample *f);
void sample_publish(const struct sample *f, int dirfd);

/* ---- a run's folder ---- */
enum sample_flags { SAMPLE_SUSPECT = 1, SAMPLE_NON_FINITE = 2 };
/* Tensors of every kind for one of `world` ranks. */
void sample_standard(struct sample *f);
void sample_claim(int run_fd, const char *run, uint64_t generation, uint32_t world);
void sample_start(int run_fd, uint64_t generation, const char *parent);
/* Directory with manifests and data of `ranks` ranks of `world`. */
void sample_attempt(int run_fd, const char *directory, const char *run, uint64_t generation,
                    uint32_t attempt, int64_t step, uint32_t world, uint32_t ranks, unsigned flags);
/* The same, merged and committed, under its own name. */
void sample_checkpoint(int run_fd, const char *run, uint64_t generation, int64_t step,
                       uint32_t world, const char *parent, unsigned flags);
/* INDEX and COMMIT of what is published in the directory; f's arena is used. */
void sample_commit(int fd, struct sample *f, struct file_content *const *manifests,
                   const char *parent);
void sample_mark(int run_fd, const char *name, enum file_mark kind, const char *reason,
                 int64_t step, uint64_t generation);
void sample_store_marker(int store_fd);
/* A folder with all in it; onto the target where that exists. */
void sample_copy(const char *from, const char *to);
void sample_write(int dirfd, const char *name, const void *bytes, size_t count);
void sample_write_content(int dirfd, const char *name, const struct file_content *content);

#endif
