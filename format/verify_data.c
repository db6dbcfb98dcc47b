/* SPDX-License-Identifier: Apache-2.0
 *
 * verify_data.c - every byte of a rank's data file against its manifest, in one pass.
 */
#include "base/cleanup.h"
#include "base/log.h"
#include "format/crc32c.h"
#include "format/verify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct span {
        const Cairn__Format__Tensor *tensor;
        const Cairn__Format__Extent *extent;
};
struct scanner {
        const char *path;
        uint8_t *chunk;
        struct span *spans; /* by offset */
        size_t count, at;   /* at: the first one that does not end before the position */
        uint32_t crc;       /* of the part of spans[at] that was seen */
        struct cairn_error *reterr;
};

static int compare_spans(const void *a, const void *b) {
        const struct span *x = a, *y = b;
        return (x->extent->offset > y->extent->offset) - (x->extent->offset < y->extent->offset);
}

static int fail_tensor(const struct scanner *s, const Cairn__Format__Tensor *t, uint64_t offset,
                       const char *message) {
        char object[256], name[128];

        (void) snprintf(object, sizeof object, "%s, \"%s\"", s->path,
                        text_escape(name, sizeof name, (const char *) t->name.data, t->name.len));
        (void) error_set(s->reterr, CAIRN_ERR_CORRUPT, "check data", object, "%s", message);
        if (s->reterr)
                s->reterr->offset = offset;
        return CAIRN_ERR_CORRUPT;
}

static int fail_at(const struct scanner *s, uint64_t offset, const char *message) {
        (void) error_set(s->reterr, CAIRN_ERR_CORRUPT, "check data", s->path, "%s", message);
        if (s->reterr)
                s->reterr->offset = offset;
        return CAIRN_ERR_CORRUPT;
}

static bool is_zero(const uint8_t *p, size_t bytes) {
        return bytes == 0 || (p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0);
}

/* The FP32 of a step tensor is what its int64 rounds to. Elements never straddle a chunk. */
static int check_steps(const struct scanner *s, const struct span *span, const uint8_t *bytes,
                       size_t count) {
        float expected = (float) span->tensor->true_step, found;

        if (!span->tensor->has_true_step)
                return 0;
        for (size_t i = 0; i + sizeof found <= count; i += sizeof found) {
                memcpy(&found, bytes + i, sizeof found);
                if (found != expected)
                        return fail_tensor(s, span->tensor, span->extent->offset,
                                           "the step counter differs from the true step beside it");
        }
        return 0;
}

/* bytes lie at `offset` of the file; what no tensor covers must be zero. */
static int scan_bytes(struct scanner *s, const uint8_t *bytes, size_t count, uint64_t offset) {
        uint64_t end = offset + count;

        while (offset < end) {
                const struct span *span = s->at < s->count ? &s->spans[s->at] : NULL;
                uint64_t stop = span && span->extent->offset < end ? span->extent->offset : end;
                if (offset < stop) {
                        if (!is_zero(bytes, (size_t) (stop - offset)))
                                return fail_at(s, offset, "the padding here is not zero");
                        bytes += stop - offset;
                        offset = stop;
                        continue;
                }
                uint64_t span_end = span->extent->offset + span->extent->bytes;
                size_t part = (size_t) ((span_end < end ? span_end : end) - offset);
                s->crc = crc32c(s->crc, bytes, part);
                TRY(check_steps(s, span, bytes, part));
                bytes += part;
                offset += part;
                if (offset < span_end)
                        break;
                if (s->crc != span->extent->crc32c)
                        return fail_tensor(s, span->tensor, span->extent->offset,
                                           "the checksum of the tensor differs");
                s->crc = 0;
                s->at++;
        }
        return 0;
}

static int list_spans(struct scanner *s, const struct file_content *manifest) {
        size_t n = 0;

        for (size_t i = 0; i < manifest->tensor_count; i++)
                s->count += manifest->tensors[i]->n_extents;
        s->spans = calloc(s->count ? s->count : 1, sizeof *s->spans);
        s->chunk = malloc(DATA_CHUNK_BYTES);
        if (!s->spans || !s->chunk)
                return error_set_errno(s->reterr, ENOMEM, "check data", s->path);
        for (size_t i = 0; i < manifest->tensor_count; i++)
                for (size_t k = 0; k < manifest->tensors[i]->n_extents; k++)
                        s->spans[n++] = (struct span){manifest->tensors[i],
                                                      manifest->tensors[i]->extents[k]};
        qsort(s->spans, s->count, sizeof *s->spans, compare_spans);
        return 0;
}

static int scan_file(struct scanner *s, const struct io_ops *io, int fd,
                     const struct file_content *manifest) {
        uint64_t data_bytes = manifest->head->data_bytes;

        for (size_t i = 0; i < manifest->chunk_crcs_count; i++) {
                const Cairn__Format__ChunkCrcs *crcs = manifest->chunk_crcs[i];
                for (size_t k = 0; k < crcs->n_crc32c; k++) {
                        uint64_t offset = (crcs->first_chunk + k) * DATA_CHUNK_BYTES;
                        uint64_t left = data_bytes - offset;
                        size_t count = (size_t) (left < DATA_CHUNK_BYTES ? left : DATA_CHUNK_BYTES);
                        TRY(io_read_exact(io, fd, s->chunk, count, offset, s->path, s->reterr));
                        bool same = crc32c(0, s->chunk, count) == crcs->crc32c[k];
                        /* The header was checked; tensors first, since their names say more. */
                        size_t skip = offset == 0 ? DATA_BLOCK_BYTES : 0;
                        TRY(scan_bytes(s, s->chunk + skip, count - skip, offset + skip));
                        if (!same)
                                return fail_at(s, offset, "the checksum of the chunk differs");
                }
        }
        return 0;
}

int verify_data(const struct io_ops *io, int run_dirfd, const char *directory,
                const struct file_content *manifest, struct cairn_error *reterr) {
        char name[NAME_BYTES], path[VERIFY_PATH_BYTES];
        struct scanner s = {.reterr = reterr};

        name_data(name, manifest->head->rank);
        s.path = verify_path(path, directory, name);
        int fd = io->openat(io->context, run_dirfd, path, O_RDONLY | O_NONBLOCK, 0);
        if (fd < 0)
                return error_set_errno(reterr, errno, "open data", path);
        int r = list_spans(&s, manifest);
        if (r == 0)
                r = scan_file(&s, io, fd, manifest);
        free(s.spans);
        free(s.chunk);
        (void) io->close(io->context, fd);
        return r;
}
