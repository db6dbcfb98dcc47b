/* SPDX-License-Identifier: Apache-2.0
 *
 * verify.h - the manifests of a checkpoint or attempt directory, as scan.c and verify.c share them.
 */
#ifndef CAIRN_VERIFY_H
#define CAIRN_VERIFY_H

#include "format/scan.h"

/* "<directory>/<file>", for errors and for opening beneath the run's folder. */
#define VERIFY_PATH_BYTES (2 * NAME_BYTES + 2)
const char *verify_path(char *path, const char *directory, const char *file);

/* A manifest as read: content in the arena, digest of its file. */
struct verify_manifest {
        struct file_content content;
        uint32_t crc32c;
        uint64_t bytes;
};
/* Rank's manifest, and that its data file has the size and the header that it says. */
int verify_manifest(const struct io_ops *io, int run_dirfd, const char *directory, const char *run,
                    uint32_t rank, struct arena *arena, struct verify_manifest *ret,
                    struct cairn_error *reterr);
/* INDEX and the files of these ranks are the bytes that COMMIT has the digests of; data: sizes. */
int verify_digests(const struct io_ops *io, int run_dirfd, const char *directory,
                   const Cairn__Format__Commit *commit, uint32_t first_rank, uint32_t ranks,
                   struct cairn_error *reterr);
/* The same without INDEX, which may not be there yet. */
int verify_digests_of_ranks(const struct io_ops *io, int run_dirfd, const char *directory,
                            const Cairn__Format__Commit *commit, uint32_t first_rank,
                            uint32_t ranks, struct cairn_error *reterr);
/* INDEX has the size that COMMIT says and a header of its kind: what can be seen at once. */
int verify_index_header(const struct io_ops *io, int run_dirfd, const char *directory,
                        const Cairn__Format__Commit *commit, struct cairn_error *reterr);
/* All data bytes of a rank: chunk checksums, tensor checksums, zeros between, step counters. */
int verify_data(const struct io_ops *io, int run_dirfd, const char *directory,
                const struct file_content *manifest, struct cairn_error *reterr);

#endif
