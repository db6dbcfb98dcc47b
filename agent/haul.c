/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/haul.h"
#include "base/cleanup.h"
#include "base/io.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char operation[] = "haul";

static bool is_same(const struct haul_name *a, Cairn__Peer__HaulKind kind, uint64_t generation,
                    uint32_t attempt) {
        return a->kind == kind && a->generation == generation && a->attempt == attempt;
}

static uint64_t bytes_max(const struct haul_name *name) {
        return name->kind == CAIRN__PEER__HAUL_KIND__HAUL_HOLDS ? HAUL_HOLDS_BYTES_MAX
                                                                : HAUL_BYTES_MAX;
}

/* ---- out ---- */

void haul_out_done(struct haul_out *out) {
        if (out->offered)
                (void) close(out->fd);
        free(out->piece);
        *out = (struct haul_out){0};
}

int haul_offer(struct haul_out *out, const struct haul_name *name, int fd,
               struct cairn_error *reterr) {
        struct stat st;

        haul_out_done(out);
        if (fstat(fd, &st) < 0) {
                int error_number = errno;
                (void) close(fd);
                return error_set_errno(reterr, error_number, operation, "memory");
        }
        *out = (struct haul_out){
                .name = *name, .offered = true, .fd = fd, .total = (uint64_t) st.st_size};
        if (out->total > bytes_max(name)) {
                haul_out_done(out);
                return error_set(reterr, CAIRN_ERR_UNSUPPORTED, operation, "memory",
                                 "what the nodes have to tell each other has %" PRIu64
                                 " bytes, which is more than %" PRIu64,
                                 (uint64_t) st.st_size, bytes_max(name));
        }
        out->piece = malloc(HAUL_PIECE_BYTES);
        if (!out->piece) {
                haul_out_done(out);
                return error_set_errno(reterr, ENOMEM, operation, "memory");
        }
        return 0;
}

int haul_fill(struct haul_out *out, const struct haul_name *name, uint64_t offset,
              Cairn__Peer__Haul *m, struct cairn_error *reterr) {
        if (!out->offered || !is_same(&out->name, name->kind, name->generation, name->attempt) ||
            offset > out->total)
                return error_set(reterr, CAIRN_ERR_STALE, operation, "memory",
                                 "that is not what is on offer");
        uint64_t left = out->total - offset;
        size_t bytes = left < HAUL_PIECE_BYTES ? (size_t) left : HAUL_PIECE_BYTES;
        TRY(io_read_exact(&io_system, out->fd, out->piece, bytes, (off_t) offset, "memory",
                          reterr));
        m->kind = name->kind;
        m->generation = name->generation;
        m->attempt = name->attempt;
        m->total = out->total;
        m->offset = offset;
        m->data = (ProtobufCBinaryData){bytes, out->piece};
        return 0;
}

/* ---- in ---- */

void haul_in_done(struct haul_in *in) {
        if (in->begun)
                (void) close(in->fd);
        *in = (struct haul_in){0};
}

void haul_expect(struct haul_in *in, const struct haul_name *name) {
        haul_in_done(in);
        in->name = *name;
        in->expected = true;
}

static int begin(struct haul_in *in, const Cairn__Peer__Haul *m, struct cairn_error *reterr) {
        if (m->total > bytes_max(&in->name))
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "peer",
                                 "%" PRIu64 " bytes were announced; there are %" PRIu64 " at most",
                                 m->total, bytes_max(&in->name));
        int fd = memfd_create("cairn-haul", MFD_CLOEXEC);
        if (fd < 0)
                return error_set_errno(reterr, errno, operation, "memory");
        in->fd = fd;
        in->begun = true;
        in->total = m->total;
        return 0;
}

int haul_take_piece(struct haul_in *in, const Cairn__Peer__Haul *m, struct cairn_error *reterr) {
        if (!in->expected || !is_same(&in->name, m->kind, m->generation, m->attempt))
                return error_set(reterr, CAIRN_ERR_STALE, operation, "peer",
                                 "nobody waits for that any more");
        if (!in->begun)
                TRY(begin(in, m, reterr));
        if (m->total != in->total || m->offset != in->have || m->data.len > in->total - in->have ||
            (m->data.len == 0 && in->have < in->total))
                return error_set(reterr, CAIRN_ERR_CORRUPT, operation, "peer",
                                 "a piece of %zu bytes at %" PRIu64 " does not follow %" PRIu64
                                 " of %" PRIu64,
                                 m->data.len, m->offset, in->have, in->total);
        TRY(io_write_all(&io_system, in->fd, m->data.data, m->data.len, (off_t) in->have, "memory",
                         reterr));
        in->have += m->data.len;
        return in->have == in->total;
}

int haul_take(struct haul_in *in) {
        int fd = in->begun ? in->fd : -1;

        *in = (struct haul_in){0};
        return fd;
}

/* ---- memory ---- */

int haul_map(int fd, uint64_t limit, void **ret, size_t *ret_bytes, struct cairn_error *reterr) {
        struct stat st;

        if (fstat(fd, &st) < 0)
                return error_set_errno(reterr, errno, operation, "memory");
        if ((uint64_t) st.st_size > limit || st.st_size == 0)
                return error_set(reterr, CAIRN_ERR_API, operation, "memory",
                                 "%jd bytes are none or too many", (intmax_t) st.st_size);
        void *map = mmap(NULL, (size_t) st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return error_set_errno(reterr, errno, operation, "memory");
        *ret = map;
        *ret_bytes = (size_t) st.st_size;
        return 0;
}

int haul_pack(const ProtobufCMessage *m, int *ret_fd, struct cairn_error *reterr) {
        size_t bytes = protobuf_c_message_get_packed_size(m);
        _cleanup_free_ uint8_t *packed = malloc(bytes + 1);

        if (!packed)
                return error_set_errno(reterr, ENOMEM, operation, "memory");
        (void) protobuf_c_message_pack(m, packed);
        _cleanup_close_ int fd = memfd_create("cairn-haul", MFD_CLOEXEC);
        if (fd < 0)
                return error_set_errno(reterr, errno, operation, "memory");
        TRY(io_write_all(&io_system, fd, packed, bytes, 0, "memory", reterr));
        *ret_fd = TAKE_FD(fd);
        return 0;
}
