/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h - what the fuzz targets share. fuzz_X.c is one target: it reads bytes that nobody vouches
 * for and ends the process (FUZZ_CHECK, a sanitizer) when a promise is broken. The same source is
 * linked twice: with libFuzzer (`make fuzz`, clang), and with replay.c (`make check`, any
 * compiler), which runs the corpus, cuts of it, extreme values in it and a few mutations.
 *
 * Mutators know the formats, so that what lies behind a checksum is reached: they change one field
 * of one message, then put lengths, page directory and checksums right again (docs/TESTING.md).
 */
#ifndef CAIRN_TESTS_FUZZ_H
#define CAIRN_TESTS_FUZZ_H

#include "base/arena.h"
#include "base/status.h"
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer's names. Every target has the first one and the mutator. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t count, size_t max, unsigned int seed);
/* Given by libFuzzer or by replay.c. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t count, size_t max);

#define FUZZ_CHECK(e) ((e) ? (void) 0 : fuzz_failed(#e, __FILE__, __LINE__))
_Noreturn void fuzz_failed(const char *expression, const char *file, int line);

/* Reads the input from the front; zeros behind its end. */
struct fuzz_input {
        const uint8_t *bytes;
        size_t left;
};
uint8_t fuzz_u8(struct fuzz_input *in);
uint32_t fuzz_u32(struct fuzz_input *in);
uint64_t fuzz_u64(struct fuzz_input *in);
/* malloc'ed with exactly this many bytes, so that a read past the end is seen. */
void *fuzz_copy(const void *bytes, size_t count);
/* What parsing `count` bytes may take. */
void fuzz_check_arena(const struct arena *a, size_t count);
/* A status that a reader of foreign bytes may give: an error that names its cause. */
void fuzz_check_error(int status, const struct cairn_error *e);
/* Sealed memfd with these bytes. */
int fuzz_memfd(const void *bytes, size_t count);

/* ---- framed files, one behind the other ---- */
/* Bytes of the framed file at the front, as its header says, at most `count`; 0: there is none. */
size_t fuzz_file_bytes(const uint8_t *bytes, size_t count);
uint32_t fuzz_file_kind(const uint8_t *bytes, size_t count);
/* A mutator for a sequence of framed files. */
size_t fuzz_mutate_files(uint8_t *bytes, size_t count, size_t max, unsigned int seed);
/* One message of this type. */
size_t fuzz_mutate_message(uint8_t *bytes, size_t count, size_t max, unsigned int seed,
                           const ProtobufCMessageDescriptor *descriptor);
/* Bytes without any structure: libFuzzer's own changes, and whole words of extreme values. */
size_t fuzz_mutate_plain(uint8_t *bytes, size_t count, size_t max, unsigned int seed);

extern const uint64_t fuzz_extremes[];
extern const size_t fuzz_extreme_count;

#endif
