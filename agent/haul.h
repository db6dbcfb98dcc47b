/* SPDX-License-Identifier: Apache-2.0
 *
 * haul.h - what is longer than a frame, between two agents: in pieces, of which the receiver asks
 * for one after the other, so that neither side holds more than one piece in its queue. The whole
 * lies in a memfd on both sides.
 *
 *     sender     haul_offer(&out, name, fd)         takes fd; a former offer is dropped
 *                haul_fill(&out, offset, &m)        the piece from there, to be sent
 *     receiver   haul_expect(&in, name)             what may come; nothing else is taken
 *                haul_take_piece(&in, m, &e)        1: whole, 0: ask for in.have on, negative: no
 *                haul_take(&in)                     its memfd, read from the beginning
 *
 * One offer and one expectation a link at a time. A name is the kind, and the generation and
 * attempt that it is about: a piece of another one is STALE and is left out. Memory grows with what
 * has come, not with what was announced.
 *
 * The loop's thread. Zeroed (HAUL_INIT) is empty; haul_out_done, haul_in_done close.
 */
#ifndef CAIRN_AGENT_HAUL_H
#define CAIRN_AGENT_HAUL_H

#include "base/limits.h"
#include "base/status.h"
#include "format/peer.pb-c.h"

#include <stdbool.h>

#define HAUL_PIECE_BYTES (128 * KiB)
#define HAUL_BYTES_MAX (4 * GiB)
#define HAUL_HOLDS_BYTES_MAX (16 * MiB)

struct haul_name {
        Cairn__Peer__HaulKind kind;
        uint64_t generation;
        uint32_t attempt;
};
struct haul_out {
        struct haul_name name;
        bool offered;
        int fd;
        uint64_t total;
        uint8_t *piece; /* HAUL_PIECE_BYTES */
};
struct haul_in {
        struct haul_name name;
        bool expected, begun;
        int fd;
        uint64_t total, have;
};

int haul_offer(struct haul_out *out, const struct haul_name *name, int fd,
               struct cairn_error *reterr);
/* STALE: that is not on offer. `m` points into `out` until the next call. */
int haul_fill(struct haul_out *out, const struct haul_name *name, uint64_t offset,
              Cairn__Peer__Haul *m, struct cairn_error *reterr);
void haul_out_done(struct haul_out *out);

void haul_expect(struct haul_in *in, const struct haul_name *name);
int haul_take_piece(struct haul_in *in, const Cairn__Peer__Haul *m, struct cairn_error *reterr);
int haul_take(struct haul_in *in);
void haul_in_done(struct haul_in *in);

/* All of a memfd, mapped for reading; API if it has more than `bytes_max`. munmap frees. */
int haul_map(int fd, uint64_t bytes_max, void **ret, size_t *ret_bytes, struct cairn_error *reterr);
/* Packed into a memfd. */
int haul_pack(const ProtobufCMessage *m, int *ret_fd, struct cairn_error *reterr);

#endif
