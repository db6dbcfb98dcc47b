/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/tensor_read.h"

#include "base/cleanup.h"
#include "base/limits.h"
#include "base/log.h"
#include "format/crc32c.h"
#include "format/dtype.h"
#include "format/names.h"
#include <errno.h>
#include <fcntl.h>

#define CHECK_BYTES (1 * MiB)

int tensor_reader_open(struct tensor_reader *r, const struct io_ops *io, int run_fd,
                       const char *checkpoint, uint32_t world, struct cairn_error *reterr) {
        *r = (struct tensor_reader){.io = io, .checkpoint = checkpoint, .dir_fd = -1};
        r->data_fds = malloc(((size_t) world + 1) * sizeof *r->data_fds);
        if (!r->data_fds)
                return error_set_errno(reterr, ENOMEM, "open checkpoint", checkpoint);
        for (uint32_t i = 0; i < world; i++)
                r->data_fds[i] = -1;
        r->world = world;
        r->dir_fd = io->openat(io->context, run_fd, checkpoint, O_RDONLY | O_DIRECTORY, 0);
        return r->dir_fd < 0 ? error_set_errno(reterr, errno, "open checkpoint", checkpoint) : 0;
}

void tensor_reader_done(struct tensor_reader *r) {
        for (uint32_t i = 0; i < r->world; i++)
                cleanup_close(&r->data_fds[i]);
        free(r->data_fds);
        cleanup_close(&r->dir_fd);
        *r = (struct tensor_reader) TENSOR_READER_INIT;
}

static int open_data(struct tensor_reader *r, uint32_t rank, int *ret, struct cairn_error *reterr) {
        char name[NAME_BYTES];
        name_data(name, rank);
        if (rank >= r->world)
                return error_set(reterr, CAIRN_ERR_CORRUPT, "open data file", name,
                                 "INDEX of %s names a rank beyond its world", r->checkpoint);
        if (r->data_fds[rank] < 0)
                r->data_fds[rank] = r->io->openat(r->io->context, r->dir_fd, name, O_RDONLY, 0);
        if (r->data_fds[rank] < 0)
                return error_set_errno(reterr, errno, "open data file", name);
        *ret = r->data_fds[rank];
        return 0;
}

/* What is asked for: elements [first, first + count) of the tensor, to `target`. */
struct wanted {
        uint64_t first, count;
        unsigned char *target;
        uint64_t element_bytes;
};

/* Elements [at, at + run) of the tensor lie in one piece at `offset` of the file: read what of them
 * is wanted. */
static int read_run(struct tensor_reader *r, int fd, const struct wanted *w, uint64_t at,
                    uint64_t run, uint64_t offset, struct cairn_error *reterr) {
        uint64_t from = at > w->first ? at : w->first;
        uint64_t to = at + run < w->first + w->count ? at + run : w->first + w->count;
        if (from >= to)
                return 0;
        return io_read_exact(r->io, fd, w->target + (from - w->first) * w->element_bytes,
                             (to - from) * w->element_bytes,
                             offset + (from - at) * w->element_bytes, r->checkpoint, reterr);
}

/* Where row `row` of a block begins in the whole tensor. Ascends with `row`. */
static uint64_t row_start(const Cairn__Format__Tensor *t, const Cairn__Format__Shard *s,
                          uint64_t row) {
        size_t last = t->n_shape - 1;
        uint64_t at = s->offsets[last], stride = t->shape[last];
        for (size_t d = last; d-- > 0;) {
                at += (s->offsets[d] + row % s->extents[d]) * stride;
                row /= s->extents[d];
                stride *= t->shape[d];
        }
        return at;
}

static int read_block(struct tensor_reader *r, int fd, const Cairn__Format__Tensor *t,
                      const Cairn__Format__Extent *e, const struct wanted *w,
                      struct cairn_error *reterr) {
        const Cairn__Format__Shard *s = e->shard;
        uint64_t run = t->n_shape ? s->extents[t->n_shape - 1] : 1, rows = 1, low = 0;
        for (size_t d = 0; d + 1 < t->n_shape; d++)
                rows *= s->extents[d];
        if (t->n_shape == 0 || run == 0)
                return t->n_shape ? 0 : read_run(r, fd, w, 0, 1, e->offset, reterr);
        for (uint64_t high = rows; low < high;) { /* the first row that ends behind w->first */
                uint64_t middle = low + (high - low) / 2;
                if (row_start(t, s, middle) + run <= w->first)
                        low = middle + 1;
                else
                        high = middle;
        }
        for (uint64_t row = low; row < rows; row++) {
                uint64_t at = row_start(t, s, row);
                if (at >= w->first + w->count)
                        break;
                TRY(read_run(r, fd, w, at, run, e->offset + row * run * w->element_bytes, reterr));
        }
        return 0;
}

int tensor_read(struct tensor_reader *r, const Cairn__Format__Tensor *t, uint64_t first,
                uint64_t count, void *target, struct cairn_error *reterr) {
        struct wanted w = {.first = first,
                           .count = count,
                           .target = target,
                           .element_bytes = dtype_info(t->stored_dtype)->bytes};
        size_t extent_count;
        Cairn__Format__Extent *const *extents = layout_extents(t, r->here, &extent_count);
        for (size_t i = 0; i < extent_count; i++) {
                const Cairn__Format__Extent *e = extents[i];
                int fd = -1;
                TRY(open_data(r, e->rank, &fd, reterr));
                if (!e->shard)
                        TRY(read_run(r, fd, &w, 0, e->bytes / w.element_bytes, e->offset, reterr));
                else if (e->shard->flat)
                        TRY(read_run(r, fd, &w, e->shard->flat_start, e->shard->flat_count,
                                     e->offset, reterr));
                else
                        TRY(read_block(r, fd, t, e, &w, reterr));
        }
        return 0;
}

static int check_extent(struct tensor_reader *r, const Cairn__Format__Tensor *t,
                        const Cairn__Format__Extent *e, void *buffer, size_t buffer_bytes,
                        struct cairn_error *reterr) {
        char object[2 * NAME_BYTES], name[128];
        uint32_t crc = 0;
        int fd = -1;
        TRY(open_data(r, e->rank, &fd, reterr));
        int used = snprintf(object, sizeof object, "%.63s/", r->checkpoint);
        name_data(object + used, e->rank);
        for (uint64_t done = 0; done < e->bytes;) {
                uint64_t bytes = e->bytes - done < buffer_bytes ? e->bytes - done : buffer_bytes;
                TRY(io_read_exact(r->io, fd, buffer, bytes, e->offset + done, object, reterr));
                crc = crc32c(crc, buffer, bytes);
                done += bytes;
        }
        if (crc == e->crc32c)
                return 0;
        int status = error_set(
                reterr, CAIRN_ERR_CORRUPT, "check tensor", object,
                "tensor %s is damaged: its bytes have not the checksum that was stored with them; "
                "`cairn verify` checks the whole checkpoint",
                text_escape(name, sizeof name, (const char *) t->name.data, t->name.len));
        if (reterr)
                reterr->offset = e->offset;
        return status;
}

int tensor_check(struct tensor_reader *r, const Cairn__Format__Tensor *t,
                 struct cairn_error *reterr) {
        size_t extent_count;
        Cairn__Format__Extent *const *extents = layout_extents(t, r->here, &extent_count);
        _cleanup_free_ void *buffer = malloc(CHECK_BYTES);
        if (!buffer)
                return error_set_errno(reterr, ENOMEM, "check tensor", r->checkpoint);
        for (size_t i = 0; i < extent_count; i++)
                TRY(check_extent(r, t, extents[i], buffer, CHECK_BYTES, reterr));
        return 0;
}
