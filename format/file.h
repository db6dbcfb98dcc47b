/* SPDX-License-Identifier: Apache-2.0
 *
 * file.h - the framed protobuf files: manifest, INDEX, COMMIT, GEN-n, GEN-n.start, CAIRN-STORE,
 * inventory, marks. One writer, one bounded reader and one table of section kinds serve all of them
 * (docs/FORMAT.md).
 *
 *   header, 64 bytes:  0 magic "CAIRNFMT" | 8 u32 version | 12 u32 kind | 16 u64 feature_compat |
 *                      24 u64 feature_incompat | 32 u32 section_count | 36 u32 reserved 0 | 40 u64
 * file_bytes | 48 u64 reserved 0 | 56 u32 reserved 0 | 60 u32 CRC32C of bytes 0..59 section: 0 u32
 * type | 4 u32 CRC32C of the payload | 8 u64 payload bytes (<= 64 MiB) | payload, zero padded to 8
 *
 *   data file header, 4096 bytes: 0 magic "CAIRNDAT" | 8 u32 version | 12 u32 rank | 16 u64
 * generation | 24 u8[16] uuid | 40 u8[64] run, zero padded | zeros | 4092 u32 CRC32C of bytes
 * 0..4091
 *
 * file_read validates header, lengths, counts and CRCs before it allocates, unpacks into the
 * caller's arena (names and other strings stay where they are, in the file's bytes), and then
 * checks the messages' own fields (ranges, dtypes, shapes, overlaps). Bytes are never trusted.
 */
#ifndef CAIRN_FILE_H
#define CAIRN_FILE_H

#include "base/arena.h"
#include "base/io.h"
#include "base/limits.h"
#include "format/manifest.pb-c.h"

#define FILE_VERSION 1
#define FILE_FEATURES_COMPAT UINT64_C(0)
/* Known bits; any other is refused. INDEX: replicated tensors are there in several whole copies,
 * one a node. */
#define FILE_FEATURE_COPIES UINT64_C(1)
#define FILE_FEATURES_INCOMPAT FILE_FEATURE_COPIES

enum file_kind {
        FILE_MANIFEST = 1,
        FILE_INDEX = 2,
        FILE_COMMIT = 3,
        FILE_GENERATION = 4,
        FILE_GENERATION_START = 5,
        FILE_STORE = 6,
        FILE_INVENTORY = 7,
        FILE_MARK = 8
};
enum file_mark {
        FILE_MARK_FINISHED = 1,
        FILE_MARK_PIN = 2,
        FILE_MARK_TAG = 3,
        FILE_MARK_NODE = 4 /* whose ranks the run's folder holds */
};

/* Everything that a framed file can hold; absent parts are NULL / 0. Pointers are into the arena
 * and the bytes of file_read, or the caller's when writing. */
struct file_content {
        enum file_kind kind;
        Cairn__Format__Head *head;
        Cairn__Format__Tensor **tensors;
        size_t tensor_count;
        Cairn__Format__State **states; /* manifest: 1; INDEX: one a rank */
        size_t state_count;
        Cairn__Format__ChunkCrcs **chunk_crcs;
        size_t chunk_crcs_count;
        Cairn__Format__Commit *commit;
        Cairn__Format__Generation *generation;
        Cairn__Format__GenerationStart *generation_start;
        Cairn__Format__StoreMarker *store;
        Cairn__Format__InventoryHead *inventory;
        Cairn__Format__Placement **placements;
        size_t placement_count;
        Cairn__Format__Mark *mark;
};

/* Serialize; malloc'ed, caller frees. INDEX: tensors must be sorted by name; a page directory is
 * added. Pages hold up to 1 MiB of records. */
/* The content is checked like bytes that were read (file_check): what could not be read back is not
 * written. */
int file_write(const struct file_content *content, void **ret, size_t *ret_bytes,
               struct cairn_error *reterr);
/* The same without the check, so that tests can make files that are broken below their checksums
 * (B58, B60). */
int file_write_unchecked(const struct file_content *content, void **ret, size_t *ret_bytes,
                         struct cairn_error *reterr);
/* The messages' own fields: codes, names, shapes, ranges, overlaps, counts (docs/FORMAT.md, "What a
 * reader checks"). */
int file_check(const struct file_content *content, const char *object, struct cairn_error *reterr);
/* Parse and check. `object` names the file in errors ("000000000012-g0001/INDEX"); errors name the
 * section and offset. CORRUPT for anything broken, UNSUPPORTED for a newer version or an unknown
 * incompat feature. `bytes` have to stay, unchanged, as long as the content is used. */
int file_read(const void *bytes, size_t bytes_count, enum file_kind expected, const char *object,
              struct arena *arena, struct file_content *ret, struct cairn_error *reterr);
/* The first FILE_HEADER_BYTES of a file of so many bytes, which may be fewer: all that can be told
 * without reading more. */
#define FILE_HEADER_BYTES 64
int file_check_header(const void *header, uint64_t bytes, enum file_kind expected,
                      const char *object, struct cairn_error *reterr);
/* io_read_file into the arena + file_read; the raw bytes' CRC32C and size for digests (NULL
 * allowed). */
int file_load(const struct io_ops *io, int dirfd, const char *path, enum file_kind expected,
              struct arena *arena, struct file_content *ret, uint32_t *ret_crc, uint64_t *ret_bytes,
              struct cairn_error *reterr);

struct data_header {
        uint32_t rank;
        uint64_t generation;
        uint8_t uuid[16];
        char run[RUN_NAME_BYTES_MAX + 1];
};
void data_header_write(void *block, const struct data_header *h); /* 4096 bytes */
int data_header_read(const void *block, const char *object, struct data_header *ret,
                     struct cairn_error *reterr);

const char *file_kind_name(enum file_kind kind);

#endif
