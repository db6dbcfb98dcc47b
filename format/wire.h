/* SPDX-License-Identifier: Apache-2.0
 *
 * wire.h - Envelopes (control.proto) as packets of a SOCK_SEQPACKET socket, with descriptors.
 *
 *   packet: magic "CRN1" | uint32 LE payload bytes | uint32 LE CRC32C of the payload | uint32 LE
 * fd count |
 *           payload (one protobuf Envelope)
 *
 * wire_send never blocks longer than the deadline; wire_receive allocates from the caller's arena
 * only after the lengths were checked. Received descriptors are close-on-exec and owned by the
 * caller (struct wire_fds); wire_fds_done closes what was not taken. A packet with too many
 * descriptors, a truncated packet or unknown bytes yields CORRUPT and closes all of its
 * descriptors; the connection should then be dropped.
 */
#ifndef CAIRN_WIRE_H
#define CAIRN_WIRE_H

#include "base/arena.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "format/control.pb-c.h"

#define WIRE_PROTOCOL 1

struct wire_fds {
        int fds[WIRE_FDS_MAX];
        size_t count;
};
#define WIRE_FDS_INIT \
        { .count = 0 }

void wire_fds_done(struct wire_fds *fds);
/* Hand fd i to the caller; -1 if there is none. */
int wire_fds_take(struct wire_fds *fds, size_t i);

/* deadline_ns 0: do not wait (BUSY when the socket's buffer is full). PEER: the other side is
 * gone. */
int wire_send(int socket, const Cairn__Control__Envelope *e, const int *fds, size_t fd_count,
              uint64_t deadline_ns, struct cairn_error *reterr);
/* *ret points into the arena. deadline_ns 0: BUSY when nothing is there. PEER at end-of-file.
 * NOMEM with *ret set: the message came whole, but this process had no room for its descriptors. */
int wire_receive(int socket, struct arena *arena, Cairn__Control__Envelope **ret,
                 struct wire_fds *ret_fds, uint64_t deadline_ns, struct cairn_error *reterr);

/* A text of a message as a C string: API where it does not fit, or holds a zero; `what` is the
 * error's object. */
int wire_text_copy(char *target, size_t bytes, const ProtobufCBinaryData *text,
                   const char *operation, const char *what, struct cairn_error *reterr);

/* Failure <-> struct cairn_error; the message's strings point into `e` / are copied and truncated.
 * */
void wire_failure_fill(Cairn__Control__Failure *f, const struct cairn_error *e);
void wire_failure_read(const Cairn__Control__Failure *f, struct cairn_error *ret);

/* "…/cairn/RUN.sock": where a run's agent listens. $CAIRN_SOCKET, else /run/cairn/cairnd.sock where
 * it exists, else $XDG_RUNTIME_DIR/cairn/RUN.sock, else <tmp>/cairn-UID/RUN.sock (directory 0700,
 * owner checked). */
int wire_socket_path(const char *run, char *path, size_t bytes, struct cairn_error *reterr);
/* $XDG_RUNTIME_DIR/cairn/RUN + suffix, else in <tmp>/cairn-UID: a file of this user alone. */
int wire_private_path(const char *run, const char *suffix, char *path, size_t bytes,
                      struct cairn_error *reterr);
/* Connect; UNREACHABLE with the path and what to do. */
int wire_connect(const char *path, int *ret_socket, struct cairn_error *reterr);

/* A sealed memfd: create with these bytes and F_SEAL_SHRINK|GROW|(WRITE if read_only)|SEAL; check
 * one received: seals are there, size equals. */
int wire_memfd_create(const char *name, uint64_t bytes, int *ret_fd, struct cairn_error *reterr);
int wire_memfd_seal(int fd, int seals, struct cairn_error *reterr);
int wire_memfd_check(int fd, int seals, uint64_t bytes_min, uint64_t bytes_max, uint64_t *ret_bytes,
                     struct cairn_error *reterr);

#endif
